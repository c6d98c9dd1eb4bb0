"""Which samples of a pool make a pool of their own, that is an index into it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError, unknown_name
from puma.files import open_regular, read_bytes
from puma.pools.pool import Pool
from puma.pools.shards import hash_key
from puma.pools.store import write_subset

_LARGEST_LIST = 1 << 32  # bytes of a file of ids or keys


def save_subset(
    pool: Pool,
    out: str | Path,
    *,
    keep: NDArray[np.bool_] | None = None,
    classes: Sequence[str] = (),
    ids: str | Path | None = None,
    first: int | None = None,
    force: bool = False,
) -> Path:
    """Write the samples that all conditions hold for as a pool that points into this one, with the same ids.

    Args:
        pool: a pool that lies in one folder.
        out: the folder to write.
        keep: a boolean per sample, such as what a plan keeps.
        classes: names of classes.
        ids: a file of ids or keys, see ``read_ids``.
        first: of those that are left, only so many.
        force: replace an existing pool.
    """
    if len(pool.stores) != 1 or pool.rows is not None:
        raise PumaError("a part can be made of one pool that lies in a folder; name a single one.")
    out = Path(out)
    place = pool.stores[0].path.resolve()
    if place.is_relative_to(out.resolve()):
        raise PumaError(f"--out {out} would replace the pool {place} itself; choose another --out.")
    chosen = np.ones(len(pool), dtype=bool) if keep is None else np.array(keep)
    for name in classes:
        if name not in pool.class_names:
            raise unknown_name("class", name, list(pool.class_names))
    if classes:
        chosen &= np.isin(pool.labels, [pool.class_names.index(name) for name in classes])
    if ids is not None:
        wanted = read_ids(ids, pool.sample_id)
        absent = np.flatnonzero(~np.isin(wanted, pool.sample_id))
        if len(absent):
            first_absent = _name_line(Path(ids), int(absent[0]), int(wanted[absent[0]]))
            raise PumaError(f"{ids} names {len(absent):,} samples that the pool lacks, the first is {first_absent}.")
        chosen &= np.isin(pool.sample_id, wanted)
    rows = np.flatnonzero(chosen)
    if first is not None:
        if first < 1:
            raise PumaError(f"--first must be at least 1, got {first}.")
        rows = rows[:first]
    return write_subset(pool.stores[0], rows, out, force=force)


def read_ids(path: str | Path, known: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Read ids from an .npy of integers, or from text with an id or a key a line.

    Lines of digits alone are ids, unless only as keys they are among the ``known`` ids: shards often count their keys.
    """
    path = Path(path)
    if path.suffix == ".npy":
        with open_regular(path, "an array of ids") as file:
            try:
                ids = np.load(file, allow_pickle=False)
            except Exception as error:  # a damaged header can raise anything
                raise PumaError(f"{path} is not an .npy file ({error}).") from error
        if ids.dtype.kind not in "iu" or ids.ndim != 1:
            raise PumaError(f"{path} must hold whole numbers (n,), it holds {ids.dtype} {ids.shape}.")
        return np.asarray(ids, dtype=np.int64)
    lines = _read_lines(path)
    if not lines:
        raise PumaError(f"{path} is empty; expected an id or a key a line.")
    keyed = np.array([hash_key(line) for line in lines], dtype=np.int64)
    if all(line.isdigit() and len(line) < 20 for line in lines):
        numbers = [int(line) for line in lines]
        if max(numbers) < 1 << 63 and (
            known is None or np.isin(numbers, known).any() or not np.isin(keyed, known).any()
        ):
            return np.array(numbers, dtype=np.int64)
    return keyed


def _read_lines(path: Path) -> list[bytes]:
    return [line for line in read_bytes(path, "a list of ids or keys", _LARGEST_LIST).splitlines() if line.strip()]


def _name_line(path: Path, row: int, sample_id: int) -> str:
    """Name a sample as its list does: by the line, or by its number in an .npy."""
    return f"id {sample_id}" if path.suffix == ".npy" else repr(_read_lines(path)[row].decode("utf-8", "replace"))
