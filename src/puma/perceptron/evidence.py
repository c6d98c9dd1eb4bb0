"""Reading numbers for claims out of results."""

from dataclasses import dataclass
from typing import cast

import numpy as np

from puma.perceptron.newton import Array
from puma.perceptron.pruning import Pruning, Strategy
from puma.perceptron.results import Results
from puma.perceptron.students import MaxMargin, Student
from puma.perceptron.study import Series, without_attack
from puma.perceptron.teacher import TeacherKind
from puma.perceptron.theory import predict


class Missing(Exception):
    """The study did not compute what a claim needs."""


@dataclass(frozen=True)
class Evidence:
    """Results, seen through one student; several means over seeds are compared seed by seed."""

    results: Results
    student: Student

    @property
    def alphas(self) -> tuple[float, ...]:
        """The values of alpha of the study."""
        return self.results.study.alphas

    def line(self, strategy: str = "none", keep: float = 1.0, eps: float = 0.0, filtered: bool = False) -> Series:
        """Return a line of the study, for a teacher on an axis."""
        return Series(Pruning(cast(Strategy, strategy), keep, filtered), eps, "axis", self.student)

    def errors(self, line: Series, alpha: float) -> Array:
        """Return the error of every seed."""
        found = self.results.errors(line, alpha)
        if found is None or not np.isfinite(found).all():
            raise Missing
        return found

    def mean(self, line: Series, alpha: float) -> float:
        """Return the mean error over seeds."""
        return float(self.errors(line, alpha).mean())

    def ratio(self, line: Series, other: Series, alpha: float) -> float:
        """Return the ratio of two mean errors."""
        return self.mean(line, alpha) / self.mean(other, alpha)

    def slope(self, line: Series, smallest: float) -> float:
        """Return the slope of log error against log alpha from ``smallest`` on."""
        alphas = [alpha for alpha in self.alphas if alpha >= smallest]
        if len(alphas) < 2:
            raise Missing
        means = [self.mean(line, alpha) for alpha in alphas]
        return float(np.polyfit(np.log(alphas), np.log(means), 1)[0])

    def gain(self, eps: float, alpha: float, teacher: str = "axis") -> float:
        """Return by how many percent an attack lowers the error without pruning, averaged over pairs."""
        line = Series(Pruning(), eps, cast(TeacherKind, teacher), self.student)
        after, before = self.errors(line, alpha), self.errors(without_attack(line), alpha)
        return float(100 * np.mean(1 - after / before))

    def gains(self, eps: float) -> list[float]:
        """Return the gains at alpha 3, 4, 6 and 8."""
        return [self.gain(eps, alpha) for alpha in (3.0, 4.0, 6.0, 8.0)]

    def over_theory(self, strategy: str, keep: float, alpha: float) -> float:
        """Return the mean error of the hard-margin student over its theory, without attack."""
        pruning = Pruning(cast(Strategy, strategy), keep)
        measured = self.mean(Series(pruning, 0.0, "axis", MaxMargin()), alpha)
        (expected,) = predict([alpha], pruning, dimension=self.results.study.dimension)
        return measured / expected.error
