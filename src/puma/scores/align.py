"""Find the rows of a table that belong to the samples of a pool."""

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError

Ids = NDArray[np.int64]


def check_unique(sample_id: Ids, what: str) -> None:
    """Raise if an id appears twice."""
    if bool((sample_id[1:] > sample_id[:-1]).all()):
        return
    ordered = np.sort(sample_id)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise PumaError(f"{what} names sample_id {int(twice[0])} more than once; each sample may appear once.")


def align(sample_id: Ids, wanted: Ids, what: str) -> Ids | None:
    """Return, for every wanted id, its row among ``sample_id``; None where the two are the same, row by row.

    Ids that are not wanted are passed over; wanted ones that are missing raise.
    """
    if len(sample_id) == len(wanted) and bool((sample_id == wanted).all()):
        return None
    order = np.argsort(sample_id, kind="stable")
    known = sample_id[order]
    place = np.searchsorted(known, wanted).clip(max=max(len(known) - 1, 0))
    found = known[place] == wanted if len(known) else np.zeros(len(wanted), dtype=bool)
    if not found.all():
        absent = wanted[~found]
        raise PumaError(
            f"{len(absent):,} of the pool's {len(wanted):,} samples are missing in {what}, "
            f"the first with sample_id {int(absent[0])}; make it again."
        )
    rows: Ids = order[place]
    return rows
