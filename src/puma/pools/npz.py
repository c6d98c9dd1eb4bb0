"""An .npz of images and labels, such as the public files of generated images; streamed, never whole in memory."""

import contextlib
import lzma
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError
from puma.pools.writer import Chunk, PoolPart, check_class_labels, check_pixels

_CHUNK_BYTES = 1 << 24  # of images in memory at a time
_LARGEST_ROW = 1 << 28  # bytes of one image: more than the largest picture that is decoded
_MOST_DEFLATED = 1032  # times smaller is the most that deflate can do
_MOST_CLASSES = 1 << 20  # without names: labels beyond are damage


def read_npz(
    source: Path,
    *,
    origin: int,
    class_names: tuple[str, ...] | None,
    image_key: str = "image",
    label_key: str = "label",
    allow_empty_class: bool | None = None,
) -> PoolPart:
    """Return the one part in the file; without ``class_names`` the classes are 0 to the highest label."""
    if source.is_dir():
        raise PumaError(
            f"{source} is a folder, not an .npz; of pictures: puma data import folder {source} --size PIXELS."
        )
    if not source.is_file():
        raise PumaError(f"no such file: {source}.")
    limit = len(class_names) if class_names else _MOST_CLASSES
    with _arrays(source, image_key, label_key) as (images, labels):
        count = images.shape[0]
        if labels.shape[0] != count:
            raise PumaError(f"{source} has {labels.shape[0]} labels for {count} images.")
        for first in images.chunks(max(1, _CHUNK_BYTES // max(1, images.row_bytes))):
            check_pixels(first, None)
            break
        lowest, highest = _MOST_CLASSES, 0
        for chunk in labels.chunks(1 << 20):
            numbers = check_class_labels(chunk, len(chunk), limit)
            lowest, highest = min(lowest, int(numbers.min())), max(highest, int(numbers.max()))
    if lowest == 1 and class_names is None and not allow_empty_class:
        flag = "" if allow_empty_class is None else ", or give --allow-empty-class if class 0 is to be empty"
        raise PumaError(f"no image of class 0: the labels of {source} are 1..{highest}; save label=labels - 1{flag}.")
    names = class_names or tuple(str(label) for label in range(highest + 1))

    def chunks() -> Iterator[Chunk]:
        with _arrays(source, image_key, label_key) as (images, labels):
            rows = max(1, _CHUNK_BYTES // max(1, images.row_bytes))
            yield from zip(images.chunks(rows), labels.chunks(rows), strict=True)

    return PoolPart(chunks(), names, count, origin=origin, allow_empty_class=allow_empty_class)


class _Member:
    """One array of the archive, read front to back."""

    def __init__(self, file: IO[bytes], name: str, size: int) -> None:
        self.file, self.name = file, name
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        else:
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
        if dtype.hasobject:
            raise PumaError(f"{name} holds Python objects, which are never loaded; save plain arrays.")
        if fortran and len(shape) > 1:
            raise PumaError(f"{name} is in Fortran order; save it with np.ascontiguousarray.")
        if not shape:
            raise PumaError(f"{name} is a single value; expected one row per image.")
        self.shape, self.dtype = shape, dtype
        self.row_bytes = math.prod(shape[1:]) * dtype.itemsize
        if min(shape) < 0 or not 0 < self.row_bytes <= _LARGEST_ROW or shape[0] * self.row_bytes > size:
            raise PumaError(
                f"{name} cannot be {dtype} of shape {shape}: the file has {size:,} bytes for it, "
                f"and an image may take {_LARGEST_ROW:,}."
            )

    def chunks(self, rows: int) -> Iterator[NDArray[Any]]:
        """Yield arrays of at most ``rows`` rows."""
        for start in range(0, self.shape[0], rows):
            count = min(rows, self.shape[0] - start)
            content = self.file.read(count * self.row_bytes)
            if len(content) != count * self.row_bytes:
                raise EOFError(f"{self.name} ends at row {start + len(content) // max(1, self.row_bytes)}")
            yield np.frombuffer(content, dtype=self.dtype).reshape(count, *self.shape[1:])
        if self.file.read(1):  # reading to the end verifies the archive's checksum too
            raise EOFError(f"{self.name} goes on behind its last row")


@contextmanager
def _arrays(source: Path, image_key: str, label_key: str) -> Iterator[tuple[_Member, _Member]]:
    """Open both arrays; what a damaged archive raises on the way is told in one sentence."""
    try:
        with zipfile.ZipFile(source) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            for key in (image_key, label_key):
                if key not in names:
                    raise PumaError(f"{source} has no array {key!r}, {_advise_keys(archive, names)}.")
            sizes = [_unpacked_size(archive.getinfo(f"{key}.npy"), source) for key in (image_key, label_key)]
            with archive.open(f"{image_key}.npy") as images, archive.open(f"{label_key}.npy") as labels:
                pixels = _Member(images, f"{source}:{image_key}", sizes[0])
                if len(pixels.shape) == 3 and pixels.dtype == np.uint8:  # grey images, as MNIST comes
                    pixels.shape = (*pixels.shape, 1)
                yield pixels, _Member(labels, f"{source}:{label_key}", sizes[1])
    except PumaError:
        raise
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError, RuntimeError, OSError) as error:
        raise PumaError(f"{source} is not {_name_format(source, error)}.") from error


def _advise_keys(archive: zipfile.ZipFile, names: list[str]) -> str:
    """Say which arrays there are instead, and the flags that take them where only one choice is likely."""
    if any(name.endswith("/data.pkl") for name in archive.namelist()):
        return 'it is a file of torch.save; in Python: puma.Pool.from_tensors(images, labels).save("pool")'
    if len(names) != 2:
        return f"only {', '.join(names) or 'nothing'}; see --image-key and --label-key"
    labels, images = sorted(names, key=lambda name: archive.getinfo(f"{name}.npy").file_size)
    return f"only {', '.join(names)}; see --image-key and --label-key: --image-key {images} --label-key {labels}"


def _name_format(source: Path, error: Exception) -> str:
    """Say what the file is if not a whole .npz, and how such a file is imported."""
    with contextlib.suppress(OSError), source.open("rb") as file:
        start = file.read(8)
        if start.startswith(b"\x93NUMPY"):
            return (
                f"an .npz file but an .npy of one array; put images and labels into one file: "
                f'np.savez("both.npz", image=np.load("{source.name}"), label=labels)'
            )
        if start.startswith(b"PAR1"):
            return f"an .npz file but Parquet; import it with: puma data import parquet {source} --size PIXELS"
        if start.startswith(b"\x89HDF"):
            return 'an .npz file but HDF5; in Python: puma.Pool.from_tensors(images, labels).save("pool")'
    return f"a whole .npz file ({error}); fetch it again"


def _unpacked_size(member: zipfile.ZipInfo, source: Path) -> int:
    """Return how many bytes an array takes; a small file that promises more than it can hold raises."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise PumaError(f"{source}: {member.filename} is packed in a way numpy does not use; save it with np.savez.")
    most = member.compress_size * (_MOST_DEFLATED if member.compress_type == zipfile.ZIP_DEFLATED else 1)
    if member.file_size > most + 64:  # an empty stream has some bytes of its own
        raise PumaError(f"{source}: {member.filename} promises {member.file_size:,} bytes and cannot hold them.")
    return member.file_size
