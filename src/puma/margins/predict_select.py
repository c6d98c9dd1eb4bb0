"""Which predicted samples to measure for real, so that a plan comes out as if all had been measured.

Agreement of two plans is the share of samples that both keep or both drop. From the errors of held-out predictions
follows, for every sample, the probability that its prediction is on the wrong side of the prune threshold; their mean
is the disagreement to expect, and those with the highest are measured first.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError

Numbers = NDArray[np.float64]
LEAST = 60  # measured samples, below which no fit is worth its name
_CHUNK = 1 << 20  # samples at a time: fifty million need no more memory than one
_NEAR = 0.7  # held-out samples within a factor of two of the threshold speak for those there ...
_ENOUGH = 200  # ... if there are as many as this
_SUBSAMPLE = 200_000  # samples that the threshold is estimated from: its error is then a twentieth of a prediction's
_QUANTILES = (np.arange(20) + 0.5) / 20  # of the error, over which strengths are averaged


@dataclass(frozen=True)
class PredictConfig:
    """How much of a pool is measured, and what for; the rest is predicted.

    >>> pool = puma.Pool.from_tensors(torch.rand(300, 1, 4, 4), torch.arange(300) % 3)
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    >>> some = puma.PredictConfig(measure=0.4, plan_agreement=0.98, prune_easy=0.2)
    >>> margins = puma.measure_pool(model, pool, method="predicted", predicting=some)
    >>> bool((margins.half_width > 0).any())  # where margins are predicted, how far off they may be
    True

    Attributes:
        measure: share of the pool to measure at random; the rest is predicted from it.
        measured_by: the method for it.
        plan_agreement: measure further samples until a plan that drops ``prune_easy`` keeps and drops the same samples
            as one from measured margins, to this share; None measures no further.
        strength_error: measure further until the strengths of kept samples are off by at most this share of eps, on
            average; None does not ask for it.
        prune_easy: share of the easiest samples that the plan will drop.
        eps: the largest strength of the plan.
        seed: draws the samples to measure.
    """

    measure: float = 0.02
    measured_by: str = "deepfool"
    plan_agreement: float | None = None
    strength_error: float | None = None
    prune_easy: float = 0.2
    eps: float = 8 / 255
    seed: int = 0

    def __post_init__(self) -> None:
        rules = {
            f"measure must lie in (0, 1], got {self.measure}": 0 < self.measure <= 1,
            f"plan_agreement must lie in (0, 1], got {self.plan_agreement}": self.plan_agreement is None
            or 0 < self.plan_agreement <= 1,
            f"strength_error must lie in [0, 1], got {self.strength_error}": self.strength_error is None
            or 0 <= self.strength_error <= 1,
            f"prune_easy must lie in (0, 1), got {self.prune_easy}": 0 < self.prune_easy < 1,
            f"eps must be positive, got {self.eps}": math.isfinite(self.eps) and self.eps > 0,
            f"seed must not be negative, got {self.seed}": self.seed >= 0,
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise PumaError(f"{'; '.join(broken)}.")

    @property
    def refines(self) -> bool:
        """Are further samples to be measured where it matters."""
        return self.plan_agreement is not None or self.strength_error is not None


@dataclass(frozen=True)
class ErrorModel:
    """How far margins lie from their predictions: log(margin / prediction) in units of the spread, sorted."""

    errors: Numbers

    def probability_below(self, ratio: Numbers) -> Numbers:
        """Return the probability that log(margin / prediction) / spread is below ``ratio``."""
        count = len(self.errors)
        steps = (np.arange(count) + 0.5) / count
        below: Numbers = np.interp(ratio, self.errors, steps, left=0.0, right=1.0)
        return below

    def quantiles(self) -> Numbers:
        """Return the error at equally spaced probabilities."""
        found: Numbers = np.quantile(self.errors, _QUANTILES)
        return found


def learn_errors(margin: Numbers, held_margin: Numbers, held_spread: Numbers, threshold: float) -> ErrorModel:
    """Learn errors from held-out predictions: of samples near the threshold where there are enough of them."""
    known = np.isfinite(held_margin) & ~np.isnan(margin) & (held_margin != 0) & (held_spread > 0)
    same_side = known & ((held_margin > 0) == (threshold > 0))
    near = same_side & (np.abs(np.log(np.abs(np.where(known, held_margin, 1)) / max(abs(threshold), 1e-30))) < _NEAR)
    chosen = next((rows for rows in (near, same_side) if rows.sum() >= _ENOUGH), known)
    ratio = np.minimum(np.abs(margin[chosen]), 1e30) / np.abs(held_margin[chosen])  # one that never crosses lies far
    return ErrorModel(np.sort(np.log(np.maximum(ratio, 1e-30)) / held_spread[chosen]))


@dataclass
class PoolEstimate:
    """What is known of every sample of a pool: margin (n,), its relative error (n,), 0 where it was measured."""

    margin: NDArray[np.float32]
    spread: NDArray[np.float32]

    def find_cut(self, fraction: float) -> float:
        """Return the margin from which a plan of these margins drops samples."""
        count = math.floor(fraction * len(self.margin) + 1e-9)
        known = np.nan_to_num(self.margin, nan=-np.inf)
        return float(np.partition(known, len(known) - count)[len(known) - count]) if count else math.inf

    def find_threshold(self, fraction: float, errors: ErrorModel) -> float:
        """Return the margin above which this share of the pool is expected, errors of predictions included."""
        step = max(1, len(self.margin) // _SUBSAMPLE)
        margin, spread = self.margin[::step].astype(np.float64), self.spread[::step].astype(np.float64)
        finite = margin[np.isfinite(margin)]
        if not len(finite):
            return math.inf
        low, high = float(finite.min()), float(finite.max())
        for _ in range(40):  # bisection: to the last digit of a float32
            middle = (low + high) / 2
            above = _probability_above(margin, spread, middle, errors).mean()
            low, high = (middle, high) if above > fraction else (low, middle)
        return (low + high) / 2

    def judge_sides(self, cut: float, threshold: float, errors: ErrorModel) -> NDArray[np.float32]:
        """Return the probability (n,) that a plan which drops from the cut on is wrong about a sample.

        It is 1 for a measured sample between cut and threshold, 0 for the other measured ones.
        """
        wrong = np.zeros(len(self.margin), dtype=np.float32)
        for start in range(0, len(wrong), _CHUNK):
            rows = slice(start, start + _CHUNK)
            above = _probability_above(self.margin[rows], self.spread[rows], threshold, errors)
            above = np.where(self.spread[rows] == 0, self.margin[rows] >= threshold, above)
            wrong[rows] = np.where(self.margin[rows] >= cut, 1 - above, above)
        wrong[np.isnan(self.margin)] = 0
        return wrong

    def judge_strengths(self, cut: float, eps: float, errors: ErrorModel) -> NDArray[np.float32]:
        """Return the error (n,) to expect of a sample's strength, as a share of eps; 0 where dropped or measured."""
        error = np.zeros(len(self.margin), dtype=np.float32)
        points = errors.quantiles()
        for start in range(0, len(error), _CHUNK):
            rows = slice(start, start + _CHUNK)
            margin = self.margin[rows].astype(np.float64)
            strength = margin.clip(-eps, eps)
            total = np.zeros(len(margin))
            for point in points:
                factor = np.exp((point * self.spread[rows]).clip(max=80))  # float32 ends at 88
                total += np.abs((margin * factor).clip(-eps, eps) - strength)
            error[rows] = np.where(margin >= cut, 0, total / len(points) / eps)
        error[(self.spread == 0) | np.isnan(self.margin)] = 0
        return error


