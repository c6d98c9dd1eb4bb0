"""One point of the study: a task, a student, an attack strength and a seed; and how to compute it."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import scipy

from puma.errors import PumaError
from puma.perceptron.logistic import clean_start
from puma.perceptron.newton import Array
from puma.perceptron.overlap import overlap
from puma.perceptron.sampling import Task, draw_lesson
from puma.perceptron.students import Logistic, Status, Student, name_of, train

# the modules whose source decides the numbers of a point
_NUMERIC = (
    *("descent", "logistic", "maxmargin", "newton", "overlap"),
    *("points", "pruning", "sampling", "students", "teacher"),
)


@dataclass(frozen=True)
class Point:
    """Everything that the number depends on."""

    task: Task
    student: Student
    eps: float
    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.eps < np.inf:
            raise PumaError(f"the attack strength must be 0 or more, got {self.eps}; change --figures.")

    @property
    def key(self) -> str:
        """A text that differs whenever the number could: the configuration and the code's fingerprint."""
        described = {"student_name": name_of(self.student), **asdict(self)}
        return f"{code_fingerprint()} {json.dumps(described, sort_keys=True)}"


@dataclass(frozen=True)
class Outcome:
    """What came out. ``error`` and ``angle`` are NaN when there is no student (status ``not separable``)."""

    error: float
    angle: float
    norm: float
    status: Status


@cache
def code_fingerprint() -> str:
    """Return a hash of the code behind the numbers and of the libraries it calls."""
    digest = hashlib.sha256(f"numpy {np.__version__} scipy {scipy.__version__}".encode())
    for module in sorted(_NUMERIC):
        digest.update(Path(__file__).with_name(f"{module}.py").read_bytes())
    return digest.hexdigest()[:12]


def groups(points: Iterable[Point]) -> list[list[Point]]:
    """Collect the points that share their samples: they differ in ``eps`` only."""
    found: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        samples = (point.task, point.eps if point.task.pruning.filtered else None, point.seed)
        found.setdefault((*samples, point.student), []).append(point)
    return list(found.values())


def compute(group: Sequence[Point]) -> list[Outcome]:
    """Compute points that share their samples, in order; a point's number does not depend on its company."""
    first = group[0]
    lesson = draw_lesson(first.task, first.eps, first.seed)
    start: Array | None = None
    if isinstance(first.student, Logistic):
        start = clean_start(lesson.samples, ridge=first.student.ridge)
    outcomes = []
    for point in group:
        trained = train(point.student, lesson.samples, point.eps, seed=point.seed, start=start)
        if trained.status == "not separable":
            outcomes.append(Outcome(np.nan, np.nan, np.nan, trained.status))
            continue
        agreement = overlap(trained.weights, lesson.teacher)
        norm = float(np.linalg.norm(trained.weights))
        outcomes.append(Outcome(agreement.error, agreement.angle, norm, trained.status))
    return outcomes
