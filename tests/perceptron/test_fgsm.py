"""FGSM in general, and its closed form for a linear student."""

import numpy as np
import pytest
import torch

from puma.perceptron.descent import Descent, DescentLoss, adversarial_gradient, fit_descent, pull_of
from puma.perceptron.fgsm import fgsm, linear_loss_gradient
from puma.perceptron.newton import Array, worst_margin


def logistic(margin: Array) -> Array:
    return np.log1p(np.exp(-margin))


def test_a_linear_student_meets_its_closed_form() -> None:
    rng = np.random.default_rng(0)
    inputs, weights = rng.standard_normal((50, 8)), rng.standard_normal(8)
    weights[3] = 0.0
    labels = np.sign(rng.standard_normal(50))
    gradient = linear_loss_gradient(weights, labels, lambda margin: pull_of("logistic", margin))
    attacked = fgsm(inputs, 0.1, gradient)
    expected = worst_margin(labels[:, None] * inputs, weights, 0.1)
    np.testing.assert_allclose(labels * (attacked @ weights), expected, rtol=1e-12)
    np.testing.assert_allclose(np.abs(attacked - inputs).max(), 0.1)


def test_no_perturbation_in_the_box_is_worse_for_a_linear_student() -> None:
    rng = np.random.default_rng(1)
    inputs, weights, labels = rng.standard_normal((5, 4)), rng.standard_normal(4), np.ones(5)
    gradient = linear_loss_gradient(weights, labels, lambda margin: pull_of("logistic", margin))
    worst = logistic(fgsm(inputs, 0.2, gradient) @ weights)
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

    attacked = fgsm(inputs, 0.01, gradient)
    np.testing.assert_allclose(np.abs(attacked - inputs), 0.01, rtol=1e-6)
    assert (losses(attacked)[0] > losses(inputs)[0]).all()


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_the_step_is_the_gradient_on_literal_fgsm_examples(loss: DescentLoss) -> None:
    rng = np.random.default_rng(3)
    samples, weights, eps = rng.standard_normal((40, 6)), rng.standard_normal(6), 0.15
    gradient = linear_loss_gradient(weights, np.ones(40), lambda margin: pull_of(loss, margin))
    examples = fgsm(samples, eps, gradient)
    literal = -(pull_of(loss, examples @ weights)[:, None] * examples).mean(axis=0)
    np.testing.assert_allclose(adversarial_gradient(samples, weights, eps, loss), literal, atol=1e-14)


def test_descent_walks_downhill_and_repeats() -> None:
    samples = np.abs(np.random.default_rng(4).standard_normal((60, 5)))
    short = fit_descent(samples, 0.01, Descent("logistic", steps=5, rate=0.5), seed=0)
    long = fit_descent(samples, 0.01, Descent("logistic", steps=200, rate=0.5), seed=0)
    assert logistic(worst_margin(samples, long, 0.01)).mean() < logistic(worst_margin(samples, short, 0.01)).mean()
    batches = Descent("hinge", steps=50, rate=0.1, batch=16)
    np.testing.assert_array_equal(
        fit_descent(samples, 0.01, batches, seed=1), fit_descent(samples, 0.01, batches, seed=1)
    )
    assert (fit_descent(samples, 0.01, batches, seed=1) != fit_descent(samples, 0.01, batches, seed=2)).any()


def test_a_batch_of_all_samples_is_full_batch() -> None:
    samples = np.random.default_rng(5).standard_normal((20, 3))
    full = fit_descent(samples, 0.1, Descent(steps=10), seed=0)
    np.testing.assert_array_equal(full, fit_descent(samples, 0.1, Descent(steps=10, batch=20), seed=0))
