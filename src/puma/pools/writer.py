"""Write a pool so that it is whole or absent: everything goes to a hidden folder that is renamed at the end."""

import ctypes
import glob
import hashlib
import json
import os
import shutil
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError
from puma.files import is_alive, write_checked_json
from puma.progress import progress_bar

FORMAT = "puma-pool-1"
_HEADER = 128  # bytes reserved for an .npy header: room for any count
_SAMPLED_IMAGES = 1024  # of a fingerprint: read in a moment from any disk
_ROWS = 1 << 20  # labels looked at in one go

_OUR_FILES = {
    "pool.json", "images.npy", "labels.npy", "origin.npy", "files.txt", "files_end.npy", "broken.txt", "grid.png",
    "index.npy", "pages.npy", "sample_id.npy", "keys.txt", "keys_end.npy", "shards.json", "rows.npy",
}  # fmt: skip

Chunk = tuple[NDArray[Any], NDArray[Any]]
ReadImage = Callable[[int], bytes]


@dataclass(frozen=True)
class PoolPart:
    """What one pool is written from: chunks of (images NHWC uint8, labels), about ``count`` in all.

    ``description`` is what pool.json tells besides, such as the generator that made the images; ``left_out`` says
    which pictures of the source were broken, for a class that has none left.
    """

    chunks: Iterable[Chunk]
    class_names: Sequence[str]
    count: int
    origin: int | NDArray[np.int8] = 0
    allow_empty_class: bool | None = None  # None: the import has no flag for it
    description: Mapping[str, Any] = field(default_factory=dict)
    checksum: int | None = None  # None: of all the images, taken while they are written
    left_out: Sequence[str] = ()


@contextmanager
def new_folder(out: Path, *, force: bool) -> Iterator[Path]:
    """Yield a hidden folder beside ``out`` that becomes ``out`` on success and vanishes on any error.

    ``force`` replaces pools, never anything else, and only once the new one is whole.
    """
    out = out.resolve()
    restore_folder(out)
    if out in (Path.cwd(), *Path.cwd().parents):
        raise PumaError(f"{out} is the current folder or above it; choose another --out.")
    if out.exists() and not force:
        raise _refuse_existing(out)
    if out.exists() and not _holds_only_pools(out):
        raise PumaError(f"{out} holds something else than pools, so --force does not replace it; choose another --out.")
    out.parent.mkdir(parents=True, exist_ok=True)
    partial, old = (out.with_name(f".{out.name}.{kind}-{os.getpid()}") for kind in ("partial", "old"))
    try:
        partial.mkdir()  # inside the block: a signal may come as soon as the folder is there
        yield partial
        if force and out.exists() and _exchange(partial, out):
            partial.rename(old)
        else:
            if force and out.exists():
                out.rename(old)
            try:
                partial.rename(out)
            except OSError as error:
                raise _refuse_existing(out) from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _refuse_existing(out: Path) -> PumaError:
    return PumaError(f"{out} exists already; choose another --out, or give --force to replace it.")


def _holds_only_pools(out: Path) -> bool:
    """Tell whether a folder is a pool, or holds pools and nothing else."""
    if not out.is_dir():
        return False
    return all(
        entry.name in _OUR_FILES or (entry.is_dir() and (entry / "pool.json").is_file() and _holds_only_pools(entry))
        for entry in out.iterdir()
    )


def _exchange(one: Path, two: Path) -> bool:
    """Let two folders change places in one step, so that there always is one; False where the system cannot."""
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "renameat2"):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(libc.renameat2(here, os.fsencode(one), here, os.fsencode(two), exchange) == 0)


def restore_folder(out: Path) -> None:
    """Put back what a killed import had moved out of the way, and delete what else it left."""
    leftovers = {}
    for path in out.parent.glob(f".{glob.escape(out.name)}.*-*"):
        kind, _, process = path.name.removeprefix(f".{out.name}.").partition("-")
        if kind in ("partial", "old") and process.isdigit() and not is_alive(int(process)):
            leftovers[path] = kind
    moved = [path for path, kind in leftovers.items() if kind == "old"]
    if moved and not out.exists():
        moved[0].rename(out)
    for path in leftovers:
        shutil.rmtree(path, ignore_errors=True)


def write_parts(parts: Mapping[str, PoolPart], out: str | Path, *, force: bool = False, progress: bool = False) -> Path:
    """Write each part as the pool ``out/NAME``; a single part named "" becomes ``out`` itself."""
    out = Path(out)
    with new_folder(out, force=force) as folder:
        for name, part in parts.items():
            (folder / name).mkdir(exist_ok=True)
            with progress_bar(f"import {name or out.name}", part.count, unit="images", enabled=progress) as advance:
                write_pool(folder / name, part, advance=advance)
    return out


