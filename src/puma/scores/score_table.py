"""One Parquet format for every score: ``sample_id`` and the score, with the pool's fingerprint in the footer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from puma.errors import PumaError, unknown_name
from puma.files import LINKS_KEY, Link, link_to_file, read_links, write_links
from puma.pools import Pool
from puma.tables import read_columns, read_head, write_table

Ids = NDArray[np.int64]
# what a score is called, as a column -> what an easy sample has of it
KINDS: dict[str, str] = {
    "margin": "high",
    "cd_clean": "low",
    "cd_adversarial": "low",
    "forgetting_clean": "low",
    "forgetting_adversarial": "low",
    "el2n": "low",
    "input_gradient": "low",
    "uncertainty": "low",
}


@dataclass(frozen=True, eq=False)
class Scores:
    """A number per sample. NaN says that there is none: a margin search that failed, a sample never seen.

    Examples:
        >>> pool = puma.Pool.from_tensors(torch.rand(5, 1, 4, 4), [0, 1, 2, 0, 1])
        >>> error = np.array([0.9, 0.1, 0.3, 0.2, 0.8], dtype=np.float32)  # high is difficult
        >>> scores = puma.Scores("el2n", pool.sample_id, error, pool.fingerprint)
        >>> puma.make_plan(pool, score=scores, prune_difficult=0.4).keep
        tensor([False,  True,  True,  True, False])

    ``made_from`` is free text about the origin.
    """

    kind: str
    sample_id: NDArray[np.int64]
    score: NDArray[np.float32]
    pool_fingerprint: str
    made_from: Mapping[str, str] = field(default_factory=dict)
    links: tuple[Link, ...] | None = None  # what it was made from; None where a file of an older version does not say
    file: Link | None = None  # where it was read from

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_name("score", self.kind, list(KINDS))
        if self.sample_id.shape != self.score.shape or self.score.ndim != 1:
            raise PumaError(
                f"{self.kind} must have one number per sample, "
                f"got shapes {self.score.shape} and {self.sample_id.shape}."
            )
        check_unique(self.sample_id, f"the table of {self.kind}")

    def __len__(self) -> int:
        return len(self.score)

    def easiness(self, pool: Pool) -> NDArray[np.float32]:
        """Return the score in the order of the pool, turned so that easy samples are high."""
        score = self.of(pool)
        return score if KINDS[self.kind] == "high" else -score

    def of(self, pool: Pool) -> NDArray[np.float32]:
        """Return the score in the order of the pool; scores of another pool raise."""
        if self.pool_fingerprint != pool.fingerprint:
            raise PumaError(
                f"the {self.kind} was made for another pool: it carries fingerprint {self.pool_fingerprint[:12]}, "
                f"this pool has {pool.fingerprint[:12]}; give the same pools in the same order."
            )
        rows = align_rows(self.sample_id, pool.sample_id, f"the table of {self.kind}")
        return self.score if rows is None else self.score[rows]

    def save(self, path: str | Path) -> Path:
        """Write the table; whole or not at all."""
        return save_scores([self], path)


def save_scores(scores: Sequence[Scores], path: str | Path) -> Path:
    """Write several scores of the same samples as columns of one table; whole or not at all."""
    first = scores[0]
    columns = {"sample_id": pa.array(first.sample_id), **{score.kind: pa.array(score.score) for score in scores}}
    footer: dict[str, Any] = {"pool_fingerprint": first.pool_fingerprint, "made_from": dict(first.made_from)}
    if first.links is not None:
        footer[LINKS_KEY] = write_links(first.links)
    table = pa.table(columns)
    return write_table(path, table.schema, [table], footer)


def open_scores(path: str | Path, kind: str | None = None) -> Scores:
    """Read a score; ``kind`` is needed only where the table has several."""
    path = Path(path)
    if not path.exists():
        raise PumaError(f"no scores at {path}; make them with: puma margins or puma scores.")
    head = read_head(path, "a table of scores")
    present = [name for name in KINDS if name in head.columns]
    if kind is not None and kind not in present:
        raise unknown_name(f"score in {path}", kind, present)
    if not present or "sample_id" not in head.columns:
        raise PumaError(f"{path} has no score: expected sample_id and one of {', '.join(KINDS)}.")
    if kind is None and len(present) > 1:
        raise PumaError(f"{path} has several scores ({', '.join(present)}); name one after a colon: FILE:SCORE.")
    chosen = kind or present[0]
    if "pool_fingerprint" not in head.footer:
        raise PumaError(f"{path} does not say which pool it is for; make it again.")
    columns = read_columns(path, {"sample_id": pa.int64(), chosen: pa.float32()}, "a table of scores")
    made_from = {"file": path.name}
    if chosen == "margin":
        made_from |= {name: str(head.footer[name]) for name in ("method", "norm", "model") if name in head.footer}
    return Scores(
        chosen,
        columns["sample_id"],
        columns[chosen],
        str(head.footer["pool_fingerprint"]),
        made_from,
        links=read_links(head.footer),
        file=link_to_file(chosen, "margins" if chosen == "margin" else "scores", path),
    )


def open_named_scores(text: str) -> Scores:
    """Read ``FILE`` or ``FILE:SCORE``, as it is typed on the command line."""
    file, colon, kind = text.rpartition(":")
    if Path(text).is_file() or not colon:
        return open_scores(text)
    if kind not in KINDS and Path(file).is_file():
        raise unknown_name("score", kind, list(KINDS))
    return open_scores(file, kind)


def check_unique(sample_id: Ids, what: str) -> None:
    """Raise if an id appears twice."""
    if bool((sample_id[1:] > sample_id[:-1]).all()):
        return
    ordered = np.sort(sample_id)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise PumaError(f"{what} names sample_id {int(twice[0])} more than once; each sample may appear once.")


def align_rows(sample_id: Ids, wanted: Ids, what: str) -> Ids | None:
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
