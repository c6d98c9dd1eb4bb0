"""Which columns of a Parquet file are pictures and labels, and where every picture lies."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from puma.errors import PumaError
from puma.pools.decoding import DecodePolicy, check_picture
from puma.pools.parquet_pages import ValuePlace, find_codec, iterate_values
from puma.tables import open_table

_GLANCE = DecodePolicy(32)  # for pictures that do not look whole


@dataclass(frozen=True)
class PictureColumns:
    """Names of the columns: the leaf with the bytes, the one with paths or "", the labels; and the classes' names."""

    image: str
    path: str
    label: str
    class_names: tuple[str, ...] = ()

    def codec(self, path: Path) -> str:
        """Return how a file packs its pictures; all its row groups must do it alike."""
        with open_table(path, "a table of pictures") as file:
            groups = range(file.metadata.num_row_groups)
            leaf = _find_leaf(file, self.image, path)
            codecs = {file.metadata.row_group(group).column(leaf).compression for group in groups}
        if len(codecs) > 1:
            raise PumaError(f"{path} packs its row groups in several ways ({', '.join(codecs)}); write it in one.")
        return codecs.pop() if codecs else "UNCOMPRESSED"


def find_columns(path: Path, image_column: str, label_column: str) -> PictureColumns:
    """Find the columns in the first file; what is not there or of another type is told with what there is."""
    with open_table(path, "a table of pictures") as file:
        schema = file.schema_arrow
        metadata = schema.metadata or {}
    named = image_column or next((name for name in ("image", "img", "jpg", "png") if name in schema.names), "")
    if named not in schema.names:
        raise PumaError(
            f"{path} has no column {named or 'image'!r}, only {', '.join(schema.names)}; see --image-column."
        )
    if label_column not in schema.names:
        raise PumaError(f"{path} has no column {label_column!r}, only {', '.join(schema.names)}; see --label-column.")
    kind = schema.field(named).type
    inner = {kind.field(place).name: kind.field(place).type for place in range(kind.num_fields)}
    if pa.types.is_struct(kind) and _is_bytes(inner.get("bytes")):
        image, with_path = f"{named}.bytes", f"{named}.path" if pa.types.is_string(inner.get("path", pa.null())) else ""
    elif _is_bytes(kind):
        image, with_path = named, ""
    else:
        raise PumaError(f"{path}: {named} must be bytes of pictures, or a structure with them, it is {kind}.")
    label = schema.field(label_column).type
    if not (pa.types.is_integer(label) or pa.types.is_string(label) or pa.types.is_large_string(label)):
        raise PumaError(f"{path}: {label_column} must be whole numbers or names, it is {label}; see --label-column.")
    return PictureColumns(image, with_path, label_column, _read_class_names(metadata, label_column))


def _is_bytes(kind: pa.DataType | None) -> bool:
    return kind is not None and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _read_class_names(metadata: Any, label: str) -> tuple[str, ...]:
    """Return the names of the classes as Hugging Face's writer notes them, if it did."""
    try:
        told = json.loads(metadata[b"huggingface"])["info"]["features"][label]["names"]
        return tuple(str(name) for name in told)
    except (KeyError, TypeError, ValueError, RecursionError):
        return ()


def _find_leaf(file: pq.ParquetFile, dotted: str, path: Path) -> int:
    for place in range(len(file.schema.names)):
        if file.schema.column(place).path == dotted:
            return place
    raise PumaError(f"{path} has no column {dotted!r}; all files of a pool must have the same columns.")


def scan_parquet(
    path: Path, columns: PictureColumns, warn: Callable[[str], None]
) -> Iterator[tuple[str | int, int | str, ValuePlace]]:
    """Yield key, label and place of every picture of a file; the key is its path, or its row where it has none."""
    row = 0
    with open_table(path, "a table of pictures") as file, path.open("rb") as raw:
        leaf = _find_leaf(file, columns.image, path)
        described = file.schema.column(leaf)
        if described.max_repetition_level:
            raise PumaError(f"{path}: {columns.image} holds lists; a row may have one picture.")
        codec = find_codec(columns.codec(path), str(path))
        wanted = [name for name in (columns.label, columns.path) if name]
        for group in range(file.metadata.num_row_groups):
            chunk = file.metadata.row_group(group).column(leaf)
            places = iterate_values(raw.fileno(), chunk, described.max_definition_level, codec, str(path))
            table = file.read_row_group(group, columns=wanted)
            if columns.label not in table.column_names:
                raise PumaError(
                    f"{path} has no column {columns.label!r}; all files of a pool must have the same columns."
                )
            labels = table.column(columns.label).to_pylist()
            paths: list[str | None] = [None] * len(labels)
            if columns.path:
                paths = pc.struct_field(table.column(columns.image.partition(".")[0]), "path").to_pylist()
            for value, label, name in zip(places, labels, paths, strict=True):
                reason = None if value is not None else "no picture"
                if label is None or label == "" or (isinstance(label, int) and label < 0):
                    reason = "no label"
                if value is not None and reason is None:
                    reason = check_picture(partial(_slice, value[1]), 0, len(value[1]), _GLANCE)
                if value is None or label is None or reason is not None:
                    warn(f"{path.name}: row {row} ({reason})")
                else:
                    yield name or row, label, value[0]
                row += 1


def _slice(content: bytes, start: int, size: int) -> bytes:
    return content[start : start + size]