def _probability_above(
    margin: NDArray[np.floating], spread: NDArray[np.floating], threshold: float, errors: ErrorModel
) -> Numbers:
    """Return the probability that a margin is at least the threshold, given its prediction; the sign is known."""
    margin, spread = margin.astype(np.float64), np.maximum(spread.astype(np.float64), 1e-9)
    if threshold == 0 or not math.isfinite(threshold):
        return (margin >= threshold).astype(np.float64)
    same = (margin > 0) == (threshold > 0)
    ratio = np.log(abs(threshold) / np.clip(np.abs(margin), 1e-30, 1e30)) / spread  # one not crossed is infinite
    below = errors.probability_below(ratio)  # that the distance is smaller than the threshold's
    return np.where(same, 1 - below if threshold > 0 else below, (margin > 0).astype(np.float64))


@dataclass(frozen=True)
class Expectation:
    """How a plan from these margins is expected to agree with one from measured margins."""

    agreement: float  # share of samples that both keep or both drop
    overlap: float  # share of the dropped samples that both drop
    strength_error: float  # mean over the kept samples, as a share of eps
    needed: int  # further samples to measure for what is asked
    threshold: float


def plan_measuring(
    estimate: PoolEstimate, errors: ErrorModel, config: PredictConfig
) -> tuple[Expectation, NDArray[np.int64]]:
    """Return what is to be expected now, and the samples to measure for what is asked, those that matter most first."""
    count = len(estimate.margin)
    cut = estimate.find_cut(config.prune_easy)
    threshold = estimate.find_threshold(config.prune_easy, errors)
    wrong = estimate.judge_sides(cut, threshold, errors)
    off = estimate.judge_strengths(cut, config.eps, errors)
    kept = max(count - math.floor(config.prune_easy * count + 1e-9), 1)
    disagreement, strength_error = float(wrong.sum(dtype=np.float64)), float(off.sum(dtype=np.float64))
    first = _choose_for_plan(estimate, threshold, errors, config.plan_agreement, disagreement)
    off[first] = 0
    left = float(off.sum(dtype=np.float64))
    then = _take_worst(off, left, config.strength_error, (config.strength_error or 0) * kept)
    chosen = np.concatenate([first, then])
    dropped = max(count - kept, 1)
    expected = Expectation(
        agreement=1 - disagreement / count,
        overlap=1 - disagreement / 2 / dropped,
        strength_error=strength_error / kept,
        needed=len(chosen),
        threshold=threshold,
    )
    return expected, chosen


