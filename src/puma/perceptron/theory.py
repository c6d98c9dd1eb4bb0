"""What the hard-margin student reaches in high dimension: Gordon's comparison, replica-symmetric.

With ``R`` the overlap of student and teacher, ``s = sqrt(1 - R^2)``, ``u`` the teacher margin of a kept sample
and ``h ~ N(0, 1)``, the student that maximises the worst-case margin ``kappa`` obeys
``alpha E[(kappa + eps L - R u - s h)_+^2] = B``. ``L`` is its L1 norm and ``B`` the squared strength that its
free coordinates can gather against the samples. Those coordinates are a soft-thresholded Gaussian,
``S = soft(g, tau)``, which enters through ``rho = E|S| / sqrt(E S^2)`` and ``A = E[g S] / sqrt(E S^2)``:

- teacher on an axis: ``L = R + s sqrt(K) rho``, ``B = s^2 A^2``;
- dense teacher (the threshold acts on signal and noise alike): ``L = sqrt(K) rho``, ``B = A^2 - R^2``.

``kappa`` is maximal over ``R`` and ``tau``. The integral over ``h`` and both stationarity conditions are closed
form, because ``dA = tau drho``; the one over ``u`` is a Gauss-Legendre rule with knots where the integrand bends.
The three equations are solved by following the solution from small to large ``alpha``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, root
from scipy.special import erfc, ndtr

from puma.perceptron.pruning import Pruning, kept_range
from puma.perceptron.teacher import TeacherKind, mean_l1_norm

Array = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(40)
_FIRST_ALPHA = 0.02
_NO_OVERLAP = float(np.log(np.pi / 2))  # log of a right angle
_LONGEST_STEP = 0.25  # in log alpha
_SHORTEST_STEP = 1e-6
_LONGEST_TURN = 0.5  # in log angle: a longer one may have jumped to another stationary point


@dataclass(frozen=True)
class Prediction:
    """The order parameters at one ``alpha``; ``error`` is ``1 - overlap`` without cancellation.

    When ``separable`` is False a typical sample set of this size leaves no student with a positive margin
    under the attack: there is then nothing to predict, and the numbers are NaN.
    """

    alpha: float
    overlap: float
    error: float
    margin: float
    threshold: float
    separable: bool


@dataclass(frozen=True)
class Ensemble:
    """The kept margins ``u`` and the geometry that the equations need."""

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

    def rule(self, bend: float, width: float) -> tuple[Array, Array]:
        """Return nodes and weights for averages over ``u`` of functions that bend near ``bend``."""
        ends = np.clip([bend - 8 * width, bend + 8 * width], self.low, self.high)
        knots = np.unique([self.low, *ends, self.high])
        half = np.diff(knots)[:, None] / 2
        nodes = ((knots[:-1] + knots[1:])[:, None] / 2 + half * _NODES).ravel()
        density = np.sqrt(2 / np.pi) * np.exp(-nodes * nodes / 2) / self.mass
        return nodes, (half * _WEIGHTS).ravel() * density


def predict(
    alphas: Sequence[float],
    pruning: Pruning,
    eps: float = 0.0,
    *,
    dimension: int = 200,
    teacher: TeacherKind = "axis",
) -> list[Prediction]:
    """Return the theory at every ``alpha`` (in the order given) for one strategy and attack strength."""
    ensemble = Ensemble.of(pruning, eps, dimension, teacher)
    found: dict[float, Prediction] = {}
    alpha, state = first_state(ensemble, min(_FIRST_ALPHA, *alphas))
    for target in sorted(set(alphas)):
        alpha, state = follow(ensemble, alpha, state, target)
        found[target] = prediction(ensemble, state, target)
    return [found[alpha] for alpha in alphas]


def crossover_alpha(keep: float, *, strategy: str = "pe") -> float:
    """Return the ``alpha`` above which PE with this kept fraction beats no pruning (no attack)."""
    pruned = Pruning("pd" if strategy == "pd" else "pe", keep)

    def advantage(log_alpha: float) -> float:
        alpha = float(np.exp(log_alpha))
        (ours,), (none,) = predict([alpha], pruned), predict([alpha], Pruning())
        return float(np.log(ours.error / none.error))

    return float(np.exp(brentq(advantage, np.log(0.5), np.log(4.0), xtol=1e-6)))


def first_state(ensemble: Ensemble, alpha: float) -> tuple[float, Array]:
    """Solve for few samples, where they are nearly orthogonal and the answer is nearly known."""
    nodes, weights = ensemble.rule(0.0, 1.0)
    overlap = np.sqrt(alpha) * float(weights @ nodes)
    threshold = np.sqrt(alpha * ensemble.dimension) * ensemble.eps
    guess = np.array([1 / np.sqrt(alpha), np.log(np.arccos(min(overlap, 0.9))), np.log(threshold or 1.0)])
    state = solve(ensemble, alpha, guess)
    if state is None:
        raise FloatingPointError(f"the theory has no solution near alpha = {alpha:g} for {ensemble}")
    return alpha, state


def follow(ensemble: Ensemble, alpha: float, state: Array, target: float) -> tuple[float, Array]:
    """Continue a solution to a larger ``alpha``, in steps as long as they succeed, while its margin is positive."""
    step = _LONGEST_STEP
    while alpha < target and margin(ensemble, state) > 0:
        ahead = min(alpha * np.exp(step), target)
        found = solve(ensemble, ahead, state)
        if found is None or abs(found[1] - state[1]) > _LONGEST_TURN:
            step /= 2
            if step < _SHORTEST_STEP:
                raise FloatingPointError(f"the theory was lost at alpha = {alpha:g} for {ensemble}")
            continue
        alpha, state, step = ahead, found, min(2 * step, _LONGEST_STEP)
    return alpha, state


def solve(ensemble: Ensemble, alpha: float, guess: Array) -> Array | None:
    """Solve the equations near a guess; None when that fails.

    The penalty on the teacher's own coordinate has a kink at zero overlap: a root beyond it means that the
    overlap is exactly zero.
    """
    free = np.arange(3) if ensemble.eps else np.arange(2)
    state = _root(ensemble, alpha, guess, free)
    if state is not None and state[1] <= _NO_OVERLAP:
        return state
    if ensemble.eps == 0 or ensemble.dense:
        return None
    at_zero = _root(ensemble, alpha, np.array([guess[0], _NO_OVERLAP, guess[2]]), np.array([0, 2]))
    if at_zero is None or residuals(ensemble, alpha, at_zero)[1] < 0:
        return None
    return at_zero


def _root(ensemble: Ensemble, alpha: float, guess: Array, free: NDArray[np.intp]) -> Array | None:
    state = guess.copy()

    def equations(values: Array) -> Array:
        state[free] = values
        return residuals(ensemble, alpha, state)[free]

    with np.errstate(all="ignore"):
        answer = root(equations, guess[free], method="hybr", options={"xtol": 1e-12})
        state[free] = answer.x
        remaining = np.abs(residuals(ensemble, alpha, state)[free]).max()
    if not remaining < 1e-8 or not -40 < state[1] < _NO_OVERLAP + np.log(2):
        return None
    return state


def residuals(ensemble: Ensemble, alpha: float, state: Array) -> Array:
    """Return the constraint and the derivatives with respect to ``R`` and ``tau``; all zero at the solution.

    The state is ``((kappa + eps L) / s, log angle, log tau)``.
    """
    height, angle = float(state[0]), float(np.exp(state[1]))
    overlap, rest = np.cos(angle), np.sin(angle)
    tilt = overlap / rest if abs(overlap) > 1e-12 else 1e-12
    nodes, weights = ensemble.rule(height / tilt, 1 / abs(tilt))
    short = height - tilt * nodes
    below, density = ndtr(short), np.exp(-short * short / 2) / np.sqrt(2 * np.pi)
    linear = short * below + density
    zeroth, first, first_u = weights @ below, weights @ linear, weights @ (nodes * linear)
    second = weights @ ((1 + short * short) * below + short * density)
    tau, rho, gain = thresholded(ensemble, state)
    scale = ensemble.eps * np.sqrt(ensemble.dimension)
    if ensemble.dense:
        budget = 1 - (1 - gain) * (1 + gain) / rest**2
        slope, pressure = overlap, gain * tau / rest
    else:
        budget = gain * gain
        slope = overlap * gain * gain + alpha * first * (ensemble.eps * rest - overlap * scale * rho)
        pressure = gain * tau
    return np.array(
        [
            alpha * second - budget,
            slope - alpha * (rest * first_u + overlap * zeroth),
            alpha * scale * first - pressure,
        ]
    )


def thresholded(ensemble: Ensemble, state: Array) -> tuple[float, float, float]:
    """Return ``tau``, ``rho`` and ``A`` of the soft-thresholded Gaussian."""
    if not ensemble.eps:
        return 0.0, float(np.sqrt(2 / np.pi)), 1.0
    tau = float(np.exp(state[2]))
    tail, density = float(ndtr(-tau)), float(np.exp(-tau * tau / 2) / np.sqrt(2 * np.pi))
    square = 2 * ((1 + tau * tau) * tail - tau * density)
    rho = 2 * (density - tau * tail) / np.sqrt(square)
    return tau, float(rho), float(2 * tail / np.sqrt(square))


def margin(ensemble: Ensemble, state: Array) -> float:
    """Return ``kappa``, which falls as ``alpha`` grows."""
    angle = float(np.exp(state[1]))
    _, rho, _ = thresholded(ensemble, state)
    spread = np.sqrt(ensemble.dimension) * rho
    norm = spread if ensemble.dense else np.cos(angle) + np.sin(angle) * spread
    return float(np.sin(angle) * state[0] - ensemble.eps * norm)


def prediction(ensemble: Ensemble, state: Array, alpha: float) -> Prediction:
    """Translate a solution into order parameters."""
    kappa = margin(ensemble, state)
    if kappa <= 0:
        return Prediction(alpha, np.nan, np.nan, np.nan, np.nan, separable=False)
    angle = float(np.exp(state[1]))
    tau, _, _ = thresholded(ensemble, state)
    return Prediction(alpha, np.cos(angle), 2 * np.sin(angle / 2) ** 2, kappa, tau, separable=True)
