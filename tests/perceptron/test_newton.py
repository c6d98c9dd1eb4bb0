"""The solver: its certificate is the true duality gap, and its answers are the optimum."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puma.perceptron.newton import duality_gap, face_step, soft_threshold, worst_margin
from puma.perceptron.problem import Array, PerceptronTask, PoolPruning, draw_training_set, measure_overlap
from puma.perceptron.students import LogisticLoss, fit_logistic, fit_logistic_slowly

RIDGE = 1e-3


def primal(samples: Array, weights: Array, eps: float, ridge: float) -> float:
    margin = samples @ weights - eps * np.abs(weights).sum()
    return float(np.log1p(np.exp(-margin)).mean() + ridge / 2 * weights @ weights)


def dual(samples: Array, pull: Array, eps: float, ridge: float) -> float:
    entropy = -pull * np.log(pull) - (1 - pull) * np.log(1 - pull)
    shrunk = soft_threshold(pull @ samples / len(samples), eps * pull.mean())
    return float(entropy.mean() - shrunk @ shrunk / (2 * ridge))


@pytest.mark.parametrize("eps", [0.0, 0.02, 0.3])
def test_the_gap_is_primal_minus_dual(eps: float) -> None:
    rng = np.random.default_rng(0)
    samples, weights = rng.standard_normal((40, 7)), rng.standard_normal(7)
    weights[2] = 0.0
    pull, _ = LogisticLoss().slopes(worst_margin(samples, weights, eps))
    gap, _ = duality_gap(weights, pull @ samples / 40, eps * float(pull.mean()), RIDGE)
    expected = primal(samples, weights, eps, RIDGE) - dual(samples, pull, eps, RIDGE)
    assert gap == pytest.approx(expected, rel=1e-10)
    assert gap > 0


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 60),
    dimension=st.integers(1, 12),
    eps=st.sampled_from([0.0, 0.01, 0.1, 1.0]),
    ridge=st.sampled_from([1e-5, 1e-2, 1.0]),
)
def test_every_problem_is_solved_to_a_certified_distance(
    seed: int, count: int, dimension: int, eps: float, ridge: float
) -> None:
    samples = np.random.default_rng(seed).standard_normal((count, dimension))
    found = fit_logistic(samples, eps, ridge=ridge)
    assert found.converged
    margin = worst_margin(samples, found.weights, eps)
    pull = 1 / (1 + np.exp(margin))
    asked = soft_threshold(pull @ samples / count, eps * float(pull.mean())) / ridge
    np.testing.assert_allclose(found.weights, asked, atol=1e-6 * max(1.0, float(np.linalg.norm(asked))))


@pytest.mark.parametrize("eps", [0.0, 0.001, 0.01, 0.05])
@pytest.mark.parametrize("pruning", [PoolPruning(), PoolPruning("pe", 0.1), PoolPruning("pd", 0.1)])
def test_the_slow_reference_agrees(pruning: PoolPruning, eps: float) -> None:
    drawn = draw_training_set(PerceptronTask(3.0, pruning, dimension=40), eps, seed=0)
    fast = fit_logistic(drawn.samples, eps)
    slow = fit_logistic_slowly(drawn.samples, eps)
    assert fast.converged
    ours = primal(drawn.samples, fast.weights, eps, 1e-5)
    theirs = primal(drawn.samples, slow, eps, 1e-5)
    assert ours <= theirs + 1e-14
    assert theirs - ours < 1e-6
    expected = measure_overlap(slow, drawn.teacher).error
    assert measure_overlap(fast.weights, drawn.teacher).error == pytest.approx(expected, rel=5e-3)


def test_a_start_changes_nothing_but_the_time() -> None:
    drawn = draw_training_set(PerceptronTask(2.0, dimension=40), 0.0, seed=1)
    usual = fit_logistic(drawn.samples, 0.01)
    other = fit_logistic(drawn.samples, 0.01, start=np.zeros(40))
    size = float(np.linalg.norm(usual.weights))
    np.testing.assert_allclose(other.weights, usual.weights, rtol=0, atol=3e-7 * size)


def test_a_strong_attack_leaves_exactly_zero_weights() -> None:
    drawn = draw_training_set(PerceptronTask(8.0, PoolPruning("pe", 0.05), dimension=20), 0.0, seed=0)
    found = fit_logistic(drawn.samples, 0.9)
    assert found.converged
    assert found.gap == 0
    assert not found.weights.any()


def test_a_far_start_that_unsettles_the_pivoting_still_converges() -> None:
    drawn = draw_training_set(PerceptronTask(0.5, dimension=200), 0.0, seed=0)
    clean = fit_logistic(drawn.samples, 0.0)
    assert fit_logistic(drawn.samples, 0.2, start=clean.weights).converged


@pytest.mark.parametrize("seed", range(8))
def test_a_face_step_meets_the_conditions_of_its_minimum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((12, 9))
    hessian = root.T @ root + 1e-3 * np.eye(9)
    gradient, weights = rng.standard_normal(9), rng.standard_normal(9)
    weights[:2] = 0.0
    signs = np.where(weights == 0, 1.0, np.sign(weights))
    step = face_step(hessian, gradient, weights, signs)
    moved, slope = signs * (weights + step), signs * (gradient + hessian @ step)
    assert (moved > -1e-10).all()
    assert (slope > -1e-8).all()
    np.testing.assert_allclose(moved * slope, 0, atol=1e-8)


def test_without_signs_a_face_step_is_newtons() -> None:
    hessian = np.array([[2.0, 1.0], [1.0, 3.0]])
    gradient = np.array([1.0, -1.0])
    step = face_step(hessian, gradient, np.array([0.1, -0.1]), np.zeros(2))
    np.testing.assert_allclose(step, -np.linalg.solve(hessian, gradient))