def _choose_for_plan(
    estimate: PoolEstimate, threshold: float, errors: ErrorModel, asked: float | None, expected: float
) -> NDArray[np.int64]:
    """Return the samples to measure so that a plan agrees as asked, those most likely wrong first.

    A plan drops a fixed number, so it drops as many wrongly as it keeps wrongly: where more predictions are wrong below
    the threshold than above it, measured samples just below it are dropped for them. So either side may have half of
    what is allowed; less, if more are ``expected`` wrong than the sides say.
    """
    if asked is None:
        return np.zeros(0, dtype=np.int64)
    wrong = estimate.judge_sides(threshold, threshold, errors)
    above = estimate.margin >= threshold
    sides = [np.where(rows, wrong, 0) for rows in (above, ~above)]
    totals = [float(side.sum(dtype=np.float64)) for side in sides]
    allowed = (1 - asked) * len(wrong) / 2 - max(expected / 2 - max(totals), 0)
    chosen = [_take_worst(side, total, asked, max(allowed, 0)) for side, total in zip(sides, totals, strict=True)]
    both = np.sort(np.concatenate(chosen))
    return both[np.argsort(-wrong[both], kind="stable")]


def _take_worst(loss: NDArray[np.float32], total: float, asked: float | None, allowed: float) -> NDArray[np.int64]:
    """Return the samples of the greatest loss, as many as bring the total down to what is allowed."""
    if asked is None or total <= allowed:
        return np.zeros(0, dtype=np.int64)
    some = np.flatnonzero(loss > 0)
    order = some[np.argsort(-loss[some], kind="stable")]
    left = total - np.cumsum(loss[order], dtype=np.float64)
    return order[: int(np.searchsorted(-left, -allowed)) + 1]


def describe_expectation(expected: Expectation, config: PredictConfig) -> dict[str, Any]:
    """Return the expectation as it is told in a file's footer."""
    return {
        "expected_agreement": expected.agreement,
        "expected_overlap": expected.overlap,
        "expected_strength_error": expected.strength_error,
        "prune_easy": config.prune_easy,
        "eps": config.eps,
        "threshold": expected.threshold,
    }
