"""The hard-margin student against exact answers: by hand, and by non-negative least squares."""

import numpy as np
import pytest
from scipy.optimize import nnls

from puma.perceptron.maxmargin import fit_maxmargin, margin_bound
from puma.perceptron.newton import Array, worst_margin
from puma.perceptron.pruning import Pruning
from puma.perceptron.sampling import Task, draw_lesson


def least_distance(samples: Array, eps: float) -> Array:
    """Solve min |w|^2 under margins >= 1 exactly, as non-negative least squares of the split problem."""
    count, dimension = samples.shape
    positive = np.hstack([samples - eps, -samples - eps])
    constraints = np.vstack([positive, np.eye(2 * dimension)])
    levels = np.concatenate([np.ones(count), np.zeros(2 * dimension)])
    system = np.vstack([constraints.T, levels])
    target = np.zeros(2 * dimension + 1)
    target[-1] = 1.0
    multipliers, _ = nnls(system, target)
    residual = system @ multipliers - target
    parts = -residual[:-1] / residual[-1]
    return np.asarray(parts[:dimension] - parts[dimension:])


@pytest.mark.parametrize("alpha", [0.5, 2.0, 6.0])
@pytest.mark.parametrize("pruning", [Pruning(), Pruning("pe", 0.2), Pruning("pd", 0.2)])
def test_without_attack_it_is_the_nearest_point_of_the_hull(alpha: float, pruning: Pruning) -> None:
    samples = draw_lesson(Task(alpha, pruning, dimension=40), 0.0, seed=0).samples
    system = np.vstack([samples.T, np.ones(len(samples))])
    hull, _ = nnls(system, np.eye(41)[-1])
    expected = hull @ samples
    expected /= np.linalg.norm(expected)
    found = fit_maxmargin(samples, 0.0)
    assert found.converged
    np.testing.assert_allclose(found.weights / np.linalg.norm(found.weights), expected, atol=1e-6)
    assert found.margin == pytest.approx((samples @ expected).min(), rel=1e-7)


@pytest.mark.parametrize("eps", [0.001, 0.02, 0.05])
def test_under_attack_it_is_the_least_distance_solution(eps: float) -> None:
    samples = draw_lesson(Task(2.0, dimension=30), eps, seed=1).samples
    expected = least_distance(samples, eps)
    found = fit_maxmargin(samples, eps)
    assert found.converged
    np.testing.assert_allclose(
        found.weights / np.linalg.norm(found.weights), expected / np.linalg.norm(expected), atol=1e-5
    )


def test_one_sample_by_hand() -> None:
    found = fit_maxmargin(np.array([[3.0, 4.0]]), 1.0)
    np.testing.assert_allclose(found.weights / np.linalg.norm(found.weights), np.array([2, 3]) / np.sqrt(13))
    assert found.margin == pytest.approx(np.sqrt(13))


def test_margin_and_bound_meet() -> None:
    samples = draw_lesson(Task(4.0, Pruning("pe", 0.2), dimension=60), 0.0, seed=2).samples
    found = fit_maxmargin(samples, 0.003)
    lowest = worst_margin(samples, found.weights, 0.003).min() / np.linalg.norm(found.weights)
    assert found.margin == pytest.approx(lowest)
    assert found.margin <= found.bound * (1 + 1e-12)
    assert found.margin == pytest.approx(found.bound, rel=1e-7)


def test_any_weights_on_samples_bound_the_margin() -> None:
    rng = np.random.default_rng(0)
    samples = draw_lesson(Task(2.0, dimension=30), 0.0, seed=3).samples
    best = fit_maxmargin(samples, 0.01).margin
    for _ in range(20):
        assert margin_bound(samples, rng.exponential(size=60), 0.01) >= best


def test_what_cannot_be_separated_says_so() -> None:
    found = fit_maxmargin(np.array([[1.0, 0.5], [-1.0, 0.2]]), 0.6)
    assert not found.separable
    crowded = draw_lesson(Task(8.0, Pruning("pe", 0.05), dimension=50), 0.0, seed=0)
    assert not fit_maxmargin(crowded.samples, 0.05).separable
