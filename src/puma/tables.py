"""Parquet tables: written whole, every page with its checksum, read with all checksums verified.

Arrow gets native files only. Its threads may outlive a call, and one that frees a Python file's buffer while the
interpreter ends aborts the process after its work is done.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from puma.errors import PumaError
from puma.files import open_regular, parse_json, replace_atomically

_KEY = b"puma"
_MOST_PACKED = 1 << 7  # rows a byte: no table of ids, each another one, is packed as tightly
_ROWS = 1 << 20  # rows in one go: a table of fifty million is never in memory twice


@dataclass(frozen=True)
class TableHead:
    """What a table says of itself: its columns, the number of its rows, and our part of its footer."""

    columns: tuple[str, ...]
    rows: int
    footer: Mapping[str, Any]


def write_table(
    path: str | Path, schema: pa.Schema, parts: Iterable[pa.Table | pa.RecordBatch], footer: Mapping[str, Any]
) -> Path:
    """Write tables as row groups of one file, with ``footer`` as JSON in its metadata; whole or not at all."""
    described = schema.with_metadata({_KEY: json.dumps(dict(footer), sort_keys=True).encode()})
    with (
        replace_atomically(path) as partial,
        _open_native(partial, "wb") as sink,
        pq.ParquetWriter(sink, described, write_page_checksum=True) as writer,
    ):
        for part in parts:
            table = pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part
            writer.write_table(table.replace_schema_metadata(described.metadata))
    return Path(path)


def read_head(path: str | Path, what: str) -> TableHead:
    """Return columns, rows and footer of a table; a file that is no whole table raises, ``what`` names it."""
    with open_table(Path(path), what) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        metadata = schema.metadata or {}
        footer = parse_json(metadata[_KEY], str(path), "its footer") if _KEY in metadata else {}
        return TableHead(tuple(schema.names), rows, footer)


def read_columns(path: str | Path, columns: Mapping[str, pa.DataType], what: str) -> dict[str, NDArray[Any]]:
    """Read columns as arrays of the given types; missing columns, values or another type raise."""
    path = Path(path)
    values: dict[str, NDArray[Any]] = {}
    with open_table(path, what) as file:
        names, rows = file.schema_arrow.names, file.metadata.num_rows
        if rows > max(_ROWS, _MOST_PACKED * path.stat().st_size):
            raise PumaError(f"{path} is damaged: {rows:,} rows in {path.stat().st_size:,} bytes; make it again.")
        absent = [name for name in columns if name not in names]
        if absent:
            raise PumaError(f"{path} is not {what}: it lacks {', '.join(absent)}; it has {', '.join(names)}.")
        for name, kind in columns.items():
            if not _fits(file.schema_arrow.field(name).type, kind):
                raise PumaError(f"{path}: {name} must be {kind}, it is {file.schema_arrow.field(name).type}.")
            values[name] = np.empty(min(rows, _ROWS), dtype=kind.to_pandas_dtype())
            filled = 0  # the footer only says how many rows there are: room is made for those that come
            for batch in file.iter_batches(columns=[name], batch_size=_ROWS):
                column = batch.column(0).cast(kind)
                if column.null_count:
                    raise PumaError(f"{path}: {column.null_count} values of {name} are missing; make it again.")
                if filled + len(column) > min(rows, len(values[name])):
                    if filled + len(column) > rows:
                        raise PumaError(f"{path} is damaged: more than {rows:,} values of {name}; make it again.")
                    values[name].resize(min(rows, max(2 * filled, filled + len(column))), refcheck=False)
                values[name][filled : filled + len(column)] = column.to_numpy(zero_copy_only=False)
                filled += len(column)
            if filled != rows:
                raise PumaError(f"{path} is damaged: {filled:,} values of {name} for {rows:,} rows; make it again.")
    return values


def _fits(found: pa.DataType, asked: pa.DataType) -> bool:
    """Tell whether a column of one type can be meant as another: numbers of any width, and one without any values."""
    numbers = all(pa.types.is_integer(kind) for kind in (found, asked)) or (
        pa.types.is_floating(asked) and (pa.types.is_floating(found) or pa.types.is_integer(found))
    )
    return found == asked or numbers or pa.types.is_null(found)


def _open_native(path: Path, mode: str) -> pa.OSFile:
    """Open a file by its name in bytes: it need not be UTF-8, and a colon in it does not make it an address."""
    return pa.OSFile(os.fsencode(path), mode)  # type: ignore[arg-type]


@contextmanager
def open_table(path: Path, what: str) -> Iterator[pq.ParquetFile]:
    """Open a table with all checksums verified; whatever it raises within the block is one sentence."""
    open_regular(path, what).close()
    try:
        with (
            _open_native(path, "rb") as source,
            pq.ParquetFile(source, page_checksum_verification=True) as file,
        ):
            yield file
    except PumaError:
        raise
    except Exception as error:  # a damaged file can raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise PumaError(f"{path} is damaged or not a parquet file ({reason}): expected {what}.") from error
