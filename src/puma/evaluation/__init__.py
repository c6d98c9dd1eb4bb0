"""Evaluation that can be believed: clean, PGD and AutoAttack accuracy with exact counts."""

from puma.evaluation.accuracy import (
    Evaluation,
    EvaluationConfig,
    check_evaluation_config,
    evaluate,
    evaluate_pool,
    identify_evaluation,
)
from puma.evaluation.masking import draw_curve, measure_pool_curve
from puma.evaluation.metrics_file import (
    EVALUATION_FILE,
    Count,
    EvaluationMetrics,
    choose_evaluation_folder,
    find_evaluations,
    has_evaluation,
    is_evaluation,
    read_curve,
    read_evaluation,
    write_evaluation,
)
from puma.evaluation.under_attack import ATTACKS, AttackName, choose_rows, title_attack

__all__ = [
    "ATTACKS",
    "EVALUATION_FILE",
    "AttackName",
    "Count",
    "Evaluation",
    "EvaluationConfig",
    "EvaluationMetrics",
    "check_evaluation_config",
    "choose_evaluation_folder",
    "choose_rows",
    "draw_curve",
    "evaluate",
    "evaluate_pool",
    "find_evaluations",
    "has_evaluation",
    "identify_evaluation",
    "is_evaluation",
    "measure_pool_curve",
    "read_curve",
    "read_evaluation",
    "title_attack",
    "write_evaluation",
]
