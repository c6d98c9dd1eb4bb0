"""The students: the hard margin against exact answers, FGSM in general and its closed form for a linear one."""

import numpy as np
import pytest
import torch
from scipy.optimize import nnls

from puma.perceptron.newton import worst_margin
from puma.perceptron.problem import Array, PerceptronTask, PoolPruning, draw_training_set
from puma.perceptron.students import (
    DescentLoss,
    GradientDescent,
    adversarial_gradient,
    attack_by_fgsm,
    descend_gradient,
    fit_maxmargin,
    linear_loss_gradient,
    loss_pull,
    margin_bound,
)


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
@pytest.mark.parametrize("pruning", [PoolPruning(), PoolPruning("pe", 0.2), PoolPruning("pd", 0.2)])
def test_without_attack_it_is_the_nearest_point_of_the_hull(alpha: float, pruning: PoolPruning) -> None:
    samples = draw_training_set(PerceptronTask(alpha, pruning, dimension=40), 0.0, seed=0).samples
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
    samples = draw_training_set(PerceptronTask(2.0, dimension=30), eps, seed=1).samples
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
    samples = draw_training_set(PerceptronTask(4.0, PoolPruning("pe", 0.2), dimension=60), 0.0, seed=2).samples
    found = fit_maxmargin(samples, 0.003)
    lowest = worst_margin(samples, found.weights, 0.003).min() / np.linalg.norm(found.weights)
    assert found.margin == pytest.approx(lowest)
    assert found.margin <= found.bound * (1 + 1e-12)
    assert found.margin == pytest.approx(found.bound, rel=1e-7)


def test_any_weights_on_samples_bound_the_margin() -> None:
    rng = np.random.default_rng(0)
    samples = draw_training_set(PerceptronTask(2.0, dimension=30), 0.0, seed=3).samples
    best = fit_maxmargin(samples, 0.01).margin
    for _ in range(20):
        assert margin_bound(samples, rng.exponential(size=60), 0.01) >= best


def test_what_cannot_be_separated_says_so() -> None:
    found = fit_maxmargin(np.array([[1.0, 0.5], [-1.0, 0.2]]), 0.6)
    assert not found.separable
    crowded = draw_training_set(PerceptronTask(8.0, PoolPruning("pe", 0.05), dimension=50), 0.0, seed=0)
    assert not fit_maxmargin(crowded.samples, 0.05).separable


def logistic(margin: Array) -> Array:
    return np.log1p(np.exp(-margin))


def test_a_linear_student_meets_its_closed_form() -> None:
    rng = np.random.default_rng(0)
    inputs, weights = rng.standard_normal((50, 8)), rng.standard_normal(8)
    weights[3] = 0.0
    labels = np.sign(rng.standard_normal(50))
    gradient = linear_loss_gradient(weights, labels, lambda margin: loss_pull("logistic", margin))
    attacked = attack_by_fgsm(inputs, 0.1, gradient)
    expected = worst_margin(labels[:, None] * inputs, weights, 0.1)
    np.testing.assert_allclose(labels * (attacked @ weights), expected, rtol=1e-12)
    np.testing.assert_allclose(np.abs(attacked - inputs).max(), 0.1)


def test_no_perturbation_in_the_box_is_worse_for_a_linear_student() -> None:
    rng = np.random.default_rng(1)
    inputs, weights, labels = rng.standard_normal((5, 4)), rng.standard_normal(4), np.ones(5)
    gradient = linear_loss_gradient(weights, labels, lambda margin: loss_pull("logistic", margin))
    worst = logistic(attack_by_fgsm(inputs, 0.2, gradient) @ weights)
    for _ in range(200):
        other = inputs + rng.uniform(-0.2, 0.2, inputs.shape)
        assert (logistic(other @ weights) <= worst + 1e-12).all()


def test_any_differentiable_student_will_do() -> None:
    torch.manual_seed(0)
    student = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
    inputs, labels = np.random.default_rng(2).standard_normal((30, 6)), torch.ones(30, dtype=torch.double)

    def losses(values: Array) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = torch.tensor(values, requires_grad=True)
        return torch.nn.functional.softplus(-labels * student(leaf)[:, 0]), leaf

    def gradient(values: Array) -> Array:
        loss, leaf = losses(values)
        (slope,) = torch.autograd.grad(loss.sum(), leaf)
        return np.asarray(slope.numpy())

    attacked = attack_by_fgsm(inputs, 0.01, gradient)
    np.testing.assert_allclose(np.abs(attacked - inputs), 0.01, rtol=1e-6)
    assert (losses(attacked)[0] > losses(inputs)[0]).all()


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_the_step_is_the_gradient_on_literal_fgsm_examples(loss: DescentLoss) -> None:
    rng = np.random.default_rng(3)
    samples, weights, eps = rng.standard_normal((40, 6)), rng.standard_normal(6), 0.15
    gradient = linear_loss_gradient(weights, np.ones(40), lambda margin: loss_pull(loss, margin))
    examples = attack_by_fgsm(samples, eps, gradient)
    literal = -(loss_pull(loss, examples @ weights)[:, None] * examples).mean(axis=0)
    np.testing.assert_allclose(adversarial_gradient(samples, weights, eps, loss), literal, atol=1e-14)


def test_descent_walks_downhill_and_repeats() -> None:
    samples = np.abs(np.random.default_rng(4).standard_normal((60, 5)))
    short = descend_gradient(samples, 0.01, GradientDescent("logistic", steps=5, rate=0.5), seed=0)
    long = descend_gradient(samples, 0.01, GradientDescent("logistic", steps=200, rate=0.5), seed=0)
    assert logistic(worst_margin(samples, long, 0.01)).mean() < logistic(worst_margin(samples, short, 0.01)).mean()
    batches = GradientDescent("hinge", steps=50, rate=0.1, batch=16)
    np.testing.assert_array_equal(
        descend_gradient(samples, 0.01, batches, seed=1), descend_gradient(samples, 0.01, batches, seed=1)
    )
    assert (descend_gradient(samples, 0.01, batches, seed=1) != descend_gradient(samples, 0.01, batches, seed=2)).any()


def test_a_batch_of_all_samples_is_full_batch() -> None:
    samples = np.random.default_rng(5).standard_normal((20, 3))
    full = descend_gradient(samples, 0.1, GradientDescent(steps=10), seed=0)
    np.testing.assert_array_equal(full, descend_gradient(samples, 0.1, GradientDescent(steps=10, batch=20), seed=0))
