"""What the logistic student reaches in high dimension, separable samples or not.

Split the weights into ``r`` along the teacher and ``q`` across it. Gordon's comparison replaces the training
by ``min_{r, q, tau} max_mu E[M(m)] - mu B / (2 alpha) + ridge/2 (r^2 + q^2)`` with ``m = r u + q h - eps L``
and ``M(m) = min_t log(1 + exp(-t)) + mu/2 (t - m)^2``: every training margin is lifted from ``m`` to ``t``,
at a price. ``L`` and ``B`` are the L1 norm and the strength of the free coordinates, as for the hard margin
but not normalised. With ``p = mu (t - m)``, the pull of a sample, the four conditions are averages of ``p``,
``p^2``, ``p u`` and ``p h``. Given ``y``, the component of ``(u, h)`` along ``(r, q)``, those are closed
form: one integral is left.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, ndtr

from puma.perceptron.ensemble import NO_OVERLAP, Coordinates, Ensemble, find_root, follow
from puma.perceptron.newton import Array

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_FIRST_ALPHA = 0.3
_FIRST_RIDGE = 10.0
_RANGE = (-9.0, 12.0)


@dataclass(frozen=True)
class LogisticTheory:
    """The equations for one ensemble; a state is ``(log |w|, log angle, log mu, log tau)``."""

    ensemble: Ensemble
    ridge: float

    def begin(self, alpha: float) -> tuple[float, Array] | None:
        """Solve at a strong ridge, where every pull is one half, and continue to the one that is wanted."""
        alpha = min(alpha, _FIRST_ALPHA)
        length = 1 / (2 * np.sqrt(alpha) * _FIRST_RIDGE)
        threshold = np.sqrt(alpha) * self.ensemble.attack
        guess = np.log([length, 1.3, np.sqrt(alpha) / (2 * length), threshold or 1.0])
        state = self.solve(alpha, _FIRST_RIDGE, guess)
        if state is None:
            return None

        def at_ridge(ridge: float, near: Array) -> Array | None:
            return self.solve(alpha, ridge, near)

        state = follow(at_ridge, _FIRST_RIDGE, state, self.ridge, longest=1.2)
        return None if state is None else (alpha, state)

    def advance(self, alpha: float, state: Array, target: float) -> Array | None:
        """Continue a solution to a larger ``alpha``."""

        def at_alpha(ahead: float, near: Array) -> Array | None:
            return self.solve(ahead, self.ridge, near)

        return follow(at_alpha, alpha, state, target, longest=0.2)

    def separable(self, state: Array) -> bool:
        """Return True: the logistic student exists for all samples."""
        return bool(np.isfinite(state).all())

    def norm(self, state: Array) -> float:
        """Return the length of the weights."""
        return float(np.exp(state[0]))

    def solve(self, alpha: float, ridge: float, guess: Array) -> Array | None:
        """Solve near a guess; None when that fails. Zero overlap is treated as for the hard margin."""

        def equations(state: Array) -> Array:
            return self.residuals(alpha, ridge, state)

        free = [0, 1, 2, 3] if self.ensemble.eps else [0, 1, 2]
        state = find_root(equations, guess, free, 1e-7)
        if state is not None and state[1] <= NO_OVERLAP:
            return state
        if not self.ensemble.eps or self.ensemble.dense:
            return None
        pinned = find_root(equations, np.array([guess[0], NO_OVERLAP, *guess[2:]]), [0, 2, 3], 1e-7)
        return pinned if pinned is not None and equations(pinned)[1] >= 0 else None

    def residuals(self, alpha: float, ridge: float, state: Array) -> Array:
        """Return the derivatives by ``mu``, ``r``, ``q`` and ``tau``, scaled; zero at the solution."""
        length, angle, mu = np.exp(state[:3])
        cos, sin = np.cos(angle), np.sin(angle)
        along, across = length * cos, length * sin
        free = Coordinates.at(self.ensemble, state[3])
        spread = float(np.sqrt(self.ensemble.dimension)) * free.rho
        if self.ensemble.dense:
            norm, norm_along, norm_across = length * spread, cos * spread, sin * spread
            strength = (length * free.gain) ** 2 - along**2
            strength_along, scale = along * (free.gain**2 - 1), length
        else:
            norm, norm_along, norm_across = along + across * spread, 1.0, spread
            strength, strength_along, scale = (across * free.gain) ** 2, 0.0, across
        pull, square, pull_u, pull_h = self.averages(length, angle, self.ensemble.eps * norm, mu)
        attack = self.ensemble.eps * pull
        return np.array(
            [
                alpha * square / (mu * mu * strength) - 1,
                (attack * norm_along - pull_u - mu * strength_along / alpha + ridge * along) / pull,
                (attack * norm_across - pull_h - mu * across * free.gain**2 / alpha + ridge * across) / pull,
                self.ensemble.attack - mu * scale * free.gain * free.tau / (alpha * pull),
            ]
        )

    def averages(self, length: float, angle: float, shift: float, mu: float) -> tuple[float, float, float, float]:
        """Return ``E[p]``, ``E[p^2]``, ``E[p u]`` and ``E[p h]`` over the kept samples."""
        cos, sin = np.cos(angle), np.sin(angle)
        nodes, weights = self.rule(length, cos, sin, shift, mu)
        low, high = (self.ensemble.low - cos * nodes) / sin, (self.ensemble.high - cos * nodes) / sin
        inside = np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))
        edge = (np.exp(-low * low / 2) - np.exp(-high * high / 2)) / np.sqrt(2 * np.pi)
        pull = lifted_pull(length * nodes - shift, mu)
        weighted = weights * pull
        return (
            weighted @ inside,
            (weighted * pull) @ inside,
            weighted @ (cos * nodes * inside + sin * edge),
            weighted @ (sin * nodes * inside - cos * edge),
        )

    def rule(self, length: float, cos: float, sin: float, shift: float, mu: float) -> tuple[Array, Array]:
        """Return nodes and weights over ``y``, with knots where the density or the pull bends."""
        edges = [self.ensemble.low, self.ensemble.high] if cos > 1e-9 else []
        knots = [(edge + side * sin) / cos for edge in edges for side in (-8, -2.5, 2.5, 8)]
        knots += [(m + shift) / length for m in (-1 / mu - 12, -1 / mu, -12, -4, 0, 4, 12, 40)]
        ends = np.unique(np.clip([*_RANGE, *knots], *_RANGE))
        half = (ends[1:] - ends[:-1])[:, None] / 2
        nodes = ((ends[1:] + ends[:-1])[:, None] / 2 + half * _NODES).ravel()
        density = np.exp(-nodes * nodes / 2) / np.sqrt(2 * np.pi)
        return nodes, (half * _WEIGHTS).ravel() * 2 * density / self.ensemble.mass


def lifted_pull(margin: Array, mu: float) -> Array:
    """Return ``p = expit(-t)`` where ``t`` solves ``mu (t - margin) = expit(-t)``.

    Newton's method, from the side on which it is monotone: the equation is concave for ``t > 0`` only.
    """
    lifted = np.where(margin > -0.5 / mu, np.maximum(margin, 0.0), np.minimum(margin + 1 / mu, 0.0))
    for _ in range(60):
        pull = expit(-lifted)
        step = (lifted - pull / mu - margin) / (1 + pull * (1 - pull) / mu)
        lifted = lifted - step
        if np.abs(step).max() < 1e-12 * (1 + np.abs(lifted).max()):
            break
    answer: Array = expit(-lifted)
    return answer
