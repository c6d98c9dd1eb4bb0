"""Where the values of a Parquet column of bytes lie, page by page: so one picture is read without its row group.

Arrow reads whole row groups, which for pictures are 10 MB to a gigabyte. The pages in them are about a megabyte. Only
what writers of pictures use is read: plain and dictionary pages, version 1 and 2, whole or packed.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError
from puma.pools.archives import read_at

PAGE = np.dtype([("size", "<u4"), ("start", "<u4"), ("length", "<u4")])  # unpacked size, and the value within it
_PLAIN, _DICTIONARIES = 0, (2, 8)  # encodings of values
_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3  # types of pages
_LONGEST_HEADER = 1 << 16  # bytes: statistics may lengthen a header
_LARGEST_PAGE = 1 << 30  # bytes unpacked; writers cut at a megabyte, or behind one large value
_CODECS = {
    "UNCOMPRESSED": None,
    "SNAPPY": "snappy",
    "GZIP": "gzip",
    "BROTLI": "brotli",
    "ZSTD": "zstd",
    "LZ4": "lz4_raw",
}


class ValuePlace(NamedTuple):
    """Where a value lies: ``offset`` and ``length`` in the file, of itself or, if ``size``, of its packed page."""

    offset: int
    length: int
    size: int = 0
    start: int = 0
    inner: int = 0


FoundValue = tuple[ValuePlace, bytes]


@dataclass
class _PageHeader:
    """What a page says of itself; numbers by field, as the format has them."""

    fields: dict[int, Any] = field(default_factory=dict)
    length: int = 0


def find_codec(name: str, source: str) -> str | None:
    """Return Arrow's name of a column's compression; None for none."""
    if name not in _CODECS:
        raise PumaError(
            f"{source}: its pictures are packed by {name}, which is not read; write them with snappy or zstd."
        )
    return _CODECS[name]


def read_page_value(content: bytes, codec: str, page: Any, source: str) -> bytes:
    """Unpack a page and take one value out of it."""
    size, start, length = int(page["size"]), int(page["start"]), int(page["length"])
    if size > _LARGEST_PAGE or start + length > size:
        raise PumaError(f"the index of {source} is damaged: a page of {size:,} bytes; import the pool again.")
    unpacked = _unpack(content, codec, size, source)
    return unpacked[start : start + length]


def _unpack(content: bytes, codec: str, size: int, source: str) -> bytes:
    import pyarrow as pa  # not for those who read tars

    try:
        return bytes(pa.Codec(cast(Any, codec)).decompress(content, size, asbytes=True))
    except Exception as error:  # Arrow raises its own kinds
        raise PumaError(f"{source} is damaged: a page cannot be unpacked ({error}).") from error


def iterate_values(handle: int, chunk: Any, levels: int, codec: str | None, source: str) -> Iterator[FoundValue | None]:
    """Yield place and content of every value of a column chunk of bytes, None for a missing one.

    ``chunk`` is Arrow's description of it, ``levels`` how many of the column's parts may be missing.
    """
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        start = min(start, chunk.dictionary_page_offset)
    end = min(start + chunk.total_compressed_size, os.fstat(handle).st_size)
    entries: list[FoundValue] = []
    found = 0
    while found < chunk.num_values:
        if start >= end:
            raise PumaError(f"{source} is cut short: {found} of {chunk.num_values} pictures of a row group are there.")
        header = _read_header(read_at(handle, start, min(_LONGEST_HEADER, end - start)), source)
        kind, size, packed = (int(header.fields.get(name, -1)) for name in (1, 2, 3))
        body = start + header.length
        if not (packed >= 0 and 0 <= size <= _LARGEST_PAGE and body + packed <= end):
            raise PumaError(f"{source} is damaged: a page of {packed:,} bytes, {size:,} when unpacked.")
        start = body + packed
        if kind == _DICTIONARY:
            content, place = _open_page(handle, body, packed, size, codec, source)
            entries = list(_walk_plain(content, 0, int(header.fields[7][1]), place, source))
        elif kind in (_DATA, _DATA_2):
            for value in _read_values(handle, body, packed, size, header, kind, levels, codec, entries, source):
                found += 1
                yield value


def _open_page(
    handle: int, body: int, packed: int, size: int, codec: str | None, source: str
) -> tuple[bytes, ValuePlace]:
    """Return a page's values, unpacked, and the place that the values' places are built upon."""
    content = read_at(handle, body, packed)
    if codec is None:
        return content, ValuePlace(body, packed)
    return _unpack(content, codec, size, source), ValuePlace(body, packed, max(size, 1))


def _read_values(
    handle: int,
    body: int,
    packed: int,
    size: int,
    header: _PageHeader,
    kind: int,
    levels: int,
    codec: str | None,
    entries: list[FoundValue],
    source: str,
) -> Iterator[FoundValue | None]:
    described = header.fields.get(5 if kind == _DATA else 8, {})
    count = int(described.get(1, 0))
    begin = 0
    if kind == _DATA_2:  # levels stand before what is packed
        before = int(described.get(5, 0)) + int(described.get(6, 0))
        encoding, defined = int(described.get(4, 0)), read_at(handle, body, before)
        packed_values = described.get(7, True)
        content, place = _open_page(
            handle, body + before, packed - before, size - before, codec if packed_values else None, source
        )
    else:
        encoding = int(described.get(2, 0))
        content, place = _open_page(handle, body, packed, size, codec, source)
        defined = b""
        if levels:
            length = int.from_bytes(content[:4], "little")
            defined, begin = content[4 : 4 + length], 4 + length
    present = np.ones(count, dtype=bool)
    if levels:
        present = _read_runs(defined, levels.bit_length(), count, source) == levels
    if encoding == _PLAIN:
        values = _walk_plain(content, begin, int(present.sum()), place, source)
    elif encoding in _DICTIONARIES:
        width = content[begin] if begin < len(content) else 0
        chosen = _read_runs(content[begin + 1 :], width, int(present.sum()), source)
        if len(chosen) and int(chosen.max()) >= len(entries):
            raise PumaError(f"{source} is damaged: a page names a value that its dictionary lacks.")
        values = (entries[int(number)] for number in chosen)
    else:
        raise PumaError(f"{source}: its pictures are in encoding {encoding}; write them plain, or import with --pack.")
    for there in present:
        yield next(values) if there else None


def _walk_plain(content: bytes, begin: int, count: int, place: ValuePlace, source: str) -> Iterator[FoundValue]:
    """Yield where ``count`` values lie, each behind its length."""
    for _ in range(count):
        length = int.from_bytes(content[begin : begin + 4], "little")
        begin += 4
        if begin + length > len(content):
            raise PumaError(f"{source} is damaged: a value goes beyond its page.")
        value = content[begin : begin + length]
        if place.size:
            yield ValuePlace(place.offset, place.length, place.size, begin, length), value
        else:
            yield ValuePlace(place.offset + begin, length), value
        begin += length


def _read_runs(content: bytes, width: int, count: int, source: str) -> NDArray[np.int64]:
    """Decode ``count`` numbers of ``width`` bits: runs of one value, or groups of eight packed ones."""
    numbers = np.zeros(count, dtype=np.int64)
    filled = place = 0
    while filled < count and width:
        head, place = _read_varint(content, place, source)
        if head & 1:
            size = (head >> 1) * width
            bits = np.unpackbits(np.frombuffer(content[place : place + size], dtype=np.uint8), bitorder="little")
            groups = bits[: len(bits) // width * width].reshape(-1, width)
            values = groups[: count - filled].astype(np.int64) @ (1 << np.arange(width, dtype=np.int64))
            place += size
        else:
            size = -(-width // 8)
            values = np.full(min(head >> 1, count - filled), int.from_bytes(content[place : place + size], "little"))
            place += size
        if not len(values):
            raise PumaError(f"{source} is damaged: the levels of a page end too early.")
        numbers[filled : filled + len(values)] = values
        filled += len(values)
    return numbers


def _read_varint(content: bytes, place: int, source: str) -> tuple[int, int]:
    number = shift = 0
    while place < len(content) and shift < 70:
        byte = content[place]
        number |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return number, place
    raise PumaError(f"{source} is damaged: a number in a page's header does not end.")


def _read_header(content: bytes, source: str) -> _PageHeader:
    """Read a page header, which is a Thrift structure in the compact protocol."""
    try:
        fields, length = _read_struct(content, 0, source, 0)
    except IndexError as error:
        raise PumaError(f"{source} is damaged: a page's header goes beyond its end.") from error
    return _PageHeader(fields, length)


def _read_struct(content: bytes, place: int, source: str, depth: int) -> tuple[dict[int, Any], int]:
    if depth > 8:
        raise PumaError(f"{source} is damaged: a page's header is nested too deep.")
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head = content[place]
        place += 1
        if head == 0:
            return fields, place
        if head >> 4:
            number += head >> 4
        else:
            raw, place = _read_varint(content, place, source)
            number = (raw >> 1) ^ -(raw & 1)
        fields[number], place = _read_field(content, place, head & 15, source, depth)


def _read_field(content: bytes, place: int, kind: int, source: str, depth: int) -> tuple[Any, int]:
    """Read one value: booleans, integers, bytes, structures; lists and maps do not occur in page headers."""
    if kind in (1, 2):
        return kind == 1, place
    if kind in (4, 5, 6):
        raw, place = _read_varint(content, place, source)
        return (raw >> 1) ^ -(raw & 1), place
    if kind == 8:
        length, place = _read_varint(content, place, source)
        return content[place : place + length], place + length
    if kind == 12:
        return _read_struct(content, place, source, depth + 1)
    raise PumaError(f"{source} is damaged: a page's header has a field of kind {kind}.")
