"""The student of the literal procedure: FGSM examples, then a gradient step, a finite number of times."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy.special import expit

from puma.errors import PumaError, unknown_name
from puma.perceptron.newton import Array

DescentLoss = Literal["logistic", "hinge"]


@dataclass(frozen=True)
class Descent:
    """Loss, number of steps, learning rate, and samples per step (0: all of them)."""

    loss: DescentLoss = "hinge"
    steps: int = 3000
    rate: float = 0.3
    batch: int = 0

    def __post_init__(self) -> None:
        if self.loss not in get_args(DescentLoss):
            raise unknown_name("loss", self.loss, list(get_args(DescentLoss)))
        if self.steps < 1:
            raise PumaError(f"gradient descent needs at least one step, got {self.steps}; change --steps.")
        if not self.rate > 0:
            raise PumaError(f"the learning rate must be positive, got {self.rate}; change --rate.")
        if self.batch < 0:
            raise PumaError(f"the batch must be 0 (all samples) or positive, got {self.batch}; change --batch.")


def pull_of(loss: DescentLoss, margin: Array) -> Array:
    """Return minus the derivative of a loss with respect to the margin."""
    if loss == "logistic":
        pull: Array = expit(-margin)
        return pull
    return (margin < 1).astype(np.float64)


def fit_descent(samples: Array, eps: float, config: Descent, seed: int) -> Array:
    """Train from zero weights on ``samples`` (rows ``y_i x_i``) and return the weights.

    The seed only matters for minibatches, which are drawn afresh, without replacement, in every pass.
    """
    weights = np.zeros(samples.shape[1])
    rng = np.random.default_rng([seed, 5])
    order, used = np.arange(len(samples)), 0
    for _ in range(config.steps):
        batch = samples
        if 0 < config.batch < len(samples):
            if used == 0:
                rng.shuffle(order)
            batch = samples[order[used : used + config.batch]]
            used = used + config.batch if used + config.batch < len(samples) else 0
        weights = weights - config.rate * adversarial_gradient(batch, weights, eps, config.loss)
    return weights


def adversarial_gradient(samples: Array, weights: Array, eps: float, loss: DescentLoss) -> Array:
    """Return the gradient of the mean loss on the FGSM examples of ``samples``, without forming them.

    For a linear student the attack moves every sample with a nonzero loss gradient by ``-eps sign(w)``.
    """
    margin = samples @ weights
    attacked = (pull_of(loss, margin) > 0).astype(np.float64)
    pull = pull_of(loss, margin - eps * np.abs(weights).sum() * attacked)
    moved: Array = pull @ samples - eps * np.sign(weights) * float(pull @ attacked)
    return -moved / len(samples)
