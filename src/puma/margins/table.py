"""Margins on disk: parquet, written whole or not at all."""

import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from puma.errors import PumaError
from puma.margins.job import FORMAT, KEY
from puma.margins.result import Margins
from puma.margins.status import Status

T = TypeVar("T")
_FIELDS: "list[pa.Field[Any]]" = [
    pa.field("sample_id", pa.int64()),
    pa.field("margin", pa.float32()),
    pa.field("status", pa.int8()),
    pa.field("prediction", pa.int32()),
    pa.field("rival", pa.int32()),
]
SCHEMA = pa.schema(_FIELDS)


@dataclass(frozen=True, eq=False)
class MarginTable:
    """The columns of a margins file, and what its footer says it was made from."""

    sample_id: NDArray[np.int64]
    margin: NDArray[np.float32]
    status: NDArray[np.int8]
    prediction: NDArray[np.int32]
    rival: NDArray[np.int32]
    made_from: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.sample_id)

    @property
    def crossed(self) -> NDArray[np.bool_]:
        """Was the boundary found (n,)."""
        crossed: NDArray[np.bool_] = self.status == Status.CROSSED
        return crossed


def to_arrow(sample_id: NDArray[np.int64], margins: Margins, footer: dict[bytes, bytes]) -> pa.Table:
    """Put measured margins beside the ids of their samples."""
    columns: list[pa.Array[Any]] = [
        pa.array(sample_id, pa.int64()),
        pa.array(margins.margin.numpy(), pa.float32()),
        pa.array(margins.status.numpy(), pa.int8()),
        pa.array(margins.prediction.numpy(), pa.int32()),
        pa.array(margins.rival.numpy(), pa.int32()),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA.with_metadata(footer))


def write_whole(path: Path, tables: Iterable[pa.Table], footer: dict[bytes, bytes]) -> None:
    """Write tables as row groups of one file that appears under its name only when it is complete on disk."""
    schema = SCHEMA.with_metadata(footer)
    with _appearing(path) as partial, pq.ParquetWriter(partial, schema, write_page_checksum=True) as writer:
        for table in tables:
            writer.write_table(table)


@contextmanager
def _appearing(path: Path) -> Iterator[Path]:
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        reason = os.strerror(errno.ENOSPC) if error.errno == errno.ENOSPC else (error.strerror or str(error))
        raise PumaError(
            f"cannot write {path}: {reason}; what was written before is kept, run the same command again to go on."
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def read_footer(path: Path) -> dict[str, Any]:
    """Return what a margins file was made from; a file of another kind, or one cut short, raises."""
    metadata = _reading(path, pq.read_schema).metadata or {}
    described: dict[str, Any] = json.loads(metadata[KEY]) if KEY in metadata else {}
    if described.get("format") != FORMAT:
        raise PumaError(f"{path} is not a margins file of this version (no {FORMAT!r} in its footer).")
    return described


def read_rows(path: Path) -> pa.Table:
    """Read a whole file, its checksums verified."""
    return _reading(path, lambda file: pq.read_table(file, schema=SCHEMA, page_checksum_verification=True))


def read_margins(path: str | Path) -> MarginTable:
    """Read a margins file."""
    described, rows = read_footer(Path(path)), read_rows(Path(path))
    columns = {name: rows.column(name).to_numpy().copy() for name in SCHEMA.names}
    return MarginTable(**columns, made_from=described)


def _reading(path: Path, read: Callable[[BinaryIO], T]) -> T:
    if not path.is_file():
        raise PumaError(f"no margins at {path}: expected a parquet file written by puma margins.")
    try:
        with path.open("rb") as file:  # not the path: its name need not be UTF-8
            return read(file)
    except (pa.ArrowException, OSError) as error:
        raise PumaError(f"{path} is damaged or not a parquet file ({str(error).splitlines()[0]}).") from error
