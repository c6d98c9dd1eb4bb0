from puma.evaluation import Count, EvaluationMetrics
from puma.report.results import RowResult
from puma.report.study import Row, Seed


def evaluated(right: int) -> EvaluationMetrics:
    classes = {"cw": {"ant": Count(right, 10), "bee": Count(2 * right, 20)}}
    return EvaluationMetrics({"cw": Count(3 * right, 30)}, classes, 0.1, "linf")


def test_classes_are_added_up_over_seeds() -> None:
    seeds = tuple(Seed(seed) for seed in (0, 1, 2))
    result = RowResult(Row("r", seeds), tuple(evaluated(right) for right in (1, 2, 4)), (), None)
    assert result.by_class("cw") == {"ant": Count(7, 30), "bee": Count(14, 60)}
    assert result.by_class("clean") == {}
