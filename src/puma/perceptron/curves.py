"""Theory curves: the predictions for one strategy and attack over a range of ``alpha``."""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from puma.perceptron.pruning import Pruning
from puma.perceptron.students import Logistic, MaxMargin, name_of
from puma.perceptron.teacher import TeacherKind
from puma.perceptron.theory import predict


@dataclass(frozen=True)
class CurveKey:
    """What a curve depends on."""

    pruning: Pruning
    eps: float
    dimension: int
    teacher: TeacherKind
    student: Logistic | MaxMargin
    alphas: tuple[float, ...]

    @property
    def key(self) -> str:
        """A text that differs whenever the curve could."""
        described = {"student_name": name_of(self.student), **asdict(self)}
        return f"curve {theory_fingerprint()} {json.dumps(described, sort_keys=True)}"


@dataclass(frozen=True)
class Curve:
    """``error`` at every ``alpha``, NaN where there is no student (hard margin, samples not separable)."""

    alphas: tuple[float, ...]
    errors: tuple[float, ...]

    def record(self) -> dict[str, Any]:
        """Return the curve as plain values."""
        return {"alphas": list(self.alphas), "errors": list(self.errors)}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Curve":
        """Rebuild a curve from plain values."""
        return cls(tuple(record["alphas"]), tuple(record["errors"]))


@cache
def theory_fingerprint() -> str:
    """Return a hash of the code behind the curves."""
    digest = hashlib.sha256(f"numpy {np.__version__} scipy {scipy.__version__}".encode())
    for module in ("ensemble", "logistic_theory", "maxmargin_theory", "pruning", "teacher", "theory"):
        digest.update(Path(__file__).with_name(f"{module}.py").read_bytes())
    return digest.hexdigest()[:12]


def trace(key: CurveKey) -> Curve:
    """Compute one curve."""
    found = predict(
        key.alphas,
        key.pruning,
        key.eps,
        student=key.student,
        dimension=key.dimension,
        teacher=key.teacher,
    )
    return Curve(key.alphas, tuple(prediction.error for prediction in found))
