"""Samples: what is drawn, what is kept, and what is shared between seeds and strategies."""

import numpy as np
import pytest
from scipy.special import erf
from scipy.stats import kstest

from puma.errors import PumaError
from puma.perceptron.problem import (
    PerceptronTask,
    PoolPruning,
    Probe,
    Strategy,
    TeacherKind,
    draw_training_set,
    kept_range,
    measure_overlap,
    select_kept,
)


def half_normal_mass(low: float, high: float) -> float:
    return float(erf(high / np.sqrt(2)) - erf(low / np.sqrt(2)))


@pytest.mark.parametrize("strategy", ["pe", "pd"])
def test_kept_samples_are_the_extremes_of_the_order(strategy: Strategy) -> None:
    score = np.random.default_rng(0).permutation(100).astype(float)
    kept = np.sort(score[select_kept(score, 20, strategy)])
    np.testing.assert_array_equal(kept, np.arange(20) if strategy == "pe" else np.arange(80, 100))


@pytest.mark.parametrize("floor", [0.0, 0.01, 0.5])
@pytest.mark.parametrize("keep", [1.0, 0.5, 0.01])
@pytest.mark.parametrize("strategy", ["pe", "pd"])
def test_the_kept_range_holds_the_kept_fraction(strategy: Strategy, keep: float, floor: float) -> None:
    low, high = kept_range(strategy, keep, floor)
    assert low >= floor - 1e-12
    assert half_normal_mass(low, high) == pytest.approx(keep * half_normal_mass(floor, np.inf), rel=1e-9)


@pytest.mark.parametrize("teacher", ["axis", "dense"])
@pytest.mark.parametrize(
    "pruning", [PoolPruning(), PoolPruning("pe", 0.1), PoolPruning("pd", 0.1), PoolPruning("pe", 0.1, filtered=True)]
)
def test_margins_follow_the_kept_half_normal(pruning: PoolPruning, teacher: TeacherKind) -> None:
    drawn = draw_training_set(PerceptronTask(40.0, pruning, 50, teacher), 0.02, seed=0)
    margin = drawn.samples @ drawn.teacher
    floor = 0.02 * float(np.abs(drawn.teacher).sum()) if pruning.filtered else 0.0
    low, high = kept_range(pruning.strategy, pruning.keep, floor)
    mass = half_normal_mass(low, high)
    assert kstest(margin, lambda m: (erf(m / np.sqrt(2)) - erf(low / np.sqrt(2))) / mass).statistic < 0.06
    assert margin.min() >= floor - 1e-9


@pytest.mark.parametrize("teacher", ["axis", "dense"])
def test_other_directions_are_standard_normal(teacher: TeacherKind) -> None:
    drawn = draw_training_set(PerceptronTask(100.0, PoolPruning("pe", 0.5), 20, teacher), 0.0, seed=0)
    across = drawn.samples - np.outer(drawn.samples @ drawn.teacher, drawn.teacher)
    covariance = across.T @ across / len(across)
    expected = np.eye(20) - np.outer(drawn.teacher, drawn.teacher)
    np.testing.assert_allclose(covariance, expected, atol=0.15)
    assert np.linalg.norm(drawn.teacher) == pytest.approx(1)


def test_strategies_share_their_noise_and_attacks_their_samples() -> None:
    none, easy = (
        draw_training_set(PerceptronTask(2.0, p, 30), 0.0, seed=4).samples
        for p in (PoolPruning(), PoolPruning("pe", 0.2))
    )
    np.testing.assert_array_equal(none[:, 1:], easy[:, 1:])
    assert (none[:, 0] != easy[:, 0]).any()
    np.testing.assert_array_equal(none, draw_training_set(PerceptronTask(2.0, PoolPruning(), 30), 0.01, seed=4).samples)
    assert (none != draw_training_set(PerceptronTask(2.0, PoolPruning(), 30), 0.0, seed=5).samples).all()


def test_a_probe_at_an_angle_prunes_by_its_own_margin() -> None:
    exact, tilted = (
        draw_training_set(PerceptronTask(20.0, PoolPruning("pe", 0.1), 50, probe=Probe(angle)), 0.0, seed=0)
        for angle in (0.0, 30.0)
    )
    margin = tilted.samples @ tilted.teacher
    assert margin.min() >= 0
    assert margin.max() > 5 * (exact.samples @ exact.teacher).max()
    # with z = (|x_1|, x_2), the kept ones lie between two lines at distance c of the probe's boundary
    spread = np.sqrt(np.mean(margin**2))
    assert 0.3 < spread < 0.7


def test_a_signed_probe_puts_its_own_mistakes_first() -> None:
    task = PerceptronTask(20.0, PoolPruning("pe", 0.1), 50, probe=Probe(40.0, signed=True))
    signed = draw_training_set(task, 0.0, seed=0)
    unsigned = draw_training_set(PerceptronTask(20.0, PoolPruning("pe", 0.1), 50, probe=Probe(40.0)), 0.0, seed=0)
    # the direction of the probe's error carries most of the variance of what a signed probe keeps
    sizes = [np.linalg.eigvalsh(np.cov(drawn.samples.T))[-1] for drawn in (signed, unsigned)]
    means = [np.linalg.norm(drawn.samples.mean(axis=0)) for drawn in (signed, unsigned)]
    assert means[0] > means[1]
    assert min(sizes) > 0


def test_overlap_of_known_angles() -> None:
    teacher = np.array([1.0, 0.0])
    for angle in (1e-9, 1e-4, 0.3, 2.0):
        found = measure_overlap(5 * np.array([np.cos(angle), np.sin(angle)]), teacher)
        assert found.angle == pytest.approx(angle / np.pi, rel=1e-9)
        assert found.error == pytest.approx(2 * np.sin(angle / 2) ** 2, rel=1e-9, abs=0)
    assert measure_overlap(np.zeros(2), teacher).error == pytest.approx(1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PoolPruning("pe", 0.0), "kept fraction must be in (0, 1], got 0.0"),
        (lambda: PoolPruning("none", 0.5), "keeps everything"),
        (lambda: PoolPruning("both", 0.5), "unknown pruning strategy 'both'"),  # type: ignore[arg-type]
        (lambda: PerceptronTask(0.0), "at least one sample, got 0.0"),
        (lambda: PerceptronTask(float("inf")), "at least one sample, got inf"),
        (lambda: PerceptronTask(1.0, PoolPruning("pe", 1e-9)), "pool of 200,000,000,000 samples is too large"),
        (lambda: PerceptronTask(1.0, dimension=1), "at least 2, got 1"),
        (lambda: Probe(120.0), "0 to 90 degrees, got 120.0"),
        (lambda: draw_training_set(PerceptronTask(1.0, PoolPruning("pe", 0.5, True)), 5.0, 0), "smaller eps"),
    ],
)
def test_bad_settings_are_named(make: object, words: str) -> None:
    assert callable(make)
    with pytest.raises(PumaError) as caught:
        make()
    assert words in str(caught.value)
