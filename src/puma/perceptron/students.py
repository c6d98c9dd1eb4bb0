"""The students by name, and one way to train any of them."""

from dataclasses import dataclass
from typing import Literal, get_args

from puma.errors import PumaError
from puma.perceptron.descent import Descent, fit_descent
from puma.perceptron.logistic import fit_logistic
from puma.perceptron.maxmargin import fit_maxmargin
from puma.perceptron.newton import Array

StudentName = Literal["logistic", "maxmargin", "gd"]
STUDENTS: tuple[StudentName, ...] = get_args(StudentName)

Status = Literal["converged", "not converged", "not separable", "finished"]


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


Student = Logistic | MaxMargin | Descent


def name_of(student: Student) -> StudentName:
    """Return the name of a student's kind."""
    if isinstance(student, Logistic):
        return "logistic"
    return "maxmargin" if isinstance(student, MaxMargin) else "gd"


@dataclass(frozen=True)
class Trained:
    """Weights and how the training ended; ``finished`` is the end of a fixed number of steps."""

    weights: Array
    status: Status


def train(student: Student, samples: Array, eps: float, *, seed: int = 0, start: Array | None = None) -> Trained:
    """Train a student; a ``start`` close to the answer makes the logistic one faster, not different."""
    if isinstance(student, Logistic):
        solution = fit_logistic(samples, eps, ridge=student.ridge, start=start)
        return Trained(solution.weights, "converged" if solution.converged else "not converged")
    if isinstance(student, MaxMargin):
        found = fit_maxmargin(samples, eps)
        if not found.separable:
            return Trained(found.weights, "not separable")
        return Trained(found.weights, "converged" if found.converged else "not converged")
    return Trained(fit_descent(samples, eps, student, seed), "finished")
