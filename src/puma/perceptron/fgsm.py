"""The fast gradient sign method: one step of size ``eps`` in every input coordinate, up the loss."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def fgsm(inputs: Array, eps: float, loss_gradient: Callable[[Array], Array]) -> Array:
    """Return ``inputs + eps * sign(loss_gradient(inputs))``.

    ``loss_gradient`` gives the gradient of each input's loss with respect to that input, whatever the
    student; where it is zero the input stays as it is.
    """
    return inputs + eps * np.sign(loss_gradient(inputs))


def linear_loss_gradient(weights: Array, labels: Array, pull: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return the input gradient of ``loss(label * weights.x)`` for a linear student.

    ``pull`` is minus the derivative of the loss with respect to the margin.
    """

    def gradient(inputs: Array) -> Array:
        strength = pull(labels * (inputs @ weights)) * labels
        return -strength[:, None] * weights

    return gradient
