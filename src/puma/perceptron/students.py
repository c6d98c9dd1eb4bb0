"""The students: logistic regression to convergence, the hard margin, and plain gradient descent on FGSM examples.

All of them learn from samples ``z_i = y_i x_i``, given as rows, under an L_inf attack of radius ``eps``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from puma.errors import PumaError, unknown_name
from puma.perceptron.newton import NewtonSolution, minimise_objective, soft_threshold, worst_margin
from puma.perceptron.problem import Array

StudentName = Literal["logistic", "maxmargin", "gd"]
STUDENTS: tuple[StudentName, ...] = get_args(StudentName)
StudentStatus = Literal["converged", "not converged", "not separable", "finished"]
DescentLoss = Literal["logistic", "hinge"]

_NO_MARGIN = 1e-9  # a proven bound this small is zero up to rounding: the samples cannot be separated
_STIFFENING = 10  # the usual factor of the method of multipliers; smaller ones take more rounds


class LogisticLoss:
    """``log(1 + exp(-margin))``."""

    def value(self, margin: Array) -> Array:
        """Return the loss of every sample."""
        return np.logaddexp(0.0, -margin)

    def slopes(self, margin: Array) -> tuple[Array, Array]:
        """Return minus the first derivative and the second derivative."""
        pull: Array = expit(-margin)
        return pull, pull * (1.0 - pull)


def fit_logistic(
    samples: Array, eps: float, *, ridge: float = 1e-5, start: Array | None = None, tolerance: float = 1e-7
) -> NewtonSolution:
    """Return ``argmin_w mean_i log(1 + exp(-(z_i.w - eps |w|_1))) + ridge/2 |w|_2^2``.

    For a linear student the FGSM perturbation is the worst one in the L_inf ball, so this is the point that
    adversarial training with FGSM reaches when it is run to the end. The start only decides how long it takes.
    """
    if start is None:
        start = clean_start(samples, ridge=ridge)
    return minimise_objective(samples, LogisticLoss(), eps=eps, ridge=ridge, start=start, tolerance=tolerance)


def clean_start(samples: Array, *, ridge: float = 1e-5) -> Array:
    """Return roughly the student without attack: a good start for every attack strength."""
    mean = samples.mean(axis=0)
    mean /= np.linalg.norm(mean)
    return minimise_objective(samples, LogisticLoss(), eps=0.0, ridge=ridge, start=mean, tolerance=1e-2).weights


def fit_logistic_slowly(samples: Array, eps: float, *, ridge: float = 1e-5) -> Array:
    """Train the logistic student in a slow and independent way, to check the fast one against.

    The weights are split into positive parts, ``w = a - b`` with ``a, b >= 0``, which makes the L1 norm smooth;
    L-BFGS-B does the rest.
    """
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


@dataclass(frozen=True)
class HardMarginLoss:
    """The augmented Lagrangian of ``margin >= 1``: ``s/2 max(1 + a/s - margin, 0)^2``."""

    multiplier: Array
    stiffness: float

    def value(self, margin: Array) -> Array:
        """Return the loss of every sample."""
        short = self._shortfall(margin)
        return self.stiffness / 2 * short * short

    def slopes(self, margin: Array) -> tuple[Array, Array]:
        """Return minus the first derivative and the second derivative."""
        short = self._shortfall(margin)
        return self.stiffness * short, np.where(short > 0, self.stiffness, 0.0)

    def _shortfall(self, margin: Array) -> Array:
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
    """Find ``max_w min_i (z_i.w - eps |w|_1) / |w|_2`` to relative accuracy ``tolerance``.

    That is ``min |w|^2 / 2`` subject to worst-case margins of at least 1, found by the method of multipliers on
    top of the Newton solver. Weights ``a_i >= 0`` that sum to one prove an upper bound,
    ``|soft(sum_i a_i z_i, eps)|_2``, for every student at once: the search ends when the margin it found meets
    that bound, or when the bound is zero, which proves that no student separates the samples.
    """
    mean = samples.mean(axis=0)
    weights = best = mean / np.linalg.norm(mean)
    multiplier = np.zeros(len(samples))
    stiffness, shortfall = 1.0, np.inf
    margin, bound = -np.inf, np.inf
    for _ in range(max_rounds):
        found = minimise_objective(
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
        if bound <= _NO_MARGIN:
            return HardMargin(weights, -np.inf, 0.0, separable=False, converged=True)
        lowest = float(worst_margin(samples, weights, eps).min())
        reached = lowest / float(np.linalg.norm(weights))
        if reached > margin:
            margin, best = reached, weights
        if margin >= (1 - tolerance) * bound:
            return HardMargin(best, margin, bound, separable=True, converged=True)
        # stiffer when that would help: not when what is left comes from an inner search that ended early
        if 1 - lowest > max(0.1 * shortfall, 0.0 if found.converged else 1e-4):
            stiffness *= _STIFFENING
        shortfall = 1 - lowest
    return HardMargin(best, margin, bound, separable=margin > 0, converged=False)


def margin_bound(samples: Array, multiplier: Array, eps: float) -> float:
    """Return the margin that no student can pass, proved by non-negative weights on the samples."""
    total = float(multiplier.sum())
    if total == 0.0:
        return np.inf
    return float(np.linalg.norm(soft_threshold(multiplier @ samples / total, eps)))


def attack_by_fgsm(inputs: Array, eps: float, loss_gradient: Callable[[Array], Array]) -> Array:
    """Return ``inputs + eps * sign(loss_gradient(inputs))``: the fast gradient sign method.

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


