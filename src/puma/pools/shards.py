"""Pictures that stay in their shards: an index of places, and the bytes and pixels behind a row of it.

``index.npy`` has shard, offset and length of every picture, ``keys.txt`` and ``keys_end.npy`` its key,
``sample_id.npy`` the id made from that key, ``shards.json`` the shards with size and time. All but the last are
memory-mapped, so ten million pictures open at once. No torch is imported here: decode workers start quickly and stay
small.
"""

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError
from puma.files import open_regular, read_json, write_json
from puma.pools.archives import read_at
from puma.pools.decoding import LARGEST_PICTURE, DecodePolicy, Resize, decode_bytes
from puma.pools.parquet_pages import PAGE, read_page_value

SHARDS_FORMAT = "puma-shards-1"
INDEX = np.dtype([("offset", "<u8"), ("length", "<u4"), ("shard", "<u4")])
KEYED = 1 << 62  # ids made from keys lie above this, so they never meet ids that are rows
_OPEN_FILES = 64  # at once; systems allow 256 or more
_ROWS = 1 << 20  # of the index in one go


def hash_key(key: bytes) -> int:
    """Return a sample's id from its key alone, so that it does not depend on the order of shards: 62 bits of BLAKE2."""
    return KEYED | int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 2


class ShardFile(NamedTuple):
    """A file that holds pictures: its name below the root, its size and time at the import.

    ``codec`` is how a Parquet file packs its pages; None where pictures lie in it as they are.
    """

    name: str
    size: int
    time: int
    codec: str | None = None


