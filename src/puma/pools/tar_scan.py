"""Where the pictures of a tar lie and which labels they have: a tar of one class, or a WebDataset shard."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from puma.errors import PumaError
from puma.files import open_regular
from puma.pools.archives import TarMember, check_member_name, iterate_members, read_at, tell_compression
from puma.pools.decoding import DecodePolicy, check_picture, is_picture
from puma.pools.parquet_pages import ValuePlace

MOST_CLASSES = 1 << 20  # without names: labels beyond are damage
_LARGEST_LABEL = 1 << 20  # bytes of a .cls or .json
_LABEL_KEYS = ("label", "cls", "class")  # in a .json, the first that is there

Label = int | str
Warn = Callable[[str], None]


class FoundPicture(NamedTuple):
    """A picture of a shard: its key, its label, its place."""

    key: str
    label: Label
    place: ValuePlace


def open_plain(path: Path) -> IO[bytes]:
    """Open a tar that is not compressed."""
    kind = tell_compression(path)
    if kind is not None:
        raise PumaError(f"{path} is packed by {kind}, so pictures cannot be read in place; unpack it first.")
    return open_regular(path, "a tar")


def scan_tar(
    file: IO[bytes],
    path: Path,
    label: str,
    start: int,
    end: int,
    policy: DecodePolicy,
    warn: Warn,
    empty: list[str],
) -> Iterator[FoundPicture]:
    """Find the pictures of a tar; the label of one that holds neither pictures nor tars is added to ``empty``."""

    def read(offset: int, size: int) -> bytes:
        return read_at(file.fileno(), offset, size)

    holds = False
    for member in iterate_members(read, path, start=start, end=end):
        check_member_name(member.name, path)
        if member.kind == "file" and member.name.endswith(".tar") and not start:
            holds = True
            yield from scan_tar(file, path, Path(member.name).stem, member.offset, member.offset + member.size,
                                policy, warn, empty)  # fmt: skip
        elif is_picture(member.name) and _is_whole(member, read, path, policy, warn):
            holds = True
            yield FoundPicture(f"{label}/{member.name}", label, ValuePlace(member.offset, member.size))
    if not holds:
        empty.append(label)


def _is_whole(member: TarMember, read: Any, path: Path, policy: DecodePolicy, warn: Warn) -> bool:
    """Glance at a picture; what is wrong with it is noted."""
    reason: str | None = f"a {member.kind}, not a file"
    if member.kind == "file":
        reason = check_picture(read, member.offset, member.size, policy)
    if reason is not None and member.kind != "folder":
        warn(f"{path.name}: {member.name} ({reason})")
    return reason is None


def scan_webdataset(
    file: IO[bytes], path: Path, label_key: str, policy: DecodePolicy, warn: Warn
) -> Iterator[FoundPicture]:
    """Find the pictures of a shard, each with the label that a ``.cls`` or ``.json`` of its key tells."""

    def read(offset: int, size: int) -> bytes:
        return read_at(file.fileno(), offset, size)

    def finish(key: str, members: list[TarMember]) -> Iterator[FoundPicture]:
        pictures = [member for member in members if is_picture(member.name)]
        if not pictures:
            return
        if len(pictures) > 1:
            raise PumaError(f"{path}: {key!r} has {len(pictures)} pictures; a sample may have one.")
        label = _read_label(members, read, path, key, label_key)
        if label is None:
            warn(f"{path.name}: {key} (no label: neither {key}.cls nor a label in {key}.json)")
        elif _is_whole(pictures[0], read, path, policy, warn):
            yield FoundPicture(key, label, ValuePlace(pictures[0].offset, pictures[0].size))

    key, members = "", list[TarMember]()
    for member in iterate_members(read, path, end=os.fstat(file.fileno()).st_size):
        check_member_name(member.name, path)
        if member.kind == "folder":
            continue
        folder, slash, base = member.name.rpartition("/")
        own = folder + slash + base.partition(".")[0]
        if own != key:
            yield from finish(key, members)
            key, members = own, []
        members.append(member)
    yield from finish(key, members)


def _read_label(
    members: Sequence[TarMember], read: Callable[[int, int], bytes], path: Path, key: str, label_key: str
) -> Label | None:
    """Return the label of a sample: the content of its .cls, or a field of its .json."""
    by_suffix = {member.name.rpartition(".")[2].lower(): member for member in members if member.kind == "file"}
    for suffix in ("cls", "json"):
        member = by_suffix.get(suffix)
        if member is None:
            continue
        if member.size > _LARGEST_LABEL:
            raise PumaError(f"{path}: {member.name} has {member.size:,} bytes, too many for a label.")
        text = read(member.offset, member.size).decode("utf-8", "replace").strip()
        if suffix == "cls":
            return _parse_label(text, f"{path}: {member.name}")
        try:
            told = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PumaError(f"{path}: {member.name} is not JSON ({error}).") from error
        for name in (label_key,) if label_key else _LABEL_KEYS:
            if isinstance(told, dict) and name in told:
                return _parse_label(told[name], f"{path}: {name!r} of {key!r}")
    return None


def _parse_label(value: Any, what: str) -> Label:
    """Labels are whole numbers from 0 on, or names."""
    if isinstance(value, str) and value.isascii() and value.removeprefix("-").isdigit() and len(value) < 10:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        raise PumaError(f"{what} must be a whole number or a name, got {value!r:.60}.")
    if isinstance(value, int) and not 0 <= value < MOST_CLASSES:
        raise PumaError(f"{what} must lie in 0..{MOST_CLASSES - 1}, got {value}.")
    return value
