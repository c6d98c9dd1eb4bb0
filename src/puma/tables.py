"""Parquet tables: written whole, every page with its checksum, read with all checksums verified.

Arrow gets native files only. Its threads may outlive a call, and one that frees a Python file's buffer while the
interpreter ends aborts the process after its work is done.
"""

import json
import os
import zlib
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
_SUMS = "puma-sums"
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
        sums, rows = dict.fromkeys(schema.names, 0), 0
        for part in parts:
            table = pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part
            writer.write_table(table.replace_schema_metadata(described.metadata))
            rows += len(table)
            for name in schema.names:
                for chunk in table.column(name).chunks:
                    sums[name] = _sum_values(chunk, sums[name])
        types = {field.name: str(field.type) for field in schema}
        written = {"rows": rows, "columns": sums, "types": types, "footer": zlib.crc32(_read_key(described))}
        writer.add_key_value_metadata({_SUMS: json.dumps(written)})
    return Path(path)


def _sum_values(chunk: "pa.Array[Any]", before: int) -> int:
    """Continue a CRC-32 over the values of a column; page checksums do not say which column a page belongs to."""
    values = chunk.to_numpy(zero_copy_only=False)
    if values.dtype.kind == "O":  # such as strings
        return zlib.crc32(json.dumps(values.tolist()).encode(), before)
    return zlib.crc32(np.ascontiguousarray(values).view(np.uint8).data, before)


def _read_key(schema: pa.Schema) -> bytes:
    """Return our part of the footer as it is written."""
    return (schema.metadata or {}).get(_KEY, b"")


def read_head(path: str | Path, what: str) -> TableHead:
    """Return columns, rows and footer of a table; a file that is no whole table raises, ``what`` names it."""
    with open_table(Path(path), what) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        sums = _read_sums(file, path)
        told = rows, zlib.crc32(_read_key(schema)), {field.name: str(field.type) for field in schema}
        if sums is not None and (sums["rows"], sums["footer"], sums["types"]) != told:
            raise PumaError(f"{path} is damaged: its footer has changed since it was written; make it again.")
        footer = parse_json(_read_key(schema), str(path), "its footer") if _read_key(schema) else {}
        return TableHead(tuple(schema.names), rows, footer)


def read_columns(path: str | Path, columns: Mapping[str, pa.DataType], what: str) -> dict[str, NDArray[Any]]:
    """Read columns as arrays of the given types; missing columns, values or another type raise."""
    path = Path(path)
    values: dict[str, NDArray[Any]] = {}
    with open_table(path, what) as file:
        names, rows = file.schema_arrow.names, file.metadata.num_rows
        if rows > max(_ROWS, _MOST_PACKED * path.stat().st_size):
            raise PumaError(f"{path} is damaged: {rows:,} rows in {path.stat().st_size:,} bytes; make it again.")
        sums = _read_sums(file, path)
        absent = [name for name in columns if name not in names]
        if absent:
            raise PumaError(f"{path} is not {what}: it lacks {', '.join(absent)}; it has {', '.join(names)}.")
        for name, kind in columns.items():
            if not _fits(file.schema_arrow.field(name).type, kind):
                raise PumaError(f"{path}: {name} must be {kind}, it is {file.schema_arrow.field(name).type}.")
            numpy_kind = pa.array([], kind).to_numpy(zero_copy_only=False).dtype  # to_pandas_dtype would need pandas
            values[name] = np.empty(min(rows, _ROWS), dtype=numpy_kind)
            found = filled = 0  # the footer only says how many rows there are: room is made for those that come
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
                found = 0 if sums is None else _sum_values(batch.column(0), found)
            if filled == rows and sums is not None and found != sums["columns"].get(name):
                raise PumaError(f"{path} is damaged: {name} has changed since it was written; make it again.")
            if filled != rows:
                raise PumaError(f"{path} is damaged: {filled:,} values of {name} for {rows:,} rows; make it again.")
    return values


def _read_sums(file: pq.ParquetFile, path: str | Path) -> dict[str, Any] | None:
    """Return the checksums of columns and footer; None where a file of an older version has none."""
    metadata = file.metadata.metadata or {}
    if _SUMS.encode() not in metadata:
        return None
    sums = parse_json(metadata[_SUMS.encode()], str(path), "its checksums")
    if not isinstance(sums.get("columns"), dict) or not {"rows", "footer", "types"} <= sums.keys():
        raise PumaError(f"{path} is damaged: its checksums are not whole; make it again.")
    return sums


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
