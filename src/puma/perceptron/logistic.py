"""The converged student: regularised logistic regression under the worst-case attack.

``argmin_w mean_i log(1 + exp(-(z_i.w - eps |w|_1))) + ridge/2 |w|_2^2``. For a linear student the FGSM
perturbation is the worst one in the L_inf ball, so this is the point that adversarial training with FGSM
reaches when it is run to the end.
"""

import numpy as np
from scipy.special import expit

from puma.perceptron.newton import Array, Solution, minimise


class LogisticLoss:
    """``log(1 + exp(-margin))``."""

    def value(self, margin: Array) -> Array:
        """Return the loss of every sample."""
        return np.logaddexp(0.0, -margin)

    def slopes(self, margin: Array) -> tuple[Array, Array]:
        """Return minus the first derivative and the second derivative."""
        pull: Array = expit(-margin)
        return pull, pull * (1.0 - pull)


def fit_logistic(
    samples: Array, eps: float, *, ridge: float = 1e-5, start: Array | None = None, tolerance: float = 1e-7
) -> Solution:
    """Train the logistic student on ``samples`` (rows ``y_i x_i``) against attacks of radius ``eps``.

    The start only decides how long it takes.
    """
    if start is None:
        start = clean_start(samples, ridge=ridge)
    return minimise(samples, LogisticLoss(), eps=eps, ridge=ridge, start=start, tolerance=tolerance)


def clean_start(samples: Array, *, ridge: float = 1e-5) -> Array:
    """Return roughly the student without attack: a good start for every attack strength."""
    mean = samples.mean(axis=0)
    mean /= np.linalg.norm(mean)
    return minimise(samples, LogisticLoss(), eps=0.0, ridge=ridge, start=mean, tolerance=1e-2).weights
