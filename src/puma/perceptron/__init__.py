"""The perceptron study: why pruning by margin fails or works in adversarial training, in a minute.

A teacher labels Gaussian samples, a pool of them is pruned by margin, and a linear student is trained under
an L_inf attack. Students, theory and figures stand alone: no other part of the package is needed.
"""

from puma.errors import tell_missing

with tell_missing("perceptron"):
    from puma.perceptron.claims import StudyClaim
    from puma.perceptron.problem import (
        PerceptronTask,
        PoolPruning,
        Probe,
        TeacherKind,
        draw_training_set,
        measure_overlap,
    )
    from puma.perceptron.students import (
        DescentLoss,
        GradientDescent,
        Logistic,
        MaxMargin,
        StudentName,
        attack_by_fgsm,
        fit_logistic,
        fit_maxmargin,
        train_student,
    )
    from puma.perceptron.study_design import (
        ALPHAS,
        FIGURES,
        KEEPS,
        FigureName,
        PerceptronStudy,
        StudyResults,
        needed_curves,
        needed_points,
        plan_figures,
    )
    from puma.perceptron.study_run import run_study
    from puma.perceptron.theory import crossover_alpha, predict_students


__all__ = [
    "ALPHAS",
    "FIGURES",
    "KEEPS",
    "DescentLoss",
    "FigureName",
    "GradientDescent",
    "Logistic",
    "MaxMargin",
    "PerceptronStudy",
    "PerceptronTask",
    "PoolPruning",
    "Probe",
    "StudentName",
    "StudyClaim",
    "StudyResults",
    "TeacherKind",
    "attack_by_fgsm",
    "crossover_alpha",
    "draw_training_set",
    "fit_logistic",
    "fit_maxmargin",
    "measure_overlap",
    "needed_curves",
    "needed_points",
    "plan_figures",
    "predict_students",
    "run_study",
    "train_student",
]