def write_pool(folder: Path, part: PoolPart, *, advance: Callable[[int], None] | None = None) -> None:
    """Write images.npy, labels.npy, origin.npy and pool.json into an existing empty folder."""
    shape: tuple[int, int, int] | None = None
    checksum = 0
    with NpyAppender(folder / "images.npy", np.uint8) as images, NpyAppender(folder / "labels.npy", np.int32) as labels:
        for pixels, targets in part.chunks:
            shape = check_pixels(pixels, shape)
            labels.append(check_class_labels(targets, len(pixels), len(part.class_names)))
            images.append(pixels)
            checksum = zlib.crc32(np.ascontiguousarray(pixels).data, checksum)
            if advance:
                advance(len(pixels))
    if shape is None:
        raise PumaError("the source holds no images; nothing was written.")
    more = {"checksum": part.checksum or checksum}
    write_description(folder, part, shape, more, hash_images(folder, part, shape, more["checksum"]))


def hash_images(
    folder: Path, part: PoolPart, shape: tuple[int, int, int], checksum: int, read_image: ReadImage | None = None
) -> Callable[[NDArray[Any], NDArray[Any]], str]:
    """Return the function of labels and origin that gives a pool's fingerprint."""
    read = read_image or make_image_reader(folder / "images.npy", shape)
    return lambda labels, origin: fingerprint_content(read, labels, origin, shape, part.class_names, checksum)


def write_description(
    folder: Path,
    part: PoolPart,
    shape: tuple[int, int, int],
    more: Mapping[str, Any],
    fingerprint: Callable[[NDArray[Any], NDArray[Any]], str],
) -> None:
    """Write origin.npy and, last of all, pool.json, once images and labels are there."""
    labels = np.load(folder / "labels.npy", mmap_mode="r")
    starts = range(0, len(labels), _ROWS)
    counts = sum(
        (np.bincount(labels[start : start + _ROWS], minlength=len(part.class_names)) for start in starts),
        start=np.zeros(len(part.class_names), dtype=np.int64),
    )
    empty = [name for name, count in zip(part.class_names, counts, strict=True) if count == 0]
    if empty and not part.allow_empty_class:
        shown = ", ".join(empty[:5]) + (", ..." if len(empty) > 5 else "")
        flag = "" if part.allow_empty_class is None else ", or give --allow-empty-class"
        why = f" (left out as broken: {len(part.left_out):,}, the first {part.left_out[0]})" if part.left_out else ""
        raise PumaError(f"no image of class {shown}{why}; complete the source{flag}.")
    if len(set(part.class_names)) < len(part.class_names):
        raise PumaError(f"class names must differ, got {', '.join(part.class_names)}.")
    origin = np.broadcast_to(np.asarray(part.origin, dtype=np.int8), len(labels))
    np.save(folder / "origin.npy", origin)
    described = {
        **part.description,
        "format": FORMAT,
        "count": len(labels),
        "image_shape": list(shape),
        "class_names": list(part.class_names),
        "class_counts": counts.tolist(),
        "origin": int(origin[0]) if (origin == origin[0]).all() else None,
        **more,
        "fingerprint": fingerprint(labels, origin),
    }
    write_checked_json(folder / "pool.json", described)


def make_image_reader(path: Path, shape: tuple[int, int, int]) -> ReadImage:
    """Return a function that reads one image of ``images.npy`` without mapping what lies around it."""
    size = int(np.prod(shape))
    return lambda row: np.fromfile(path, dtype=np.uint8, count=size, offset=_HEADER + row * size).tobytes()


def fingerprint_content(
    read_image: ReadImage,
    labels: NDArray[Any],
    origin: NDArray[Any],
    shape: tuple[int, int, int],
    class_names: Sequence[str],
    checksum: int,
) -> str:
    """Hash of the sizes, the class names, every label, every origin, and the images.

    Of the images there are two things: the checksum of all of them, taken when they were imported, and 1024 evenly
    spaced ones, read now. So pools of other images, or of the same in another order, have other fingerprints; whether
    the file was changed since the import is only checked on the sampled images, since reading fifty million to open a
    pool would take longer than measuring some.
    """
    count = len(labels)
    digest = hashlib.sha256(json.dumps([FORMAT, count, list(shape), list(class_names), checksum]).encode())
    for start in range(0, count, _ROWS):
        digest.update(np.ascontiguousarray(labels[start : start + _ROWS], dtype=np.int32).data)
        digest.update(np.ascontiguousarray(origin[start : start + _ROWS], dtype=np.int8).data)
    for row in spread_rows(count):
        digest.update(read_image(row))
    return digest.hexdigest()


def spread_rows(count: int) -> list[int]:
    """Return at most 1024 evenly spaced rows of ``count``."""
    rows: list[int] = np.unique(np.linspace(0, count - 1, _SAMPLED_IMAGES).astype(np.int64)).tolist()
    return rows if count else []


