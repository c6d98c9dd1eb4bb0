"""Which samples a gallery shows when there are too many for a page."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError

LEAST = 16
_SHARE = 8  # each group may take an eighth of what is shown


@dataclass(frozen=True, eq=False)
class Choice:
    """Rows to show (k,), ascending by margin, and for each group the places among them, the most telling first."""

    rows: NDArray[np.int64]
    groups: dict[str, NDArray[np.int64]]


def choose(
    margin: NDArray[np.float32], most: int, *, eps: float | None, thresholds: Mapping[str, float], seed: int = 0
) -> Choice:
    """Choose at most ``most`` rows: the extremes, those nearest to 0, eps and thresholds, the rest at random.

    Samples whose boundary was not found (margin infinite or NaN) are a group of their own. With room for all, all are
    shown.
    """
    if most < LEAST:
        raise PumaError(f"--max-samples must be at least {LEAST}, got {most}.")
    share = min(most, len(margin)) // _SHARE or 1
    known = np.flatnonzero(np.isfinite(margin))
    ascending = known[np.argsort(margin[known], kind="stable")]
    members = {"lowest": ascending[margin[ascending] < 0][:share]}
    for name, target in {"zero": 0.0, "eps": eps, **thresholds}.items():
        if target is not None and np.isfinite(target):
            members[name] = known[np.argsort(np.abs(margin[known] - target), kind="stable")[:share]]
    members["highest"] = ascending[::-1][:share]
    members["failed"] = np.flatnonzero(~np.isfinite(margin))[:share]
    taken = np.unique(np.concatenate(list(members.values())))
    others = np.setdiff1d(np.arange(len(margin)), taken, assume_unique=True)
    room = max(most - len(taken), 0)
    members["random"] = (
        others if len(others) <= room else np.random.default_rng(seed).choice(others, room, replace=False)
    )
    rows = np.concatenate([taken, members["random"]])
    rows = rows[np.argsort(margin[rows], kind="stable")]
    place = np.full(len(margin), -1)
    place[rows] = np.arange(len(rows))
    return Choice(rows, {name: place[ids] for name, ids in members.items() if len(ids)})
