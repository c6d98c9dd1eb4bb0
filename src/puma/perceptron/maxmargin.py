"""The hard-margin student: the direction whose smallest worst-case margin is largest.

``max_w min_i (z_i.w - eps |w|_1) / |w|_2``, found as ``min |w|^2 / 2`` subject to worst-case margins of at
least 1, by the method of multipliers on top of the Newton solver. Weights ``a_i >= 0`` that sum to one prove
an upper bound, ``|soft(sum_i a_i z_i, eps)|_2``, for every student at once: the search ends when the margin
it found meets that bound, or when the bound is zero, which proves that no student separates the samples.
"""

from dataclasses import dataclass

import numpy as np

from puma.perceptron.newton import Array, minimise, soft_threshold, worst_margin


@dataclass(frozen=True)
class HardMarginLoss:
    """The augmented Lagrangian of ``margin >= 1``: ``s/2 max(1 + a/s - margin, 0)^2``."""

    multiplier: Array
    stiffness: float

    def value(self, margin: Array) -> Array:
        """Return the loss of every sample."""
        short = self._short(margin)
        return self.stiffness / 2 * short * short

    def slopes(self, margin: Array) -> tuple[Array, Array]:
        """Return minus the first derivative and the second derivative."""
        short = self._short(margin)
        return self.stiffness * short, np.where(short > 0, self.stiffness, 0.0)

    def _short(self, margin: Array) -> Array:
        return np.maximum(1.0 + self.multiplier / self.stiffness - margin, 0.0)


@dataclass(frozen=True)
class HardMargin:
    """The student, its worst-case margin and the bound that no student can pass.

    ``separable`` is False when the bound proves that every direction leaves some sample on the wrong side;
    the weights then mean nothing.
    """

    weights: Array
    margin: float
    bound: float
    separable: bool
    converged: bool


def fit_maxmargin(samples: Array, eps: float, *, tolerance: float = 1e-8, max_rounds: int = 60) -> HardMargin:
    """Find the largest worst-case margin of ``samples`` to relative accuracy ``tolerance``."""
    mean = samples.mean(axis=0)
    weights = best = mean / np.linalg.norm(mean)
    multiplier = np.zeros(len(samples))
    stiffness, shortfall = 1.0, np.inf
    margin, bound = -np.inf, np.inf
    for _ in range(max_rounds):
        found = minimise(
            samples,
            HardMarginLoss(multiplier, stiffness),
            eps=eps,
            ridge=1 / len(samples),
            start=weights,
            tolerance=1e-9,
            max_steps=30,
            precision=np.float64,
        )
        weights, multiplier = found.weights, found.pull
        bound = min(bound, margin_bound(samples, multiplier, eps))
        if bound <= 1e-9:
            return HardMargin(weights, -np.inf, 0.0, separable=False, converged=True)
        lowest = float(worst_margin(samples, weights, eps).min())
        reached = lowest / float(np.linalg.norm(weights))
        if reached > margin:
            margin, best = reached, weights
        if margin >= (1 - tolerance) * bound:
            return HardMargin(best, margin, bound, separable=True, converged=True)
        # stiffer when that would help: not when what is left comes from an inner search that ended early
        if 1 - lowest > max(0.1 * shortfall, 0.0 if found.converged else 1e-4):
            stiffness *= 10
        shortfall = 1 - lowest
    return HardMargin(best, margin, bound, separable=margin > 0, converged=False)


def margin_bound(samples: Array, multiplier: Array, eps: float) -> float:
    """Return the margin that no student can pass, proved by non-negative weights on the samples."""
    total = float(multiplier.sum())
    if total == 0.0:
        return np.inf
    return float(np.linalg.norm(soft_threshold(multiplier @ samples / total, eps)))