class ShardPictures:
    """Rows of pictures that lie in shards; reading some decodes them, in worker processes where they are many."""

    def __init__(
        self,
        folder: Path,
        root: Path,
        shards: Sequence[ShardFile],
        index: NDArray[Any],
        pages: NDArray[Any] | None,
        policy: DecodePolicy,
    ) -> None:
        self.folder, self.root, self.shards, self.index, self.pages = folder, root, shards, index, pages
        self.policy = policy
        self._handles: OrderedDict[int, int] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.index)

    def __del__(self) -> None:
        for handle in self._handles.values():
            os.close(handle)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of all pictures together, as an array has it."""
        return (len(self), *self.policy.shape)

    def describe(self) -> tuple[str, dict[str, Any]]:
        """Return the folder and what another process needs to know to open the same index, and no later one."""
        found = (self.folder / "index.npy").stat()
        stamp = [found.st_ino, found.st_mtime_ns]
        shape = list(self.policy.shape)
        more = {"count": len(self), "image_shape": shape, "resize": self.policy.resize, "stamp": stamp}
        return str(self.folder.resolve()), more

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Decode these rows: (k, size, size, channels)."""
        from puma.pools.decode_workers import decode_rows

        return decode_rows(self, np.asarray(rows, dtype=np.int64))

    def decode(self, row: int) -> NDArray[np.uint8]:
        """Decode one row here and now."""
        content = self.read_bytes(row)
        try:
            return decode_bytes(content, self.policy)
        except ValueError as error:
            shard = self.shards[int(self.index[row]["shard"])]
            raise PumaError(
                f"picture {self.key(row)!r} in {self.root / shard.name} cannot be read ({error}); import the pool "
                "again with --check, which decodes every picture and leaves such out."
            ) from error

    def read_bytes(self, row: int) -> bytes:
        """Return the picture as it lies in its shard, encoded."""
        place = self.index[row]
        shard, offset, length = int(place["shard"]), int(place["offset"]), int(place["length"])
        if shard >= len(self.shards) or length > LARGEST_PICTURE or offset + length > self.shards[shard].size:
            raise PumaError(f"{self.folder / 'index.npy'} is damaged at row {row}; import the pool again.")
        content = self._read(shard, offset, length)
        if self.pages is not None and int(self.pages[row]["size"]):
            codec = self.shards[shard].codec or ""
            return read_page_value(content, codec, self.pages[row], str(self.root / self.shards[shard].name))
        return content

    def _read(self, shard: int, offset: int, length: int) -> bytes:
        with self._lock:
            handle = self._open(shard)
            content = read_at(handle, offset, length)
        if len(content) != length:
            raise _tell_change(self.root / self.shards[shard].name, "it is shorter")
        return content

    def _open(self, shard: int) -> int:
        """Return a handle of a shard that is still what was imported; a few stay open."""
        handle = self._handles.pop(shard, None)
        if handle is None:
            with open_regular(self.root / self.shards[shard].name, "a shard of a pool") as file:
                check_shard(self.root, self.shards[shard], os.fstat(file.fileno()))
                handle = os.dup(file.fileno())
            if len(self._handles) >= _OPEN_FILES:
                os.close(self._handles.popitem(last=False)[1])
        self._handles[shard] = handle
        return handle

    @cached_property
    def _keys(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        ends = map_array(self.folder / "keys_end.npy", np.dtype(np.int64), (len(self),))
        return map_text(self.folder / "keys.txt", ends), ends

    def key(self, row: int) -> str:
        """Return the key of one row."""
        text, ends = self._keys
        return os.fsdecode(text[int(ends[row - 1]) if row else 0 : int(ends[row])].tobytes())

    def check_shards(self) -> None:
        """Raise if a shard is gone or has changed since the import, by its size and time."""
        root = str(self.root)
        for shard in self.shards:
            try:
                found = os.stat(f"{root}/{shard.name}")  # noqa: PTH116  (a Path takes longer than the look itself)
            except OSError as error:
                raise PumaError(
                    f"shard {self.root / shard.name} is gone ({error.strerror}); bring it back, or import again."
                ) from error
            check_shard(self.root, shard, found)


def check_shard(root: Path, shard: ShardFile, found: os.stat_result) -> None:
    """Raise if a file is not the one that was imported, by size and time."""
    if found.st_size != shard.size:
        raise _tell_change(root / shard.name, f"{found.st_size:,} bytes instead of {shard.size:,}")
    if found.st_mtime_ns != shard.time:
        raise _tell_change(root / shard.name, "it was written to")


def _tell_change(path: Path, how: str) -> PumaError:
    return PumaError(f"shard {path} has changed since the import ({how}); import the pool again.")


def tell_suffix(head: bytes) -> str:
    """Return the usual ending of a picture's name by its first bytes."""
    known = ((b"\xff\xd8", ".jpg"), (b"\x89PNG", ".png"), (b"GIF8", ".gif"), (b"BM", ".bmp"), (b"II*", ".tif"),
             (b"MM\0*", ".tif"), (b"P", ".ppm"))  # fmt: skip
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return ".webp"
    return next((suffix for magic, suffix in known if head.startswith(magic)), ".bin")


def write_shards(folder: Path, root: Path, shards: Sequence[ShardFile]) -> None:
    """Write shards.json: where the shards lie, and what they looked like at the import."""
    listed = [[shard.name, shard.size, shard.time, shard.codec] for shard in shards]
    write_json(folder / "shards.json", {"root": str(root.resolve()), "shards": listed})


def open_shards(folder: Path, described: Mapping[str, Any], *, check: bool = True) -> ShardPictures:
    """Map the index of a pool in place; ``check`` looks at every shard's size and time."""
    listed = read_json(folder / "shards.json", "the shards of a pool")
    try:
        count, root = int(described["count"]), Path(listed["root"])
        shards = [ShardFile(str(name), int(size), int(time), codec) for name, size, time, codec in listed["shards"]]
        policy = DecodePolicy(
            int(described["image_shape"][0]), cast(Resize, described["resize"]), int(described["image_shape"][2])
        )
    except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        raise PumaError(f"{folder / 'shards.json'} is damaged ({error}); import the pool again.") from error
    for shard in shards:
        if shard.name.startswith(("/", "\\")) or ".." in shard.name.split("/"):
            raise PumaError(f"{folder} names a shard outside its root: {shard.name!r}; import the pool again.")
    index = map_array(folder / "index.npy", INDEX, (count,))
    paged = (folder / "pages.npy").exists()
    pages = map_array(folder / "pages.npy", PAGE, (count,)) if paged else None
    pictures = ShardPictures(folder, root, shards, index, pages, policy)
    if check:
        pictures.check_shards()
    return pictures


def fingerprint_index(
    index: NDArray[Any],
    pages: NDArray[Any] | None,
    sample_id: NDArray[np.int64],
    labels: NDArray[np.int32],
    origin: NDArray[np.int8],
    class_names: Sequence[str],
    policy: DecodePolicy,
) -> str:
    """Hash of every id, place, size, label and origin in the order of the ids, and of names and policy.

    The order of the shards and their names do not count, so a pool of the same shards in another order is the same.
    """
    order = np.argsort(sample_id, kind="stable")
    digest = hashlib.sha256(repr((SHARDS_FORMAT, len(index), policy, tuple(class_names))).encode())
    for start in range(0, len(order), _ROWS):
        rows = order[start : start + _ROWS]
        for column in (sample_id, index["offset"], index["length"], labels, origin):
            digest.update(np.ascontiguousarray(column[rows]).data)
        if pages is not None:
            digest.update(np.ascontiguousarray(pages[rows]).data)
    return digest.hexdigest()


def map_array(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Map an .npy file that must hold exactly this."""
    open_regular(path, "an array of a pool").close()
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a damaged header can raise anything
        raise PumaError(f"{path} is missing or cut short ({error}); import the pool again.") from error
    if array.dtype != dtype or array.shape != shape:
        raise PumaError(f"{path} should hold {dtype} {shape}, it holds {array.dtype} {array.shape}; import again.")
    return array.view(np.ndarray)


def map_text(path: Path, ends: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Map names that lie one behind the other, each up to its entry in ``ends``."""
    open_regular(path, "the names of a pool's pictures").close()
    try:
        text: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise PumaError(f"{path} is missing or empty; import the pool again.") from error
    if len(ends) and int(ends[-1]) != len(text):
        raise PumaError(f"{path} is cut short; import the pool again.")
    return text
