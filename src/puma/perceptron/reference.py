"""A slow and independent way to train the logistic student, to check the fast one against.

The weights are split into positive parts, ``w = a - b`` with ``a, b >= 0``, which makes the L1 norm smooth,
and a general-purpose bounded minimiser does the rest.
"""

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from puma.perceptron.newton import Array


def fit_logistic_slowly(samples: Array, eps: float, *, ridge: float = 1e-5) -> Array:
    """Return the logistic student's weights by L-BFGS-B on the split problem."""
    dimension = samples.shape[1]

    def objective(parts: Array) -> tuple[float, Array]:
        weights = parts[:dimension] - parts[dimension:]
        margin = samples @ weights - eps * parts.sum()
        pull = expit(-margin)
        force = pull @ samples / len(samples)
        threshold = eps * pull.mean()
        value = np.logaddexp(0.0, -margin).mean() + ridge / 2 * weights @ weights
        slope = ridge * weights - force
        return float(value), np.concatenate([slope + threshold, -slope + threshold])

    answer = minimize(
        objective,
        np.full(2 * dimension, 1e-3),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, None)] * (2 * dimension),
        options={"maxiter": 20000, "maxfun": 40000, "ftol": 1e-15, "gtol": 1e-10, "maxcor": 30},
    )
    parts = np.asarray(answer.x)
    return parts[:dimension] - parts[dimension:]
