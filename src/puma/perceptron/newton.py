"""Newton's method for adversarially trained linear students, with a proof of how good the answer is.

The objective is ``P(w) = mean_i loss(m_i) + ridge/2 |w|_2^2`` with the worst-case margins
``m_i = z_i.w - eps |w|_1`` of samples ``z_i = y_i x_i`` under an L_inf attack of radius ``eps``. On a face
of an orthant (fixed signs, some weights zero) it is smooth: every step minimises the quadratic model over
that face exactly, by pivoting, and looks along the line. Three things make it fast: samples with a
negligible curvature are left out of the Hessian, the Hessian is built in single precision (the gradient is
not, so only the rate of convergence feels it), and the line search is exact while far from the optimum.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dposv

from puma.perceptron.problem import Array

# samples whose curvature is below this part of the largest are left out of the Hessian
_NEGLIGIBLE_CURVATURE = 1e-3
# the line search is exact until the certified distance falls to this part of |w|
_NEAR = 1e-2


class MarginLoss(Protocol):
    """A convex decreasing function of the margin, one value per sample."""

    def value(self, margin: Array) -> Array:
        """Return the loss of every sample."""
        ...

    def slopes(self, margin: Array) -> tuple[Array, Array]:
        """Return minus the first derivative (the pull) and the second derivative of every sample's loss."""
        ...


@dataclass(frozen=True)
class NewtonSolution:
    """Weights and a certificate: ``gap`` bounds ``P(weights) - min P``.

    The objective is ``ridge``-strongly convex, so ``distance = sqrt(2 gap / ridge)`` bounds how far the
    weights are from the optimal ones.
    """

    weights: Array
    pull: Array
    gap: float
    distance: float
    steps: int
    converged: bool


def minimise_objective(
    samples: Array,
    loss: MarginLoss,
    *,
    eps: float,
    ridge: float,
    start: Array,
    tolerance: float = 1e-7,
    max_steps: int = 200,
    precision: type[np.floating] = np.float32,
) -> NewtonSolution:
    """Minimise ``P`` from ``start`` until the certified distance is below ``tolerance * |w|``."""
    rough = samples.astype(precision, copy=False)
    weights = start.copy()
    margin = worst_margin(samples, weights, eps)
    for step in range(max_steps + 1):
        pull, curvature = loss.slopes(margin)
        force = pull @ samples / len(samples)
        threshold = eps * float(pull.mean())
        gap, target = duality_gap(weights, force, threshold, ridge)
        distance, size = float(np.sqrt(2 * gap / ridge)), float(np.linalg.norm(weights))
        converged = distance <= tolerance * size
        if converged or step == max_steps:
            break
        signs = np.sign(np.where(weights == 0, target, weights)) if eps else np.zeros_like(weights)
        face = np.flatnonzero(signs) if eps else np.arange(len(weights))
        gradient = (ridge * weights - force + threshold * signs)[face]
        hessian = face_hessian(rough, curvature, eps * signs, face)
        hessian[np.diag_indices(len(face))] += ridge
        direction = np.zeros_like(weights)
        direction[face] = face_step(hessian, gradient, weights[face], signs[face])
        line = NewtonLine.along(samples, margin, weights, direction, eps * signs, ridge)
        longest = first_zero(weights[face], direction[face]) if eps else np.inf
        length = line.exact(loss, longest) if distance > _NEAR * size else 1.0
        length = line.sufficient(loss, length, float(gradient @ direction[face]))
        if length == 0.0:
            break
        moved = weights + length * direction
        weights = np.where(moved * signs < 0, 0.0, moved)
        margin = margin + length * line.change
    return NewtonSolution(weights, pull, gap, distance, step, converged)


def worst_margin(samples: Array, weights: Array, eps: float) -> Array:
    """Return every sample's margin after the strongest attack of L_inf radius ``eps``."""
    margin: Array = samples @ weights
    return margin - eps * np.abs(weights).sum() if eps else margin


def soft_threshold(values: Array, threshold: float) -> Array:
    """Shrink every value towards zero by ``threshold``."""
    return np.sign(values) * np.maximum(np.abs(values) - threshold, 0.0)


def duality_gap(weights: Array, force: Array, threshold: float, ridge: float) -> tuple[float, Array]:
    """Return the Fenchel gap of the pair (weights, pull) and the weights that the pull asks for.

    ``force`` is the mean of ``pull_i z_i`` and ``threshold`` is ``eps`` times the mean pull. With
    ``c = clip(force, -threshold, threshold)`` and ``v = (force - c) / ridge`` the gap is
    ``ridge/2 |w - v|^2 + sum_j (threshold |w_j| - c_j w_j)``: a sum of non-negative terms, so rounding does
    not spoil small gaps.
    """
    inner = np.clip(force, -threshold, threshold)
    target = (force - inner) / ridge
    difference = weights - target
    slack = threshold * np.abs(weights) - inner * weights
    return float(ridge / 2 * difference @ difference + slack.sum()), target


