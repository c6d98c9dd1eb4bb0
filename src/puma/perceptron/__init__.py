"""The perceptron study: why pruning by margin fails or works in adversarial training, in a minute.

A teacher labels Gaussian samples, a pool of them is pruned by margin, and a linear student is trained under
an L_inf attack. Students, theory and figures stand alone: no other part of the package is needed.
"""

from puma.errors import tell_missing

with tell_missing("perceptron"):
    from puma.perceptron.problem import (
        PerceptronTask,
        PoolPruning,
        Probe,
        TeacherKind,
        draw_training_set,
        measure_overlap,
    )
    from puma.perceptron.students import (
        GradientDescent,
        Logistic,
        MaxMargin,
        StudentName,
        attack_by_fgsm,
        fit_logistic,
        fit_maxmargin,
        train_student,
    )
    from puma.perceptron.study_design import FigureName, PerceptronStudy
    from puma.perceptron.study_run import run_study
    from puma.perceptron.theory import crossover_alpha, predict_students

__all__ = [
    "FigureName",
    "GradientDescent",
    "Logistic",
    "MaxMargin",
    "PerceptronStudy",
    "PerceptronTask",
    "PoolPruning",
    "Probe",
    "StudentName",
    "TeacherKind",
    "attack_by_fgsm",
    "crossover_alpha",
    "draw_training_set",
    "fit_logistic",
    "fit_maxmargin",
    "measure_overlap",
    "predict_students",
    "run_study",
    "train_student",
]
