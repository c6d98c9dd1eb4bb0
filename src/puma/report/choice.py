"""Which samples a gallery shows when there are too many for a page."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError

LEAST = 16
_SHARE = 8  # each group may take an eighth of what is shown


@dataclass(frozen=True, eq=False)
class Choice:
    """Rows to show (k,), ascending by margin, and for each group which of them belong to it (k,)."""

    rows: NDArray[np.int64]
    groups: dict[str, NDArray[np.bool_]]


def choose(
    margin: NDArray[np.float32], most: int, *, eps: float | None, threshold: float | None, seed: int = 0
) -> Choice:
    """Choose at most ``most`` rows: the extremes, those nearest to 0, eps and the threshold, the rest at random.

    A sample without a margin (NaN) can only be drawn at random. With room for all, all are shown.
    """
    if most < LEAST:
        raise PumaError(f"--max-samples must be at least {LEAST}, got {most}.")
    share = min(most, len(margin)) // _SHARE or 1
    known = np.flatnonzero(~np.isnan(margin))
    ascending = known[np.argsort(margin[known], kind="stable")]
    targets = {"zero": 0.0, "eps": eps, "threshold": threshold}
    members = {"lowest": ascending[margin[ascending] < 0][:share]}
    for name, target in targets.items():
        if target is not None and np.isfinite(target):
            members[name] = known[np.argsort(np.abs(margin[known] - target), kind="stable")[:share]]
    members["highest"] = ascending[::-1][:share]
    taken = np.unique(np.concatenate(list(members.values()))) if len(known) else known
    others = np.setdiff1d(np.arange(len(margin)), taken, assume_unique=True)
    room = max(most - len(taken), 0)
    drawn = others if len(others) <= room else np.random.default_rng(seed).choice(others, room, replace=False)
    rows = np.concatenate([taken, drawn])
    rows = rows[np.argsort(margin[rows], kind="stable")]
    groups = {name: np.isin(rows, ids) for name, ids in members.items() if len(ids)}
    groups["random"] = ~np.isin(rows, taken)
    return Choice(rows, {name: flags for name, flags in groups.items() if flags.any()})
