"""Rows side by side: means, 95 % intervals, differences to the baseline and whether chance explains them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from puma.errors import tell_missing
from puma.evaluation import ATTACKS, Count


@dataclass(frozen=True)
class AccuracyEstimate:
    """A mean over seeds with a 95 % interval: Wilson's of one seed's test images, Student's of several seeds."""

    mean: float
    low: float
    high: float
    spread: float | None
    seeds: int
    images: int


@dataclass(frozen=True)
class AccuracyDifference:
    """How far a row is from the baseline, in the same unit as an accuracy, with a 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def within_noise(self) -> bool:
        """Whether no difference at all is among what the interval allows."""
        return self.low <= 0 <= self.high


def student_quantile(degrees: int) -> float:
    """Return how many standard errors a two-sided 95 % interval of Student's reaches."""
    with tell_missing("report"):
        from scipy.special import stdtrit
    return float(stdtrit(degrees, 0.975))


def estimate_accuracy(counts: Sequence[Count]) -> AccuracyEstimate | None:
    """Estimate the accuracy behind the counts of one row's seeds; None of nothing.

    Seeds that happen to agree do not make it certain: no interval is narrower than one image to either side.
    """
    counted = [count for count in counts if count.total]
    if not counted:
        return None
    shares = [count.accuracy for count in counted]
    number, mean = len(shares), sum(shares) / len(shares)
    images = counted[0].total
    if number == 1:
        low, high = counted[0].interval
        return AccuracyEstimate(mean, low, high, None, 1, images)
    spread = math.sqrt(sum((share - mean) ** 2 for share in shares) / (number - 1))
    half = max(student_quantile(number - 1) * spread / math.sqrt(number), 1 / images)
    return AccuracyEstimate(mean, max(0.0, mean - half), min(1.0, mean + half), spread, number, images)


def subtract_estimates(ours: AccuracyEstimate, baseline: AccuracyEstimate) -> AccuracyDifference:
    """Subtract two estimates whose errors are independent; the interval is put together from theirs (Newcombe)."""
    mean = ours.mean - baseline.mean
    below = math.hypot(ours.mean - ours.low, baseline.high - baseline.mean)
    above = math.hypot(ours.high - ours.mean, baseline.mean - baseline.low)
    return AccuracyDifference(mean, mean - below, mean + above)


def subtract_paired(ours: Sequence[Count], baseline: Sequence[Count]) -> AccuracyDifference:
    """Subtract seed by seed, where two rows have the same two or more: Student's interval of the mean difference."""
    steps = [mine.accuracy - other.accuracy for mine, other in zip(ours, baseline, strict=True)]
    number, mean = len(steps), sum(steps) / len(steps)
    spread = math.sqrt(sum((step - mean) ** 2 for step in steps) / (number - 1))
    half = max(student_quantile(number - 1) * spread / math.sqrt(number), 1 / ours[0].total)
    return AccuracyDifference(mean, mean - half, mean + half)


def choose_robust_attack(attacks: Sequence[Mapping[str, object]]) -> str | None:
    """Return which attack robustness is told by: C&W where any row has it, else AutoAttack, else PGD-20."""
    return next((name for name in list(ATTACKS)[1:] if any(name in row for row in attacks)), None)
