"""The equations of both theories in high dimension: Gordon's comparison, replica-symmetric.

Write a student as ``R`` along the teacher and ``s = sqrt(1 - R^2)`` across, ``u`` for the teacher margin of a
kept sample and ``h ~ N(0, 1)``. The free coordinates of a student under an L_inf attack are a soft-thresholded
Gaussian, ``S = soft(g, tau)`` with ``g ~ N(0, 1)``. They enter through ``rho = E|S| / sqrt(E S^2)``, which sets
the L1 norm ``L``, and ``A = E[g S] / sqrt(E S^2)``, how much of the noise they pick up (``dA = tau drho``),
which sets the squared strength ``B`` that they gather against the samples:

- teacher on an axis: ``L = R + s sqrt(K) rho``, ``B = s^2 A^2``;
- dense teacher (the threshold acts on signal and noise alike): ``L = sqrt(K) rho``, ``B = A^2 - R^2``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import root
from scipy.special import erfc, expit, ndtr

from puma.perceptron.problem import Array, PoolPruning, TeacherKind, kept_range, mean_l1_norm

NO_OVERLAP = float(np.log(np.pi / 2))  # log of a right angle
_LONGEST_TURN = 0.5  # in log angle: a longer one may have jumped to another stationary point
_SHORTEST_STEP = 1e-6  # in the logarithm of the parameter: a solution that needs less is lost
_WIDEST_RANGE = 9.0  # of margins, beyond which a normal density is below 1e-17 of its peak
# Gauss-Legendre rules between knots: these many nodes leave the round-off of the root finder
_HARD_NODES, _HARD_WEIGHTS = np.polynomial.legendre.leggauss(40)
_SOFT_NODES, _SOFT_WEIGHTS = np.polynomial.legendre.leggauss(12)
_FIRST_ALPHA_HARD = 0.02  # so few samples are nearly orthogonal, and the answer is nearly known
_FIRST_ALPHA_SOFT = 0.3  # with a ridge so strong that every pull is one half, the answer is nearly known
_FIRST_RIDGE = 10.0
_RANGE = (-9.0, 12.0)  # of the component of (u, h) along the student

Solve = Callable[[float, Array], Array | None]


@dataclass(frozen=True)
class Ensemble:
    """Kept margins ``u``: half-normal from ``low`` to ``high``, which hold ``mass`` of it; the geometry."""

    low: float
    high: float
    mass: float
    eps: float
    dimension: int
    dense: bool

    @classmethod
    def of(cls, pruning: PoolPruning, eps: float, dimension: int, teacher: TeacherKind) -> "Ensemble":
        """Describe the samples that a strategy keeps for students under attack ``eps``."""
        floor = eps * mean_l1_norm(teacher, dimension) if pruning.filtered else 0.0
        low, high = kept_range(pruning.strategy, pruning.keep, floor)
        mass = pruning.keep * float(erfc(floor / np.sqrt(2)))
        return cls(low, min(high, low + _WIDEST_RANGE), mass, eps, dimension, teacher == "dense")

    @property
    def attack(self) -> float:
        """``eps sqrt(K)``: the attack on the free coordinates of a student of unit length."""
        return self.eps * float(np.sqrt(self.dimension))


@dataclass(frozen=True)
class FreeCoordinates:
    """``rho`` and ``gain`` (A) of the free coordinates at threshold ``tau``."""

    tau: float
    rho: float
    gain: float

    @classmethod
    def at(cls, ensemble: Ensemble, log_tau: float) -> "FreeCoordinates":
        """Return the moments at a threshold; without an attack there is none."""
        if not ensemble.eps:
            return cls(0.0, float(np.sqrt(2 / np.pi)), 1.0)
        # numpy scalars: where the search wanders off they become inf or NaN, Python's would raise
        tau = np.exp(np.float64(log_tau))
        tail, density = ndtr(-tau), np.exp(-tau * tau / 2) / np.sqrt(2 * np.pi)
        size = np.sqrt(2 * ((1 + tau * tau) * tail - tau * density))
        return cls(tau, 2 * (density - tau * tail) / size, 2 * tail / size)


def find_root(residuals: Callable[[Array], Array], guess: Array, free: list[int], tolerance: float) -> Array | None:
    """Solve for the free entries of a state near a guess; None when that fails."""
    state = guess.copy()

    def equations(values: Array) -> Array:
        state[free] = values
        return residuals(state)[free]

    with np.errstate(all="ignore"):
        state[free] = root(equations, guess[free], method="hybr", options={"xtol": 1e-9}).x
        remaining = float(np.abs(residuals(state)[free]).max())
    return state if remaining < tolerance else None


def find_state(residuals: Callable[[Array], Array], ensemble: Ensemble, guess: Array, tolerance: float) -> Array | None:
    """Solve for a state near a guess; entry 1 is the log angle to the teacher, the last one the log threshold.

    The penalty on the teacher's own coordinate has a kink at zero overlap: a root beyond it means that the
    overlap is exactly zero. Without an attack there is no threshold.
    """
    free = list(range(len(guess) if ensemble.eps else len(guess) - 1))
    state = find_root(residuals, guess, free, tolerance)
    if state is not None and state[1] <= NO_OVERLAP:
        return state
    if not ensemble.eps or ensemble.dense:
        return None
    pinned = find_root(residuals, np.array([guess[0], NO_OVERLAP, *guess[2:]]), [0, *free[2:]], tolerance)
    return pinned if pinned is not None and residuals(pinned)[1] >= 0 else None


def place_nodes(knots: Array, nodes: Array, weights: Array) -> tuple[Array, Array]:
    """Return the nodes and weights of a quadrature rule on [-1, 1], laid between neighbouring knots."""
    half = (knots[1:] - knots[:-1])[:, None] / 2
    return ((knots[1:] + knots[:-1])[:, None] / 2 + half * nodes).ravel(), (half * weights).ravel()


def follow_solution(
    solve: Solve,
    parameter: float,
    state: Array,
    target: float,
    *,
    longest: float,
    valid: Callable[[Array], bool] = lambda _: True,
) -> Array | None:
    """Continue a solution from one value of a parameter to another in steps of its logarithm.

    Steps shrink where a solution is lost or turns quickly; entry 1 of a state is the log angle between
    student and teacher. Stops early at a state that is not ``valid``; None when the solution was lost.
    """
    step, direction = longest, np.sign(np.log(target / parameter))
    while parameter != target and valid(state):
        far = abs(np.log(target / parameter)) > step
        ahead = parameter * float(np.exp(direction * step)) if far else target
        found = solve(ahead, state)
        if found is None or abs(found[1] - state[1]) > _LONGEST_TURN:
            step /= 2
            if step < _SHORTEST_STEP:
                return None
            continue
        parameter, state, step = ahead, found, min(2 * step, longest)
    return state


@dataclass(frozen=True)
class HardMarginTheory:
    """The student with the largest worst-case margin ``kappa``: ``alpha E[(kappa + eps L - R u - s h)_+^2] = B``.

    ``kappa`` is maximal over ``R`` and ``tau``. The integral over ``h`` and both stationarity conditions are
    closed form; the one over ``u`` is a Gauss-Legendre rule with knots where the integrand bends.
    A state is ``((kappa + eps L) / s, log angle, log tau)``.
    """

    ensemble: Ensemble

    def begin(self, alpha: float) -> tuple[float, Array] | None:
        """Solve for few samples, where they are nearly orthogonal and the answer is nearly known."""
        alpha = min(alpha, _FIRST_ALPHA_HARD)
        nodes, weights = self.rule(0.0, 1.0)
        overlap = min(np.sqrt(alpha) * float(weights @ nodes), 0.9)
        threshold = np.sqrt(alpha) * self.ensemble.attack
        guess = np.array([1 / np.sqrt(alpha), np.log(np.arccos(overlap)), np.log(threshold or 1.0)])
        state = self.solve(alpha, guess)
        return None if state is None else (alpha, state)

    def advance(self, alpha: float, state: Array, target: float) -> Array | None:
        """Continue a solution to a larger ``alpha``, or to where the samples stop being separable."""
        return follow_solution(self.solve, alpha, state, target, longest=0.25, valid=self.separable)

    def separable(self, state: Array) -> bool:
        """Whether the margin is positive; it falls as ``alpha`` grows."""
        return self.margin(state) > 0

    def norm(self, state: Array) -> float:
        """Return the length of the weights that put the worst-case margins at 1."""
        return 1 / self.margin(state)

    def margin(self, state: Array) -> float:
        """Return ``kappa``."""
        angle = float(np.exp(state[1]))
        spread = float(np.sqrt(self.ensemble.dimension)) * FreeCoordinates.at(self.ensemble, state[2]).rho
        length = spread if self.ensemble.dense else np.cos(angle) + np.sin(angle) * spread
        return float(np.sin(angle) * state[0] - self.ensemble.eps * length)

    def solve(self, alpha: float, guess: Array) -> Array | None:
        """Solve near a guess, as long as the samples are separable; None when that fails."""
        return find_state(lambda state: self.residuals(alpha, state), self.ensemble, guess, 1e-8)

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
        free = FreeCoordinates.at(self.ensemble, state[2])
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
        nodes, weights = place_nodes(knots, _HARD_NODES, _HARD_WEIGHTS)
        return nodes, weights * (np.sqrt(2 / np.pi) * np.exp(-nodes * nodes / 2) / self.ensemble.mass)


@dataclass(frozen=True)
class LogisticTheory:
    """The logistic student, separable samples or not.

    Split its weights into ``r`` along the teacher and ``q`` across it. The comparison replaces the training by
    ``min_{r, q, tau} max_mu E[M(m)] - mu B / (2 alpha) + ridge/2 (r^2 + q^2)`` with ``m = r u + q h - eps L`` and
    ``M(m) = min_t log(1 + exp(-t)) + mu/2 (t - m)^2``: every training margin is lifted from ``m`` to ``t``, at a
    price. ``L`` and ``B`` are not normalised here. With ``p = mu (t - m)``, the pull of a sample, the four
    conditions are averages of ``p``, ``p^2``, ``p u`` and ``p h``. Given ``y``, the component of ``(u, h)`` along
    ``(r, q)``, those are closed form: one integral is left. A state is ``(log |w|, log angle, log mu, log tau)``.
    """

    ensemble: Ensemble
    ridge: float

    def begin(self, alpha: float) -> tuple[float, Array] | None:
        """Solve at a strong ridge, where every pull is one half, and continue to the one that is wanted."""
        alpha = min(alpha, _FIRST_ALPHA_SOFT)
        length = 1 / (2 * np.sqrt(alpha) * _FIRST_RIDGE)
        threshold = np.sqrt(alpha) * self.ensemble.attack
        guess = np.log([length, 1.3, np.sqrt(alpha) / (2 * length), threshold or 1.0])
        state = self.solve(alpha, _FIRST_RIDGE, guess)
        if state is None:
            return None

        def at_ridge(ridge: float, near: Array) -> Array | None:
            return self.solve(alpha, ridge, near)

        state = follow_solution(at_ridge, _FIRST_RIDGE, state, self.ridge, longest=1.2)
        return None if state is None else (alpha, state)

    def advance(self, alpha: float, state: Array, target: float) -> Array | None:
        """Continue a solution to a larger ``alpha``."""

        def at_alpha(ahead: float, near: Array) -> Array | None:
            return self.solve(ahead, self.ridge, near)

        return follow_solution(at_alpha, alpha, state, target, longest=0.2)

    def separable(self, state: Array) -> bool:
        """Return True: the logistic student exists for all samples."""
        return bool(np.isfinite(state).all())

    def norm(self, state: Array) -> float:
        """Return the length of the weights."""
        return float(np.exp(state[0]))

    def solve(self, alpha: float, ridge: float, guess: Array) -> Array | None:
        """Solve near a guess; None when that fails."""
        return find_state(lambda state: self.residuals(alpha, ridge, state), self.ensemble, guess, 1e-7)

    def residuals(self, alpha: float, ridge: float, state: Array) -> Array:
        """Return the derivatives by ``mu``, ``r``, ``q`` and ``tau``, scaled; zero at the solution."""
        length, angle, mu = np.exp(state[:3])
        cos, sin = np.cos(angle), np.sin(angle)
        along, across = length * cos, length * sin
        free = FreeCoordinates.at(self.ensemble, state[3])
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
        nodes, weights = place_nodes(ends, _SOFT_NODES, _SOFT_WEIGHTS)
        density = np.exp(-nodes * nodes / 2) / np.sqrt(2 * np.pi)
        return nodes, weights * 2 * density / self.ensemble.mass


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