@dataclass(frozen=True)
class GradientDescent:
    """Loss, number of steps, learning rate, and samples per step (0: all of them)."""

    loss: DescentLoss = "hinge"
    steps: int = 3000
    rate: float = 0.3
    batch: int = 0

    def __post_init__(self) -> None:
        if self.loss not in get_args(DescentLoss):
            raise unknown_name("loss", self.loss, list(get_args(DescentLoss)))
        if self.steps < 1:
            raise PumaError(f"gradient descent needs at least one step, got {self.steps}; change --steps.")
        if not self.rate > 0:
            raise PumaError(f"the learning rate must be positive, got {self.rate}; change --rate.")
        if self.batch < 0:
            raise PumaError(f"the batch must be 0 (all samples) or positive, got {self.batch}; change --batch.")


def loss_pull(loss: DescentLoss, margin: Array) -> Array:
    """Return minus the derivative of a loss with respect to the margin."""
    if loss == "logistic":
        pull: Array = expit(-margin)
        return pull
    return (margin < 1).astype(np.float64)


def descend_gradient(samples: Array, eps: float, config: GradientDescent, seed: int) -> Array:
    """Return the student of the literal procedure: FGSM examples, then a gradient step, a finite number of times.

    Training starts from zero weights. The seed only matters for minibatches, which are drawn afresh, without
    replacement, in every pass.
    """
    weights = np.zeros(samples.shape[1])
    rng = np.random.default_rng([seed, 5])
    order, used = np.arange(len(samples)), 0
    for _ in range(config.steps):
        batch = samples
        if 0 < config.batch < len(samples):
            if used == 0:
                rng.shuffle(order)
            batch = samples[order[used : used + config.batch]]
            used = used + config.batch if used + config.batch < len(samples) else 0
        weights = weights - config.rate * adversarial_gradient(batch, weights, eps, config.loss)
    return weights


def adversarial_gradient(samples: Array, weights: Array, eps: float, loss: DescentLoss) -> Array:
    """Return the gradient of the mean loss on the FGSM examples of ``samples``, without forming them.

    For a linear student the attack moves every sample with a nonzero loss gradient by ``-eps sign(w)``.
    """
    margin = samples @ weights
    attacked = (loss_pull(loss, margin) > 0).astype(np.float64)
    pull = loss_pull(loss, margin - eps * np.abs(weights).sum() * attacked)
    moved: Array = pull @ samples - eps * np.sign(weights) * float(pull @ attacked)
    return -moved / len(samples)


@dataclass(frozen=True)
class Logistic:
    """Logistic regression to convergence, with a small ridge."""

    ridge: float = 1e-5

    def __post_init__(self) -> None:
        if not 1e-12 <= self.ridge <= 1e3:
            raise PumaError(f"the ridge must be within 1e-12 and 1e3, got {self.ridge}; change --ridge.")


@dataclass(frozen=True)
class MaxMargin:
    """The largest worst-case margin; it has no settings."""


Student = Logistic | MaxMargin | GradientDescent


def student_name(student: Student) -> StudentName:
    """Return the name of a student's kind."""
    if isinstance(student, Logistic):
        return "logistic"
    return "maxmargin" if isinstance(student, MaxMargin) else "gd"


@dataclass(frozen=True)
class TrainedStudent:
    """Weights and how the training ended; ``finished`` is the end of a fixed number of steps."""

    weights: Array
    status: StudentStatus


def train_student(
    student: Student, samples: Array, eps: float, *, seed: int = 0, start: Array | None = None
) -> TrainedStudent:
    """Train a student; a ``start`` close to the answer makes the logistic one faster, not different."""
    if isinstance(student, Logistic):
        solution = fit_logistic(samples, eps, ridge=student.ridge, start=start)
        return TrainedStudent(solution.weights, "converged" if solution.converged else "not converged")
    if isinstance(student, MaxMargin):
        found = fit_maxmargin(samples, eps)
        if not found.separable:
            return TrainedStudent(found.weights, "not separable")
        return TrainedStudent(found.weights, "converged" if found.converged else "not converged")
    return TrainedStudent(descend_gradient(samples, eps, student, seed), "finished")
