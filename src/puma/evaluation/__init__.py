"""Evaluation that can be believed: clean, PGD and AutoAttack accuracy with exact counts."""

from puma.evaluation.accuracy import ATTACKS, Evaluation, EvaluationConfig, evaluate, evaluate_pool

__all__ = ["ATTACKS", "Evaluation", "EvaluationConfig", "evaluate", "evaluate_pool"]
