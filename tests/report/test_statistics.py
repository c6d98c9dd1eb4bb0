import math

import pytest

from puma.evaluation import Count
from puma.report.statistics import (
    AccuracyEstimate,
    choose_robust_attack,
    estimate_accuracy,
    subtract_estimates,
    subtract_paired,
)


def test_one_seed_has_wilsons_interval() -> None:
    value = estimate_accuracy([Count(355, 364)])
    assert value == AccuracyEstimate(355 / 364, *Count(355, 364).interval, None, 1, 364)
    assert estimate_accuracy([]) is None
    assert estimate_accuracy([Count(0, 0)]) is None


def test_several_seeds_have_students_interval_of_their_mean() -> None:
    value = estimate_accuracy([Count(80, 100), Count(82, 100), Count(87, 100)])
    assert value is not None
    assert (value.seeds, value.images) == (3, 100)
    assert value.mean == pytest.approx(0.83)
    assert value.spread == pytest.approx(math.sqrt(0.0013))  # (3² + 1² + 4²) / 2 of a hundredth squared
    half = 4.302653 * math.sqrt(0.0013 / 3)  # t of 2 degrees of freedom
    assert (value.low, value.high) == pytest.approx((0.83 - half, 0.83 + half))


def test_seeds_that_agree_do_not_make_it_certain() -> None:
    value = estimate_accuracy([Count(80, 100)] * 3)
    assert value is not None
    assert value.spread == pytest.approx(0, abs=1e-12)
    assert (value.low, value.high) == pytest.approx((0.79, 0.81))


def test_newcombes_interval_of_a_difference() -> None:
    """Newcombe (1998), table II, method 10: 56/70 against 48/80 gives 0.0524 to 0.3339."""
    ours, baseline = estimate_accuracy([Count(56, 70)]), estimate_accuracy([Count(48, 80)])
    assert ours is not None
    assert baseline is not None
    found = subtract_estimates(ours, baseline)
    assert (found.mean, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)
    assert not found.within_noise
    assert subtract_estimates(ours, ours).within_noise
    assert subtract_estimates(baseline, ours).high == pytest.approx(-0.0524, abs=5e-5)


def test_the_same_seeds_are_compared_in_pairs() -> None:
    """Differences of 1, 2 and 3 hundredths: mean 2, standard error 1 / sqrt(3), t of 2 degrees of freedom 4.302653."""
    ours, baseline = [Count(51, 100), Count(62, 100), Count(83, 100)], [Count(50, 100), Count(60, 100), Count(80, 100)]
    found = subtract_paired(ours, baseline)
    half = 0.04302653 / math.sqrt(3)
    assert (found.mean, found.low, found.high) == pytest.approx((0.02, 0.02 - half, 0.02 + half), abs=1e-7)
    same = subtract_paired([Count(52, 100), Count(62, 100)], [Count(50, 100), Count(60, 100)])
    assert (same.low, same.high) == pytest.approx((0.01, 0.03))  # never narrower than one image to either side


def test_which_attack_tells_robustness() -> None:
    assert choose_robust_attack([{"clean": 1, "autoattack": 1}, {"cw": 1}]) == "cw"
    assert choose_robust_attack([{"clean": 1, "pgd20": 1}, {"autoattack": 1}]) == "autoattack"
    assert choose_robust_attack([{"clean": 1}]) is None
