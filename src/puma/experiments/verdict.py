"""Whether two models differ by more than chance explains, from the same seeds of both."""

import math
import statistics
from collections.abc import Sequence

from scipy.stats import t


def paired_interval(before: Sequence[float], after: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Return Student's interval of the mean difference of pairs; everything is possible for a single pair."""
    differences = [b - a for a, b in zip(before, after, strict=True)]
    if len(differences) < 2:
        return -math.inf, math.inf
    middle = statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    half = float(t.ppf((1 + level) / 2, len(differences) - 1)) * error
    return middle - half, middle + half


def compared(first: str, before: Sequence[float], second: str, after: Sequence[float]) -> str:
    """Say both means with their spread, the difference, and whether chance explains it."""
    low, high = paired_interval(before, after)
    change = 100 * (statistics.fmean(after) - statistics.fmean(before))
    told = f"{first} {_mean(before)}, {second} {_mean(after)}: {change:+.1f} points"
    if len(before) < 2:
        return f"{told}; one seed cannot tell whether that is chance"
    between = f"95 % interval {100 * low:+.1f} to {100 * high:+.1f} over {len(before)} seeds"
    verdict = "more than chance explains" if low > 0 or high < 0 else "within what chance explains"
    return f"{told}, {verdict} ({between})"


def _mean(values: Sequence[float]) -> str:
    spread = f" +- {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f} %{spread}"
