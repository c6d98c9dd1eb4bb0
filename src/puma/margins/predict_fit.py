"""From what forward passes tell to margins: a fit on measured samples, with an honest error for every prediction.

The fit is of the slope: log(margin / gap), by ridge regression and boosted trees on what it leaves over. Every measured
sample is also predicted by a fit that has not seen it; from these come the spread of the error and the intervals.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError, tell_missing
from puma.margins.predict_features import CODES, CORE, Table
from puma.margins.predict_select import LEAST

Numbers = NDArray[np.float64]
MOST = 50_000  # measured samples that a fit looks at: more cost minutes and gain nothing
LEVEL = 0.9  # share of the margins that lie within the half width of their prediction
_FOLDS = 5  # the usual number: each fit sees four fifths
_ONE_HOT = 64  # classes up to which each has its own column in the ridge regression
_PENALTIES = np.logspace(-1, 5, 13)
_LEAST_SPREAD = 0.01  # no prediction is better than a percent


@dataclass(frozen=True)
class MarginPredictor:
    """A fit, and how it did on measured samples that it had not seen.

    ``slope`` and ``spread`` give log(margin / gap) and the mean error of it. The ``held`` columns are of the samples of
    the fit, each predicted without it.
    """

    slope: Callable[[Table], Numbers]
    spread: Callable[[Table, Numbers], Numbers]
    held_margin: Numbers
    held_spread: Numbers

    def predict(self, features: Table) -> tuple[Numbers, Numbers]:
        """Return signed margins and the relative error to expect of each."""
        slope = self.slope(features)
        return features[:, 0].astype(np.float64) * np.exp(slope), self.spread(features, slope)


def fit_predictor(features: Table, margin: NDArray[np.floating]) -> MarginPredictor:
    """Fit a predictor to measured margins; infinite ones (no boundary found) only count in the held-out columns."""
    usable = np.flatnonzero(np.isfinite(margin) & (margin != 0) & np.isfinite(features).all(1))
    if len(usable) < LEAST:
        raise PumaError(
            f"predicting margins needs at least {LEAST} measured ones, {len(usable)} were found; "
            "measure a larger share (--measure)."
        )
    count = len(usable)
    rows = features[usable]
    target: Numbers = np.log(np.abs(margin[usable].astype(np.float64))) - rows[:, 1].astype(np.float64)
    fold = np.random.default_rng(0).permutation(count) % _FOLDS
    held = np.empty(count)
    for number in range(_FOLDS):
        held[fold == number] = _fit_slope(rows[fold != number], target[fold != number])(rows[fold == number])
    error = np.abs(target - held)
    spread = np.empty(count)
    for number in range(_FOLDS):
        seen = fold != number
        spread[~seen] = _fit_spread(rows[seen], held[seen], error[seen])(rows[~seen], held[~seen])
    predictor = MarginPredictor(
        _fit_slope(rows, target), _fit_spread(rows, held, error), np.full(len(margin), np.nan), np.zeros(len(margin))
    )
    predictor.held_margin[usable] = rows[:, 0] * np.exp(held)
    predictor.held_spread[usable] = spread
    unseen = np.flatnonzero(~np.isnan(margin) & ~np.isfinite(margin))
    if len(unseen):
        predictor.held_margin[unseen], predictor.held_spread[unseen] = predictor.predict(features[unseen])
    return predictor


def _fit_slope(features: Table, target: Numbers) -> Callable[[Table], Numbers]:
    with tell_missing("predict"):
        from sklearn.ensemble import HistGradientBoostingRegressor

    ridge = _fit_ridge(features, target)
    straight = ridge(features)
    trees = HistGradientBoostingRegressor(
        max_iter=200,
        learning_rate=0.05,
        max_leaf_nodes=8,
        max_features=0.3,  # of the columns at each split: faster, and no worse
        early_stopping=False,
        random_state=0,
    ).fit(np.column_stack([features, straight]), target - straight)

    def predict(rows: Table) -> Numbers:
        line = ridge(rows)
        found: Numbers = line + trees.predict(np.column_stack([rows, line]))
        return found

    return predict


def _fit_spread(features: Table, slope: Numbers, error: Numbers) -> Callable[[Table, Numbers], Numbers]:
    """Fit the mean error by what kind of sample it is; few trees, since errors are noisy."""
    with tell_missing("predict"):
        from sklearn.ensemble import HistGradientBoostingRegressor

    trees = HistGradientBoostingRegressor(
        loss="poisson", max_iter=60, learning_rate=0.05, max_leaf_nodes=6, early_stopping=False, random_state=0
    ).fit(np.column_stack([features[:, : len(CORE)], slope]), error)

    def predict(rows: Table, slopes: Numbers) -> Numbers:
        found: Numbers = trees.predict(np.column_stack([rows[:, : len(CORE)], slopes]))
        return np.maximum(found, _LEAST_SPREAD)

    return predict


def _fit_ridge(features: Table, target: Numbers) -> Callable[[Table], Numbers]:
    """Ridge regression on standardised columns; the penalty is the best by leave-one-out."""
    labels = features[:, len(CORE) - CODES : len(CORE)]
    classes = int(labels.max()) + 1 if labels.max() < _ONE_HOT else 0

    def expand(rows: Table) -> Numbers:
        codes = rows[:, len(CORE) - CODES : len(CORE)].astype(int)
        plain = np.delete(rows, np.s_[len(CORE) - CODES : len(CORE)], axis=1).astype(np.float64)
        hot = [codes[:, place, None] == np.arange(classes) for place in range(CODES)]
        return np.column_stack([plain, np.abs(rows[:, :1]), *hot])

    columns = expand(features)
    centre, width = columns.mean(0), columns.std(0)
    width[width < 1e-9 * (np.abs(centre) + 1)] = np.inf  # a column that is constant tells nothing
    scaled = (columns - centre) / width
    middle = float(target.mean())
    left, values, right = np.linalg.svd(scaled, full_matrices=False)
    along = left.T @ (target - middle)
    best: tuple[float, Any] | None = None
    for penalty in _PENALTIES:
        shrink = values**2 / (values**2 + penalty)
        leverage = (left**2) @ shrink + 1 / len(target)
        error = (target - middle - left @ (shrink * along)) / np.maximum(1 - leverage, 1e-6)
        loss = float((error**2).mean())
        if best is None or loss < best[0]:
            best = loss, right.T @ (values / (values**2 + penalty) * along)
    assert best is not None
    weight = best[1]
    return lambda rows: middle + (expand(rows) - centre) / width @ weight


def calibrate_half_width(margin: Numbers, held_margin: Numbers, held_spread: Numbers, level: float = LEVEL) -> float:
    """Return the factor by which |prediction| times spread becomes a half width that holds at this level.

    Conformal prediction: of n errors never seen by the fit, the ceil((n + 1) level)-th smallest, so that a further
    sample of the same kind lies within its half width with this probability.
    """
    known = ~np.isnan(margin) & ~np.isnan(held_margin)
    score = np.abs(margin[known] - held_margin[known]) / (np.abs(held_margin[known]) * held_spread[known])
    place = int(np.ceil((len(score) + 1) * level))
    return float(np.sort(score)[place - 1]) if place <= len(score) else float("inf")
