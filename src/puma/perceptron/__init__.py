"""The perceptron study: why pruning by margin fails or works in adversarial training, in a minute.

A teacher labels Gaussian samples, a pool of them is pruned by margin, and a linear student is trained under
an L_inf attack. Students, theory and figures stand alone: nothing else of the package is needed.
"""

from puma.perceptron.fgsm import fgsm
from puma.perceptron.logistic import fit_logistic
from puma.perceptron.maxmargin import fit_maxmargin
from puma.perceptron.overlap import overlap
from puma.perceptron.pruning import Pruning
from puma.perceptron.run import run_study
from puma.perceptron.sampling import Probe, Task, draw_lesson
from puma.perceptron.students import Logistic, MaxMargin, StudentName
from puma.perceptron.study import FigureName, Study
from puma.perceptron.teacher import TeacherKind
from puma.perceptron.theory import crossover_alpha, predict

__all__ = [
    "FigureName",
    "Logistic",
    "MaxMargin",
    "Probe",
    "Pruning",
    "StudentName",
    "Study",
    "Task",
    "TeacherKind",
    "crossover_alpha",
    "draw_lesson",
    "fgsm",
    "fit_logistic",
    "fit_maxmargin",
    "overlap",
    "predict",
    "run_study",
]
