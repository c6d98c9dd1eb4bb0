"""Predictions in high dimension for the hard-margin and the logistic student, and where pruning pays.

Both follow a solution of a few equations from small to large ``alpha``, the samples per dimension.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from puma.errors import PumaError
from puma.perceptron.ensemble import Ensemble
from puma.perceptron.logistic_theory import LogisticTheory
from puma.perceptron.maxmargin_theory import HardMarginTheory
from puma.perceptron.newton import Array
from puma.perceptron.pruning import Pruning
from puma.perceptron.students import Logistic, MaxMargin
from puma.perceptron.teacher import TeacherKind


@dataclass(frozen=True)
class Prediction:
    """A typical student: its overlap with the teacher, ``error = 1 - overlap`` and its length.

    The length of a hard-margin student is one over its margin. When ``separable`` is False, a typical sample
    set of this size leaves no student with a positive margin under the attack: the numbers are NaN.
    """

    alpha: float
    overlap: float
    error: float
    norm: float
    separable: bool


def predict(
    alphas: Sequence[float],
    pruning: Pruning,
    eps: float = 0.0,
    *,
    student: Logistic | MaxMargin | None = None,
    dimension: int = 200,
    teacher: TeacherKind = "axis",
) -> list[Prediction]:
    """Return the theory at every ``alpha``, in the order given; by default of the hard-margin student."""
    wanted = [float(alpha) for alpha in alphas]
    if not wanted or not min(wanted) > 0:
        raise PumaError(f"the theory needs positive values of alpha, got {wanted}.")
    ensemble = Ensemble.of(pruning, eps, dimension, teacher)
    theory: HardMarginTheory | LogisticTheory = HardMarginTheory(ensemble)
    if isinstance(student, Logistic):
        theory = LogisticTheory(ensemble, student.ridge)
    begun = theory.begin(min(wanted))
    if begun is None:
        raise FloatingPointError(f"the theory has no solution at small alpha for {ensemble}")
    alpha, state = begun
    found: dict[float, Prediction] = {}
    for target in sorted(set(wanted)):
        if theory.separable(state):
            ahead = theory.advance(alpha, state, target)
            if ahead is None:
                raise FloatingPointError(f"the theory was lost beyond alpha = {alpha:g} for {ensemble}")
            alpha, state = target, ahead
        found[target] = _prediction(theory, target, state)
    return [found[alpha] for alpha in wanted]


def _prediction(theory: HardMarginTheory | LogisticTheory, alpha: float, state: Array) -> Prediction:
    if not theory.separable(state):
        return Prediction(alpha, np.nan, np.nan, np.nan, separable=False)
    angle = float(np.exp(state[1]))
    error = 2 * float(np.sin(angle / 2)) ** 2
    return Prediction(alpha, float(np.cos(angle)), error, theory.norm(state), separable=True)


def crossover_alpha(keep: float) -> float:
    """Return the ``alpha`` above which PE with this kept fraction beats no pruning (hard margin, eps 0)."""

    def advantage(log_alpha: float) -> float:
        alpha = float(np.exp(log_alpha))
        (ours,), (none,) = predict([alpha], Pruning("pe", keep)), predict([alpha], Pruning())
        return float(np.log(ours.error / none.error))

    return float(np.exp(brentq(advantage, np.log(0.5), np.log(4.0), xtol=1e-6)))
