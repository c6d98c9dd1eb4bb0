"""Archives read without trust: tars by their headers alone, compressed files to their very last byte.

Nothing is unpacked and nothing is allocated that a header merely promises. The checksum of a compressed file stands
behind its content, so a file counts as whole only once it was read to the end.
"""

import bz2
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal, NamedTuple

from puma.errors import PumaError
from puma.files import open_regular

_BLOCK = 512  # bytes of a tar's header, and what contents are padded to
_LONGEST_NAME = 1 << 16  # bytes of a header that only names the next member; Linux allows 4096
_LONGEST_PAX = 1 << 20  # bytes of extended attributes of one member
_XZ_MEMORY = 1 << 28  # a dictionary of an .xz; its highest preset takes 65 MB
_DAMAGES = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, OSError, ValueError)
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}

ReadAt = Callable[[int, int], bytes]  # (offset, length) -> at most so many bytes


class TarMember(NamedTuple):
    """One entry of a tar: a file's name, and where its content lies; other kinds are a ``link`` or ``special``."""

    name: str
    offset: int
    size: int
    kind: Literal["file", "folder", "link", "special"]


def iterate_members(read: ReadAt, source: str | Path, *, start: int = 0, end: int | None = None) -> Iterator[TarMember]:
    """Yield what a tar holds between two places of a file, in order; one that is cut short or damaged raises.

    ``read`` is asked for ever later places, so a stream will do. Of contents nothing is read.
    """
    place, named, sized = start, "", -1
    while True:
        header = read(place, _BLOCK)
        if len(header) < _BLOCK:
            raise PumaError(f"{source} is not a whole tar archive: it ends without an end mark; fetch it again.")
        if header == bytes(_BLOCK):
            _refuse_more(read, source, place, end)
            return
        size = _read_number(header, source)
        flag, body = header[156:157], place + _BLOCK
        if flag in b"LKxg":
            place = body + -(-size // _BLOCK) * _BLOCK
            if size > (_LONGEST_PAX if flag in b"xg" else _LONGEST_NAME):
                raise PumaError(f"{source} is damaged or hostile: a header of {size:,} bytes at byte {body:,}.")
            content = read(body, size)
            if len(content) < size:
                raise PumaError(f"{source} is cut short within a header at byte {body:,}; fetch it again.")
            if flag == b"L":
                named = content.rstrip(b"\0").decode("utf-8", "surrogateescape")
            elif flag == b"x":
                named, sized = _read_pax(content, named, source)
            continue
        size = sized if sized >= 0 else size
        name = named or _read_name(header)
        kind = _tell_kind(flag, sparse=sized == -2)
        size = size if kind in ("file", "special") else 0
        named, sized = "", -1
        if end is not None and body + size > end:
            raise PumaError(f"{source} is cut short: {name!r} should have {size:,} bytes from byte {body:,} on.")
        yield TarMember(name, body, size, kind)
        place = body + -(-size // _BLOCK) * _BLOCK


def _refuse_more(read: ReadAt, source: str | Path, place: int, end: int | None) -> None:
    """Raise if another archive begins behind the end mark, as ``cat`` joins them: all of it would be lost silently."""
    while end is not None and place < end and (piece := read(place, min(1 << 16, end - place))):
        if rest := piece.lstrip(b"\0"):
            begin = place + (len(piece) - len(rest)) // _BLOCK * _BLOCK
            if _tells_its_sum(read(begin, _BLOCK)):
                raise PumaError(
                    f"{source} goes on behind its end mark, with another archive at byte {begin:,}; "
                    "give the archives that were joined one by one, or join them with: tar --concatenate."
                )
            return
        place += len(piece)


def _tells_its_sum(header: bytes) -> bool:
    try:
        told = int(header[148:156].strip(b" \0") or b"0", 8)
    except ValueError:
        return False
    return told == sum(header) - sum(header[148:156]) + 8 * ord(" ")


def _read_number(header: bytes, source: str | Path) -> int:
    """Check a header's sum and return the size that it tells."""
    try:
        field = header[124:136]
        size = int.from_bytes(field[1:], "big") if field[0] & 0x80 else int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        field, size = b"", 0
    if not field or not _tells_its_sum(header):
        raise PumaError(f"{source} is not a whole tar archive: a header's checksum is wrong; fetch it again.")
    return size


def _read_name(header: bytes) -> str:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return (prefix + b"/" + name if prefix else name).decode("utf-8", "surrogateescape")


def _tell_kind(flag: bytes, *, sparse: bool) -> Literal["file", "folder", "link", "special"]:
    if flag in (b"0", b"\0", b"7") and not sparse:
        return "file"
    return "folder" if flag == b"5" else "link" if flag in (b"1", b"2") else "special"


def _read_pax(content: bytes, named: str, source: str | Path) -> tuple[str, int]:
    """Return name and size out of records ``LENGTH KEY=VALUE``; -2 stands for a sparse file, whose size misleads."""
    place, size = 0, -1
    try:
        while place < len(content) and content[place]:
            length, _, rest = content[place : place + 20].partition(b" ")
            record = content[place + len(length) + 1 : place + int(length) - 1]
            key, _, value = record.partition(b"=")
            if key == b"path":
                named = value.decode("utf-8", "surrogateescape")
            elif key == b"size" and size != -2:
                size = int(value)
            elif key.startswith(b"GNU.sparse"):
                size = -2
            if int(length) < 5 or not rest:
                raise ValueError(f"a record of {int(length)} bytes")
            place += int(length)
    except ValueError as error:
        raise PumaError(f"{source} is damaged: extended attributes that are none ({error}).") from error
    return named, size


def read_at(handle: int, offset: int, length: int) -> bytes:
    """Read at most ``length`` bytes of an open file from a place on."""
    if hasattr(os, "pread"):
        return os.pread(handle, length, offset)
    os.lseek(handle, offset, os.SEEK_SET)  # Windows
    return os.read(handle, length)


def check_member_name(name: str, source: str | Path) -> None:
    """Raise for a name that would lead out of the folder that it is unpacked to."""
    if name.startswith("/") or "\\" in name or "\0" in name or ".." in name.split("/"):
        raise PumaError(f"{source} names a file outside of it, {name!r}; such archives are not read.")


def tell_compression(path: Path) -> str | None:
    """Return how a file is compressed, by its first bytes; None for a plain one."""
    with open_regular(path, "an archive") as file:
        begin = file.read(8)
    return next((kind for magic, kind in _MAGIC.items() if begin.startswith(magic)), None)


class ForwardReader:
    """Reads ever later places of a stream; more than ``limit`` bytes in all raise, as a small file may hold them."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self.file, self.limit, self.place = file, limit, 0

    def __call__(self, offset: int, size: int) -> bytes:
        """Read at most ``size`` bytes from ``offset`` on, piece by piece: no more is allocated than there is."""
        if offset + size > self.limit:
            raise ValueError(f"more than {self.limit:,} bytes when unpacked")
        while self.place < offset:
            skipped = len(self.file.read(min(1 << 20, offset - self.place)))
            if not skipped:
                return b""
            self.place += skipped
        pieces = []
        while size and (piece := self.file.read(min(1 << 20, size))):
            pieces.append(piece)
            size -= len(piece)
            self.place += len(piece)
        return b"".join(pieces)

    def drain(self) -> None:
        """Read to the end, which is where the checksum is."""
        while piece := self.file.read(1 << 20):
            self.place += len(piece)
            if self.place > self.limit:
                raise ValueError(f"more than {self.limit:,} bytes when unpacked")


@contextmanager
def open_stream(path: Path, what: str, *, limit: int, verify: bool = True) -> Iterator[ForwardReader]:
    """Open a plain or compressed file to be read once; when the block ends well the rest is read and verified too.

    Whatever a damaged file raises on the way is one sentence. ``verify=False`` is for a look at the header.
    """
    kind = tell_compression(path)
    if kind == "zstd":
        raise PumaError(f"{path} is compressed by zstd, which is not read; unpack it with: unzstd {path.name}.")
    with open_regular(path, what) as file:
        stream: IO[bytes] = file
        if kind == "gzip":
            stream = gzip.GzipFile(fileobj=file, mode="rb")  # type: ignore[assignment]
        elif kind == "bzip2":
            stream = bz2.BZ2File(file)
        elif kind == "xz":
            stream = io.BufferedReader(_XzReader(file), 1 << 16)
        reader = ForwardReader(stream, limit)
        try:
            yield reader
            if kind and verify:
                reader.drain()
        except PumaError:
            raise
        except _DAMAGES as error:
            raise PumaError(
                f"{path} is damaged or cut short ({error}), so it is not {what}; fetch it again."
            ) from error


class _XzReader(io.RawIOBase):
    """An .xz as a stream, with a bound on the memory that its header may ask for."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.decoder = file, lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview[int]") -> int:  # type: ignore[override]
        while not self.decoder.eof:
            more = self.file.read(1 << 16) if self.decoder.needs_input else b""
            if self.decoder.needs_input and not more:
                raise EOFError("the compressed file ends too early")
            if content := self.decoder.decompress(more, max_length=len(buffer)):
                buffer[: len(content)] = content
                return len(content)
        return 0


def read_tar_files(source: Path, names: set[str], what: str, *, limit: int) -> dict[str, bytes]:
    """Return the contents of the files of these base names in a plain or compressed tar, at most ``limit`` bytes."""
    contents: dict[str, bytes] = {}
    with open_stream(source, what, limit=4 * limit) as reader:
        plain_size = source.stat().st_size if tell_compression(source) is None else None
        for member in iterate_members(reader, source, end=plain_size):
            name = member.name.rpartition("/")[2]
            if name not in names or member.kind != "file":
                continue
            if member.size + sum(map(len, contents.values())) > limit:
                raise PumaError(f"{source} holds a {name} of {member.size:,} bytes: too large for {what}.")
            contents[name] = reader(member.offset, member.size)
            if len(contents[name]) < member.size:
                raise PumaError(f"{source} is cut short within {name}; fetch it again.")
    return contents
