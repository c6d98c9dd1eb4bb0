"""One Parquet format for every score: ``sample_id`` and the score, with the pool's fingerprint in the footer."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from puma.errors import PumaError, unknown_name
from puma.pools import Pool
from puma.scores.align import align, check_unique

# what a score is called, as a column -> what an easy sample has of it
KINDS: dict[str, str] = {
    "margin": "high",
    "cd_clean": "low",
    "cd_adversarial": "low",
    "forgetting_clean": "low",
    "forgetting_adversarial": "low",
    "el2n": "low",
}
_FOOTER = b"puma"
_ROWS = 1 << 20  # read in one go: a table of fifty million rows is never in memory twice


@dataclass(frozen=True, eq=False)
class Scores:
    """A number per sample. NaN says that there is none: a margin search that failed, a sample never seen."""

    kind: str
    sample_id: NDArray[np.int64]
    score: NDArray[np.float32]
    pool_fingerprint: str
    made_from: Mapping[str, str] = field(default_factory=dict)

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
        rows = align(self.sample_id, pool.sample_id, f"the table of {self.kind}")
        return self.score if rows is None else self.score[rows]

    def save(self, path: str | Path) -> Path:
        """Write the table; whole or not at all."""
        return save_scores([self], path)


def save_scores(scores: list[Scores], path: str | Path) -> Path:
    """Write several scores of the same samples as columns of one table; whole or not at all."""
    path, first = Path(path), scores[0]
    columns = {"sample_id": pa.array(first.sample_id), **{score.kind: pa.array(score.score) for score in scores}}
    footer = {"pool_fingerprint": first.pool_fingerprint, "made_from": dict(first.made_from)}
    table = pa.table(columns).replace_schema_metadata({_FOOTER: json.dumps(footer)})
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    pq.write_table(table, partial)
    partial.replace(path)
    return path


def open_scores(path: str | Path, kind: str | None = None) -> Scores:
    """Read a score; ``kind`` is needed only where the table has several."""
    path = Path(path)
    if not path.is_file():
        raise PumaError(f"no scores at {path}; make them with: puma margins or puma scores.")
    try:
        with path.open("rb") as file:
            schema = pq.read_schema(file)
        present = [name for name in KINDS if name in schema.names]
        if kind is not None and kind not in present:
            raise unknown_name(f"score in {path}", kind, present)
        if not present or "sample_id" not in schema.names:
            raise PumaError(f"{path} has no score: expected sample_id and one of {', '.join(KINDS)}.")
        if kind is None and len(present) > 1:
            raise PumaError(f"{path} has several scores ({', '.join(present)}); name one after a colon: FILE:SCORE.")
        chosen = kind or present[0]
        footer = json.loads((schema.metadata or {})[_FOOTER])
        fingerprint = str(footer["pool_fingerprint"])
        sample_id = read_column(path, "sample_id", pa.int64())
        score = read_column(path, chosen, pa.float32())
    except (pa.ArrowException, OSError) as error:
        raise PumaError(f"{path} is not a whole parquet table of scores ({str(error).rstrip('.')}).") from error
    except (KeyError, TypeError, ValueError) as error:
        raise PumaError(f"{path} does not say which pool it is for; make it again.") from error
    return Scores(chosen, sample_id, score, fingerprint, {"file": path.name})


def read_column(path: Path, name: str, kind: pa.DataType) -> NDArray[Any]:
    """Read one column of a Parquet table; missing values raise."""
    with path.open("rb") as opened, pq.ParquetFile(opened) as file:
        values = np.empty(file.metadata.num_rows, dtype=kind.to_pandas_dtype())
        filled = missing = 0
        for batch in file.iter_batches(columns=[name], batch_size=_ROWS):
            column = batch.column(0).cast(kind)
            missing += column.null_count
            if not missing:
                values[filled : filled + len(column)] = column.to_numpy(zero_copy_only=False)
                filled += len(column)
    if missing:
        raise PumaError(f"{path}: {missing} values of {name} are missing; make it again.")
    return values


def open_named(text: str) -> Scores:
    """Read ``FILE`` or ``FILE:SCORE``, as it is typed on the command line."""
    file, colon, kind = text.rpartition(":")
    if Path(text).is_file() or not colon:
        return open_scores(text)
    if kind not in KINDS and Path(file).is_file():
        raise unknown_name("score", kind, list(KINDS))
    return open_scores(file, kind)