def check_pixels(pixels: NDArray[Any], shape: tuple[int, int, int] | None) -> tuple[int, int, int]:
    """Images must be uint8 NHWC with 1 or 3 channels, all of one shape; else the sentence names the conversion."""
    wrong = []
    if pixels.dtype != np.uint8:
        found = "NaN among them" if pixels.dtype.kind == "f" and np.isnan(pixels).any() else f"got {pixels.dtype}"
        wrong.append(f"uint8 from 0 to 255 ({found})")
    if pixels.ndim != 4 or pixels.shape[3] not in (1, 3) or 0 in pixels.shape[1:3]:
        wrong.append(f"(n, height, width, 1 or 3 channels), got shape {pixels.shape}")
    if wrong:
        raise PumaError(f"images must be {' and '.join(wrong)}{_advise_conversion(pixels)}.")
    if shape is not None and pixels.shape[1:] != shape:
        raise PumaError(f"images must all be {shape}, got {pixels.shape[1:]}.")
    return (pixels.shape[1], pixels.shape[2], pixels.shape[3])


def _advise_conversion(pixels: NDArray[Any]) -> str:
    """Return the line of numpy that makes usable images of these, as far as one can tell."""
    turned, kind = "images", pixels.dtype.kind
    if pixels.ndim == 3:
        turned = "images[..., None]"
    elif pixels.ndim == 4 and pixels.shape[3] not in (1, 3):
        if pixels.shape[1] in (1, 3):
            turned = "images.transpose(0, 2, 3, 1)"
        elif pixels.shape[3] == 4:  # with transparency
            turned = "images[..., :3]"
        else:
            return ""
    if pixels.ndim not in (3, 4) or kind not in "biuf" or 0 in pixels.shape or not np.isfinite(pixels).all():
        return ""
    low, high = float(pixels.min()), float(pixels.max())
    if pixels.dtype == np.uint8:
        return f"; convert with {turned}"
    if kind == "b" or (kind == "f" and low >= 0 and high <= 1):
        return f'; convert with ({turned} * 255.0).round().astype("uint8")'
    if low >= 0 and high <= 255:
        return f'; convert with {turned}{".round()" if kind == "f" else ""}.astype("uint8")'
    if kind == "f" and low < 0:
        return (
            f"; {low:.2f} to {high:.2f} look normalised: undo it with ((images * std + mean) * 255).round()"
            '.clip(0, 255).astype("uint8"), and normalise inside of the model'
        )
    return f"; {low:g} to {high:g} must be brought to 0 to 255"


def check_class_labels(labels: NDArray[Any], count: int, num_classes: int) -> NDArray[np.int32]:
    """Labels must be integers from 0 to the number of classes, one for every image."""
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise PumaError(
            f"labels must be integers of shape (n,), got {labels.dtype} of shape {labels.shape}"
            f"{_advise_labels(labels)}."
        )
    if len(labels) != count:
        raise PumaError(f"there must be as many labels as images, got {len(labels)} labels for {count} images.")
    if count and (labels.min() < 0 or labels.max() >= num_classes):
        begin = "; they begin with 1: give labels - 1" if (labels.min(), labels.max()) == (1, num_classes) else ""
        raise PumaError(f"labels must lie in 0..{num_classes - 1}, got {labels.min()}..{labels.max()}{begin}.")
    return labels.astype(np.int32)


def _advise_labels(labels: NDArray[Any]) -> str:
    """Return the line of numpy that makes class numbers of these, as far as one can tell."""
    if labels.ndim == 2 and labels.shape[1] > 1 and labels.dtype.kind in "biuf":
        return ", which look like one-hot rows or probabilities; give labels.argmax(1)"
    if labels.ndim == 2 and labels.shape[1] == 1:
        return "; give labels[:, 0]"
    if labels.ndim == 1 and labels.dtype.kind in "bf":
        return '; convert with labels.astype("int64")'
    if labels.ndim == 1 and labels.dtype.kind in "US":
        return "; number the names: names, labels = np.unique(labels, return_inverse=True), and name the classes"
    return ""


class NpyAppender:
    """Write an .npy file of unknown length chunk by chunk; plain writes, so a full disk raises, never crashes."""

    def __init__(self, path: Path, dtype: type[np.generic] | np.dtype[Any]) -> None:
        self.file = path.open("wb")
        self.dtype = np.dtype(dtype)
        self.count, self.tail = 0, ()
        self.header = _HEADER if self.dtype.names is None else 2 * _HEADER  # records have names to tell
        self.file.write(b"\0" * self.header)

    def append(self, chunk: NDArray[Any]) -> None:
        """Add rows."""
        self.file.write(np.ascontiguousarray(chunk, dtype=self.dtype).data)
        self.count += len(chunk)
        self.tail = chunk.shape[1:]

    def __enter__(self) -> "NpyAppender":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self.file:
            if kind is None:
                kept = np.lib.format.dtype_to_descr(self.dtype)
                described = {"descr": kept, "fortran_order": False, "shape": (self.count, *self.tail)}
                text = f"{described!r}".encode().ljust(self.header - 11) + b"\n"
                self.file.seek(0)
                self.file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)
                self.file.flush()
                os.fsync(self.file.fileno())
