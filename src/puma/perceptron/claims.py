"""The claims about pruning in adversarial training, each with what was measured and whether it holds.

Numbers 1 to 9 are the checks of the study itself: what a converged student must show. The letters are claims
from the literature that depend on how long and how the student was trained; they are reported either way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from puma.perceptron.problem import Array, PoolPruning, Strategy, TeacherKind
from puma.perceptron.students import MaxMargin, Student
from puma.perceptron.study_design import FigureLine, StudyResults, remove_attack
from puma.perceptron.theory import predict_students

Verdict = Literal["holds", "does not hold", "not measured"]


class NotMeasured(Exception):
    """The study did not compute what a claim needs."""


@dataclass(frozen=True)
class Evidence:
    """Results, seen through one student; several means over seeds are compared seed by seed."""

    results: StudyResults
    student: Student

    @property
    def alphas(self) -> tuple[float, ...]:
        """The values of alpha of the study."""
        return self.results.study.alphas

    def line(self, strategy: str = "none", keep: float = 1.0, eps: float = 0.0, filtered: bool = False) -> FigureLine:
        """Return a line of the study, for a teacher on an axis."""
        return FigureLine(PoolPruning(cast(Strategy, strategy), keep, filtered), eps, "axis", self.student)

    def errors(self, line: FigureLine, alpha: float) -> Array:
        """Return the error of every seed."""
        found = self.results.errors(line, alpha)
        if found is None or not np.isfinite(found).all():
            raise NotMeasured
        return found

    def mean(self, line: FigureLine, alpha: float) -> float:
        """Return the mean error over seeds."""
        return float(self.errors(line, alpha).mean())

    def ratio(self, line: FigureLine, other: FigureLine, alpha: float) -> float:
        """Return the ratio of two mean errors."""
        return self.mean(line, alpha) / self.mean(other, alpha)

    def slope(self, line: FigureLine, smallest: float) -> float:
        """Return the slope of log error against log alpha from ``smallest`` on."""
        alphas = [alpha for alpha in self.alphas if alpha >= smallest]
        if len(alphas) < 2:
            raise NotMeasured
        means = [self.mean(line, alpha) for alpha in alphas]
        return float(np.polyfit(np.log(alphas), np.log(means), 1)[0])

    def gain(self, eps: float, alpha: float, teacher: str = "axis") -> float:
        """Return by how many percent an attack lowers the error without pruning, averaged over pairs."""
        line = FigureLine(PoolPruning(), eps, cast(TeacherKind, teacher), self.student)
        after, before = self.errors(line, alpha), self.errors(remove_attack(line), alpha)
        return float(100 * np.mean(1 - after / before))

    def gains(self, eps: float) -> list[float]:
        """Return the gains at alpha 3, 4, 6 and 8."""
        return [self.gain(eps, alpha) for alpha in (3.0, 4.0, 6.0, 8.0)]

    def over_theory(self, strategy: str, keep: float, alpha: float) -> float:
        """Return the mean error of the hard-margin student over its theory, without attack."""
        pruning = PoolPruning(cast(Strategy, strategy), keep)
        measured = self.mean(FigureLine(pruning, 0.0, "axis", MaxMargin()), alpha)
        (expected,) = predict_students([alpha], pruning, dimension=self.results.study.dimension)
        return measured / expected.error


@dataclass(frozen=True)
class StudyClaim:
    """A row of the table: ``criterion`` says which values count as holding."""

    number: str
    statement: str
    quantity: str
    value: float | None
    criterion: str
    verdict: Verdict

    @property
    def is_check(self) -> bool:
        """Whether the study stands or falls with it."""
        return self.number[0].isdigit()


@dataclass(frozen=True)
class ClaimRule:
    """How to measure one row: a value, and the closed range in which the claim holds."""

    number: str
    statement: str
    quantity: str
    measure: Callable[[Evidence], float]
    low: float = -np.inf
    high: float = np.inf

    def judge(self, evidence: Evidence) -> StudyClaim:
        """Measure and compare."""
        value: float | None
        try:
            value = self.measure(evidence)
        except NotMeasured:
            value = None
        holds = value is not None and self.low <= value <= self.high
        verdict: Verdict = "not measured" if value is None else "holds" if holds else "does not hold"
        return StudyClaim(self.number, self.statement, self.quantity, value, self.criterion, verdict)

    @property
    def criterion(self) -> str:
        """The range in words."""
        if np.isneginf(self.low):
            return f"at most {self.high:g}"
        return f"at least {self.low:g}" if np.isposinf(self.high) else f"{self.low:g} to {self.high:g}"


def judge_study(evidence: Evidence) -> list[StudyClaim]:
    """Return every claim with its measured value and verdict."""
    return [rule.judge(evidence) for rule in CLAIM_RULES]


def _ratio_to_none(
    strategy: str, keep: float, alpha: float, eps: float = 0.0, filtered: bool = False
) -> Callable[[Evidence], float]:
    return lambda e: e.ratio(e.line(strategy, keep, eps, filtered), e.line("none", 1.0, eps, filtered), alpha)


def _gain_of_attack(eps: float, alpha: float, teacher: str = "axis") -> Callable[[Evidence], float]:
    return lambda e: e.gain(eps, alpha, teacher)


def _worst_pd(e: Evidence) -> float:
    small = [alpha for alpha in e.alphas if alpha <= 8]
    keeps = (0.5, 0.2, 0.1)
    return max(_ratio_to_none("pd", keep, alpha)(e) for keep in keeps for alpha in small)


def _cliff_height(strategy: str, keep: float) -> Callable[[Evidence], float]:
    return lambda e: e.mean(e.line(strategy, keep), 1.5) / e.mean(e.line(strategy, keep), 3.0)


def _filter_effect(largest: bool) -> Callable[[Evidence], float]:
    def measure(e: Evidence) -> float:
        lines = [(e.line("pd", keep, 0.01, True), e.line("pd", keep, 0.01)) for keep in (0.5, 0.2, 0.1)]
        ratios = [e.ratio(after, before, 8.0) for after, before in lines]
        return max(ratios) if largest else min(ratios)

    return measure


def _theory_gap(e: Evidence) -> float:
    cases = [("none", 1.0), ("pe", 0.5), ("pe", 0.2), ("pd", 0.5), ("pd", 0.2)]
    return max(abs(e.over_theory(s, keep, alpha) - 1) for s, keep in cases for alpha in (4.0, 8.0))


_POWER = "Without pruning the error falls as a power of alpha"
_EASY = "Pruning easy samples hurts when there are few and helps greatly when there are many"
_HARD = "Pruning difficult samples helps at eps 0, up to alpha 8"
_CLIFF = "The fast fall under PE is a cliff between alpha 1.5 and 3"
_SMALL = "A small attack (eps 0.001) lowers the error"
_LARGE = "A larger attack (eps 0.01) lowers it more, without pruning"
_COLLAPSE = "At eps 0.01 keeping only the closest 1 % ruins the student"
_FILTER = "Filtering margins below eps restores PE and leaves PD as it is"
_THEORY = "The hard-margin student follows its theory"

CLAIM_RULES: tuple[ClaimRule, ...] = (
    ClaimRule("1", _POWER, "error, alpha 4", lambda e: e.mean(e.line(), 4.0), 0.048, 0.064),
    ClaimRule("1", _POWER, "error, alpha 8", lambda e: e.mean(e.line(), 8.0), 0.0135, 0.019),
    ClaimRule("1", _POWER, "log-log slope, alpha >= 3", lambda e: e.slope(e.line(), 3.0), -2.1, -1.75),
    ClaimRule("2", _EASY, "PE 20 % / none, alpha 1", _ratio_to_none("pe", 0.2, 1.0), low=1.8),
    ClaimRule("2", _EASY, "PE 20 % / none, alpha 4", _ratio_to_none("pe", 0.2, 4.0), high=0.06),
    ClaimRule("2", _EASY, "PE 20 % / none, alpha 8", _ratio_to_none("pe", 0.2, 8.0), high=0.05),
    ClaimRule("2", _EASY, "PE 10 % / none, alpha 8", _ratio_to_none("pe", 0.1, 8.0), high=0.014),
    ClaimRule("2", _EASY, "PE 5 % / none, alpha 8", _ratio_to_none("pe", 0.05, 8.0), high=0.005),
    ClaimRule("3", _HARD, "largest PD 50, 20, 10 % / none", _worst_pd, high=0.6),
    ClaimRule("4", _CLIFF, "error(1.5) / error(3), none", _cliff_height("none", 1.0), high=3.5),
    ClaimRule("4", _CLIFF, "error(1.5) / error(3), PE 20 %", _cliff_height("pe", 0.2), low=30),
    ClaimRule("4", _CLIFF, "error(1.5) / error(3), PE 10 %", _cliff_height("pe", 0.1), low=150),
    ClaimRule("5", _SMALL, "mean gain in %, alpha 3 to 8", lambda e: float(np.mean(e.gains(0.001))), 2.8, 4.5),
    ClaimRule("5", _SMALL, "smallest gain in %, alpha 3 to 8", lambda e: min(e.gains(0.001)), low=0.0),
    ClaimRule("6", _LARGE, "gain in %, alpha 0.5", _gain_of_attack(0.01, 0.5), low=4),
    ClaimRule("6", _LARGE, "gain in %, alpha 4", _gain_of_attack(0.01, 4.0), low=22),
    ClaimRule("6", _LARGE, "gain in %, alpha 8", _gain_of_attack(0.01, 8.0), low=28),
    ClaimRule("7", _COLLAPSE, "error, PE 1 %, alpha 8", lambda e: e.mean(e.line("pe", 0.01, 0.01), 8.0), low=0.9),
    ClaimRule("7", _COLLAPSE, "PE 1 % / none, alpha 8", _ratio_to_none("pe", 0.01, 8.0, 0.01), low=50),
    ClaimRule("8", _FILTER, "filtered PE 1 % / none, alpha 8", _ratio_to_none("pe", 0.01, 8.0, 0.01, True), high=0.002),
    ClaimRule("8", _FILTER, "smallest PD filtered / not, alpha 8", _filter_effect(False), 0.85, 1.15),
    ClaimRule("8", _FILTER, "largest PD filtered / not, alpha 8", _filter_effect(True), 0.85, 1.15),
    ClaimRule("9", _THEORY, "largest deviation, alpha 4 and 8", _theory_gap, high=0.15),
    ClaimRule("A", "PE is worse than no pruning at eps 0.01, large alpha", "PE 20 % / none, alpha 16",
         _ratio_to_none("pe", 0.2, 16.0, 0.01), low=1.0),
    ClaimRule("A", "PE is worse than no pruning at eps 0.01, large alpha", "PE 5 % / none, alpha 16",
         _ratio_to_none("pe", 0.05, 16.0, 0.01), low=1.0),
    ClaimRule("B", "PD is no better than no pruning at eps 0.01, large alpha", "PD 10 % / none, alpha 16",
         _ratio_to_none("pd", 0.1, 16.0, 0.01), low=0.95),
    ClaimRule("C", "The 3 to 4 % gained at eps 0.001 come at every alpha", "smallest gain in %, all alpha",
         lambda e: min(e.gain(0.001, alpha) for alpha in e.alphas), low=2.5),
    ClaimRule("D", "An attack of 0.05 reverses the gain without pruning", "gain in %, alpha 4",
         _gain_of_attack(0.05, 4.0), high=0.0),
    ClaimRule("E", "A teacher on an axis is general: a dense one gains as much",
         "gain in %, dense teacher, eps 0.01, alpha 4", _gain_of_attack(0.01, 4.0, "dense"), low=20),
    ClaimRule("F", "At a fixed kept fraction the fall under PE is faster than a power of alpha",
         "log-log slope, PE 20 %, alpha >= 4", lambda e: e.slope(e.line("pe", 0.2), 4.0), high=-3.0),
)  # fmt: skip


def format_claims(claims: list[StudyClaim]) -> str:
    """Return the table as markdown."""
    lines = ["| | claim | measured | value | holds if | verdict |", "|---|---|---|---|---|---|"]
    for claim in claims:
        value = "" if claim.value is None else f"{claim.value:.4g}"
        cells = (claim.number, claim.statement, claim.quantity, value, claim.criterion, claim.verdict)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