def face_hessian(samples: NDArray[np.floating], curvature: Array, shift: Array, face: NDArray[np.intp]) -> Array:
    """Return ``mean_i curvature_i (z_i - shift)(z_i - shift)^T`` over the samples that matter, on a face."""
    active = np.flatnonzero(curvature > _NEGLIGIBLE_CURVATURE * curvature.max())
    rows = samples[active] if len(face) == samples.shape[1] else samples[np.ix_(active, face)]
    if shift.any():
        rows -= shift[face].astype(rows.dtype)
    rows *= np.sqrt(curvature[active] / len(samples)).astype(rows.dtype)[:, None]
    return (rows.T @ rows).astype(np.float64)


def face_step(hessian: Array, gradient: Array, weights: Array, signs: Array) -> Array:
    """Minimise ``gradient.d + d.hessian.d / 2`` over ``d`` with ``signs * (weights + d) >= 0``.

    A sign of zero leaves its variable unbounded. Where the pivoting does not settle, the Hessian is damped
    until it does: the answer is then that of a more careful model, and still leads downhill.
    """
    step = pivot_blocks(hessian, gradient, weights, signs)
    damping = 1e-3 * float(np.diag(hessian).mean())
    while step is None:
        step = pivot_blocks(hessian + damping * np.eye(len(weights)), gradient, weights, signs)
        damping *= 10
    return step


def pivot_blocks(hessian: Array, gradient: Array, weights: Array, signs: Array) -> Array | None:
    """Block principal pivoting: all variables that violate their condition change sides at once.

    Returns None when the number of violations has not fallen three times in a row, or when rounding has
    made the Hessian indefinite.
    """
    free = np.ones(len(weights), dtype=bool)
    fewest, patience = len(weights) + 1, 3
    while patience > 0:
        step = np.where(free, 0.0, -weights)
        inside = np.flatnonzero(free)
        whole = len(inside) == len(weights)
        # symmetric, so its transpose is the same matrix in the order that LAPACK wants
        block = hessian if whole else hessian[np.ix_(inside, inside)]
        right = gradient if whole else (gradient + hessian @ step)[inside]
        if len(inside) > 0:
            _, solution, info = dposv(block.T, right, lower=1)
            if info != 0:
                return None
            step[inside] = -solution
        leave = free & (signs * (weights + step) < 0)
        enter = ~free & (signs * (gradient + hessian @ step) < 0)
        wrong = leave | enter
        count = int(wrong.sum())
        if count == 0:
            return step
        fewest, patience = (count, 3) if count < fewest else (fewest, patience - 1)
        free ^= wrong
    return None


def first_zero(weights: Array, direction: Array) -> float:
    """Return the longest step, at least 1, before a weight changes sign."""
    towards = weights * direction < 0
    if not towards.any():
        return np.inf
    return max(1.0, float((weights[towards] / -direction[towards]).min()))


@dataclass(frozen=True)
class NewtonLine:
    """The objective along a direction within one orthant, where margins are linear in the step."""

    margin: Array
    change: Array
    ridge: float
    norm_square: float
    overlap: float
    direction_square: float

    @classmethod
    def along(
        cls, samples: Array, margin: Array, weights: Array, direction: Array, shift: Array, ridge: float
    ) -> "NewtonLine":
        """Start at ``weights`` with their margins; ``shift`` is ``eps`` times the signs of the orthant."""
        change = samples @ direction - shift @ direction
        squares = (weights @ weights, weights @ direction, direction @ direction)
        return cls(margin, change, ridge, *map(float, squares))

    def value(self, loss: MarginLoss, length: float) -> float:
        """Return the objective after a step of this length."""
        square = self.norm_square + length * (2 * self.overlap + length * self.direction_square)
        return float(loss.value(self.margin + length * self.change).mean()) + self.ridge / 2 * square

    def exact(self, loss: MarginLoss, longest: float) -> float:
        """Return the length that minimises the objective, by a few guarded Newton steps in one dimension."""
        length = 1.0
        for _ in range(4):
            pull, curvature = loss.slopes(self.margin + length * self.change)
            first = -float(np.mean(pull * self.change))
            first += self.ridge * (self.overlap + length * self.direction_square)
            second = float(np.mean(curvature * self.change**2)) + self.ridge * self.direction_square
            length = min(max(length - first / second, length / 3), 3 * length, longest)
        return length

    def sufficient(self, loss: MarginLoss, length: float, slope: float) -> float:
        """Halve the length until the objective falls enough; 0 when it cannot fall any more."""
        begin = self.value(loss, 0.0)
        rounding = 4 * float(np.finfo(float).eps) * abs(begin)
        while length > 1e-10:
            if self.value(loss, length) <= begin + 1e-4 * length * slope + rounding:
                return length
            length /= 2
        return 0.0
