import math

import pytest
import torch
from scipy.stats import binomtest

from puma.evaluation.metrics_file import Count, count_by_class, count_right, wilson_interval


@pytest.mark.parametrize(("right", "total"), [(0, 10), (10, 10), (3, 7), (5853, 10_000), (1, 1)])
def test_wilson_is_scipys(right: int, total: int) -> None:
    expected = binomtest(right, total).proportion_ci(0.95, method="wilson")
    assert wilson_interval(right, total) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_nothing_says_nothing() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert math.isnan(Count(0, 0).accuracy)


def test_counts_are_exact_per_class_and_overall() -> None:
    right = torch.tensor([True, False, True, True, False])
    labels = torch.tensor([0, 0, 2, 2, 2])
    assert count_right(right) == Count(3, 5)
    assert count_by_class(right, labels, ["a", "b", "c"]) == {"a": Count(1, 2), "b": Count(0, 0), "c": Count(2, 3)}
