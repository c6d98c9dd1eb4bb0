"""Predictions in high dimension for the hard-margin and the logistic student, and where pruning pays.

Both follow a solution of a few equations from small to large ``alpha``, the samples per dimension.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from scipy.optimize import brentq

from puma.errors import PumaError
from puma.perceptron.problem import Array, PoolPruning, TeacherKind
from puma.perceptron.students import Logistic, MaxMargin, student_name
from puma.perceptron.theory_equations import Ensemble, HardMarginTheory, LogisticTheory

_NUMERIC = ("problem", "theory", "theory_equations")  # the modules whose source decides the numbers of a curve


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


def predict_students(
    alphas: Sequence[float],
    pruning: PoolPruning,
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
        found[target] = _make_prediction(theory, target, state)
    return [found[alpha] for alpha in wanted]


def _make_prediction(theory: HardMarginTheory | LogisticTheory, alpha: float, state: Array) -> Prediction:
    if not theory.separable(state):
        return Prediction(alpha, np.nan, np.nan, np.nan, separable=False)
    angle = float(np.exp(state[1]))
    error = 2 * float(np.sin(angle / 2)) ** 2
    return Prediction(alpha, float(np.cos(angle)), error, theory.norm(state), separable=True)


def crossover_alpha(keep: float) -> float:
    """Return the ``alpha`` above which PE with this kept fraction beats no pruning (hard margin, eps 0)."""

    def advantage(log_alpha: float) -> float:
        alpha = float(np.exp(log_alpha))
        (ours,), (none,) = predict_students([alpha], PoolPruning("pe", keep)), predict_students([alpha], PoolPruning())
        return float(np.log(ours.error / none.error))

    return float(np.exp(brentq(advantage, np.log(0.5), np.log(4.0), xtol=1e-6)))


@dataclass(frozen=True)
class CurveKey:
    """What a curve depends on."""

    pruning: PoolPruning
    eps: float
    dimension: int
    teacher: TeacherKind
    student: Logistic | MaxMargin
    alphas: tuple[float, ...]

    @property
    def key(self) -> str:
        """A text that differs whenever the curve could."""
        described = {"student_name": student_name(self.student), **asdict(self)}
        return f"curve {fingerprint_code(*_NUMERIC)} {json.dumps(described, sort_keys=True)}"


@dataclass(frozen=True)
class TheoryCurve:
    """``error`` at every ``alpha``, NaN where there is no student (hard margin, samples not separable)."""

    alphas: tuple[float, ...]
    errors: tuple[float, ...]

    def record(self) -> dict[str, Any]:
        """Return the curve as plain values."""
        return {"alphas": list(self.alphas), "errors": list(self.errors)}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "TheoryCurve":
        """Rebuild a curve from plain values."""
        return cls(tuple(record["alphas"]), tuple(record["errors"]))


@cache
def fingerprint_code(*modules: str) -> str:
    """Return a hash of modules of this package and of the libraries they call."""
    digest = hashlib.sha256(f"numpy {np.__version__} scipy {scipy.__version__}".encode())
    for module in modules:
        digest.update(Path(__file__).with_name(f"{module}.py").read_bytes())
    return digest.hexdigest()[:12]


def trace_curve(key: CurveKey) -> TheoryCurve:
    """Compute one curve."""
    found = predict_students(
        key.alphas, key.pruning, key.eps, student=key.student, dimension=key.dimension, teacher=key.teacher
    )
    return TheoryCurve(key.alphas, tuple(prediction.error for prediction in found))
