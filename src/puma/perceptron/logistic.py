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

    The start only decides how long it takes; the default is the student without attack, and for that one
    the mean sample at length 1.
    """
    if start is None and eps:
        start = fit_logistic(samples, 0.0, ridge=ridge, tolerance=tolerance).weights
    elif start is None:
        mean = samples.mean(axis=0)
        start = mean / np.linalg.norm(mean)
    return minimise(samples, LogisticLoss(), eps=eps, ridge=ridge, start=start, tolerance=tolerance)
