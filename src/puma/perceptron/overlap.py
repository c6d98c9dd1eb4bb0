"""How well a student agrees with its teacher."""

from dataclasses import dataclass

import numpy as np

from puma.perceptron.newton import Array


@dataclass(frozen=True)
class Overlap:
    """``error = 1 - cos(student, teacher)`` and ``angle``, their angle in units of pi.

    The angle is the probability that student and teacher label a fresh sample differently.
    """

    error: float
    angle: float


def overlap(weights: Array, teacher: Array) -> Overlap:
    """Compare a student with a unit teacher; no cancellation at small angles. Zero weights know nothing."""
    along = float(weights @ teacher)
    across = float(np.linalg.norm(weights - along * teacher))
    angle = float(np.arctan2(across, along)) if across or along else np.pi / 2
    return Overlap(error=2 * float(np.sin(angle / 2)) ** 2, angle=angle / np.pi)
