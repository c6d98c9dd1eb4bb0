"""The ingredients that both theories share: the kept margins, and the free coordinates of a student.

The free coordinates of a student under an L_inf attack are a soft-thresholded Gaussian, ``S = soft(g, tau)``
with ``g ~ N(0, 1)``. They enter through ``rho = E|S| / sqrt(E S^2)``, which sets the L1 norm, and
``A = E[g S] / sqrt(E S^2)``, how much of the noise they pick up; ``dA = tau drho``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import root
from scipy.special import erfc, ndtr

from puma.perceptron.newton import Array
from puma.perceptron.pruning import Pruning, kept_range
from puma.perceptron.teacher import TeacherKind, mean_l1_norm

NO_OVERLAP = float(np.log(np.pi / 2))  # log of a right angle
_LONGEST_TURN = 0.5  # in log angle: a longer one may have jumped to another stationary point
_SHORTEST_STEP = 1e-6

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
    def of(cls, pruning: Pruning, eps: float, dimension: int, teacher: TeacherKind) -> "Ensemble":
        """Describe the samples that a strategy keeps for students under attack ``eps``."""
        floor = eps * mean_l1_norm(teacher, dimension) if pruning.filtered else 0.0
        low, high = kept_range(pruning.strategy, pruning.keep, floor)
        mass = pruning.keep * float(erfc(floor / np.sqrt(2)))
        return cls(low, min(high, low + 9.0), mass, eps, dimension, teacher == "dense")

    @property
    def attack(self) -> float:
        """``eps sqrt(K)``: the attack on the free coordinates of a student of unit length."""
        return self.eps * float(np.sqrt(self.dimension))


@dataclass(frozen=True)
class Coordinates:
    """``rho`` and ``gain`` (A) of the free coordinates at threshold ``tau``."""

    tau: float
    rho: float
    gain: float

    @classmethod
    def at(cls, ensemble: Ensemble, log_tau: float) -> "Coordinates":
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


def follow(
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
