"""Classification difficulty and forgetting counts, from the recorded outcomes of a training run."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Tally:
    """Counts per sample (n,): visits, visits at which it was wrong, and times it went from right to wrong."""

    seen: NDArray[np.uint32]
    wrong: NDArray[np.uint32]
    forgotten: NDArray[np.uint32]

    @property
    def difficulty(self) -> NDArray[np.float32]:
        """CD: share of visits at which the sample was misclassified; NaN if it was never visited."""
        return self._of_seen(self.wrong / np.maximum(self.seen, 1))

    @property
    def forgetting(self) -> NDArray[np.float32]:
        """Times the sample was right at a visit and wrong at the next; NaN if it was never visited."""
        return self._of_seen(self.forgotten)

    def _of_seen(self, values: NDArray[np.generic]) -> NDArray[np.float32]:
        return np.where(self.seen > 0, values, np.nan).astype(np.float32)


def tally(count: int, visits: Iterable[tuple[NDArray[np.int64], NDArray[np.bool_]]]) -> Tally:
    """Count over ``visits``: parts of (positions, right), in the order of time.

    A position may come several times in a part. Memory is 13 bytes a sample, whatever the number of visits.
    """
    seen, wrong, forgotten = (np.zeros(count, dtype=np.uint32) for _ in range(3))
    was_right = np.zeros(count, dtype=bool)
    for positions, right in visits:
        order = np.argsort(positions, kind="stable")
        place, now = positions[order], right[order]
        first = np.concatenate([[True], place[1:] != place[:-1]])[: len(place)]
        before = np.where(first, was_right[place], np.concatenate([[False], now[:-1]])[: len(place)])
        np.add.at(seen, place, 1)
        np.add.at(wrong, place[~now], 1)
        np.add.at(forgotten, place[before & ~now], 1)
        was_right[place] = now  # of several visits the last one stays: assignment goes in order
    return Tally(seen, wrong, forgotten)
