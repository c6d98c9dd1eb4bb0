"""What the hard-margin student reaches in high dimension: Gordon's comparison, replica-symmetric.

With ``R`` the overlap of student and teacher, ``s = sqrt(1 - R^2)``, ``u`` the teacher margin of a kept
sample and ``h ~ N(0, 1)``, the student that maximises the worst-case margin ``kappa`` obeys
``alpha E[(kappa + eps L - R u - s h)_+^2] = B``. ``L`` is its L1 norm and ``B`` the squared strength that its
free coordinates gather against the samples:

- teacher on an axis: ``L = R + s sqrt(K) rho``, ``B = s^2 A^2``;
- dense teacher (the threshold acts on signal and noise alike): ``L = sqrt(K) rho``, ``B = A^2 - R^2``.

``kappa`` is maximal over ``R`` and ``tau``. The integral over ``h`` and both stationarity conditions are
closed form; the one over ``u`` is a Gauss-Legendre rule with knots where the integrand bends.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from puma.perceptron.ensemble import NO_OVERLAP, Coordinates, Ensemble, find_root, follow
from puma.perceptron.newton import Array

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(40)
_FIRST_ALPHA = 0.02


@dataclass(frozen=True)
class HardMarginTheory:
    """The equations for one ensemble; a state is ``((kappa + eps L) / s, log angle, log tau)``."""

    ensemble: Ensemble

    def begin(self, alpha: float) -> tuple[float, Array] | None:
        """Solve for few samples, where they are nearly orthogonal and the answer is nearly known."""
        alpha = min(alpha, _FIRST_ALPHA)
        nodes, weights = self.rule(0.0, 1.0)
        overlap = min(np.sqrt(alpha) * float(weights @ nodes), 0.9)
        threshold = np.sqrt(alpha) * self.ensemble.attack
        guess = np.array([1 / np.sqrt(alpha), np.log(np.arccos(overlap)), np.log(threshold or 1.0)])
        state = self.solve(alpha, guess)
        return None if state is None else (alpha, state)

    def advance(self, alpha: float, state: Array, target: float) -> Array | None:
        """Continue a solution to a larger ``alpha``, or to where the samples stop being separable."""
        return follow(self.solve, alpha, state, target, longest=0.25, valid=self.separable)

    def separable(self, state: Array) -> bool:
        """Whether the margin is positive; it falls as ``alpha`` grows."""
        return self.margin(state) > 0

    def norm(self, state: Array) -> float:
        """Return the length of the weights that put the worst-case margins at 1."""
        return 1 / self.margin(state)

    def margin(self, state: Array) -> float:
        """Return ``kappa``."""
        angle = float(np.exp(state[1]))
        spread = float(np.sqrt(self.ensemble.dimension)) * Coordinates.at(self.ensemble, state[2]).rho
        length = spread if self.ensemble.dense else np.cos(angle) + np.sin(angle) * spread
        return float(np.sin(angle) * state[0] - self.ensemble.eps * length)

    def solve(self, alpha: float, guess: Array) -> Array | None:
        """Solve near a guess, as long as the samples are separable; None when that fails.

        The penalty on the teacher's own coordinate has a kink at zero overlap: a root beyond it means that
        the overlap is exactly zero.
        """

        def equations(state: Array) -> Array:
            return self.residuals(alpha, state)

        state = find_root(equations, guess, [0, 1, 2] if self.ensemble.eps else [0, 1], 1e-8)
        if state is not None and state[1] <= NO_OVERLAP:
            return state
        if not self.ensemble.eps or self.ensemble.dense:
            return None
        pinned = find_root(equations, np.array([guess[0], NO_OVERLAP, guess[2]]), [0, 2], 1e-8)
        return pinned if pinned is not None and equations(pinned)[1] >= 0 else None

    def residuals(self, alpha: float, state: Array) -> Array:
        """Return the constraint and the derivatives by ``R`` and ``tau``; zero at the solution."""
        height, angle = state[0], np.exp(state[1])
        overlap, rest = np.cos(angle), np.sin(angle)
        tilt = overlap / rest if abs(overlap) > 1e-12 else 1e-12
        nodes, weights = self.rule(height / tilt, 1 / abs(tilt))
        short = height - tilt * nodes
        below, density = ndtr(short), np.exp(-short * short / 2) / np.sqrt(2 * np.pi)
        linear = short * below + density
        zeroth, first, first_u = weights @ below, weights @ linear, weights @ (nodes * linear)
        second = weights @ ((1 + short * short) * below + short * density)
        free = Coordinates.at(self.ensemble, state[2])
        if self.ensemble.dense:
            budget = 1 - (1 - free.gain) * (1 + free.gain) / rest**2
            slope, pressure = overlap, free.gain * free.tau / rest
        else:
            budget, pressure = free.gain**2, free.gain * free.tau
            push = self.ensemble.eps * rest - overlap * self.ensemble.attack * free.rho
            slope = overlap * free.gain**2 + alpha * first * push
        return np.array(
            [
                alpha * second - budget,
                slope - alpha * (rest * first_u + overlap * zeroth),
                alpha * self.ensemble.attack * first - pressure,
            ]
        )

    def rule(self, bend: float, width: float) -> tuple[Array, Array]:
        """Return nodes and weights for averages over ``u`` of functions that bend near ``bend``."""
        low, high = self.ensemble.low, self.ensemble.high
        ends = (min(max(bend + side * width, low), high) for side in (-8, 8))
        knots = np.array(sorted({low, *ends, high}))
        half = (knots[1:] - knots[:-1])[:, None] / 2
        nodes = ((knots[:-1] + knots[1:])[:, None] / 2 + half * _NODES).ravel()
        density = np.sqrt(2 / np.pi) * np.exp(-nodes * nodes / 2) / self.ensemble.mass
        return nodes, (half * _WEIGHTS).ravel() * density
