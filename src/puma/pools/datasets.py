"""The data sets that come in files of their own: digits, CIFAR-10 and -100, MNIST and Fashion-MNIST.

The python layout of CIFAR is a pickle; it is read without letting it run anything. Two kinds of objects are allowed,
arrays and their dtypes, and they are not numpy's: they only record what the file says of them, so even numpy's own
unpickling code is never driven by the file.
"""

import io
import math
import pickle
import pickletools
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError, tell_missing
from puma.files import read_bytes
from puma.pools.archives import ForwardReader, open_stream, read_tar_files
from puma.pools.writer import Chunk, PoolPart

_PIXELS = 3 * 32 * 32  # of one CIFAR image

CIFAR10_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()
CIFAR100_CLASSES = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can "
    "castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin "
    "elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster "
    "man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck "
    "pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk "
    "skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger "
    "tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
).split()
MNIST_CLASSES = tuple("0123456789")
FASHION_CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle-boot")
_LARGEST_IDX = 1 << 32  # bytes; the data sets in this format have less than a tenth
_LARGEST_IMAGE = 1 << 24  # bytes of one; they have 784
_MOST_DEFLATED = 1032  # times smaller is the most that gzip can do
_ROWS = 1 << 12  # of an idx file in one go
_FILES = {"train": "train", "test": "t10k"}
_TEST_SHARE = 5  # every fifth image of a class is a test image
_SEED = 0  # of the split of the digits, which never changes
_LARGEST_CIFAR = 1 << 29  # bytes of all files together: they have 186 million; a hostile archive might have any


def read_digits() -> dict[str, PoolPart]:
    """Return the training and test part; the split is random within each class, and always the same."""
    with tell_missing("data"):
        from sklearn.datasets import load_digits

    bundle = load_digits()
    pixels = np.rint(bundle.images * (255 / 16)).astype(np.uint8)[..., None]
    labels = bundle.target.astype(np.int64)
    order = np.random.default_rng(_SEED).permutation(len(labels))
    is_test = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        is_test[order[labels[order] == label][::_TEST_SHARE]] = True
    names = [str(digit) for digit in range(10)]
    return {
        part: PoolPart([(pixels[rows], labels[rows])], names, int(rows.sum()))
        for part, rows in (("train", ~is_test), ("test", is_test))
    }


@dataclass(frozen=True)
class CifarLayout:
    """File names of the two layouts and how a record of the binary one begins."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    label_bytes: int  # before the pixels; the last of them is the label
    label_key: str  # in the python layout
    class_names: tuple[str, ...]


_BATCHES = tuple(f"data_batch_{index}" for index in range(1, 6))
CIFAR10 = CifarLayout(_BATCHES, ("test_batch",), 1, "labels", tuple(CIFAR10_CLASSES))
CIFAR100 = CifarLayout(("train",), ("test",), 2, "fine_labels", tuple(CIFAR100_CLASSES))


def read_cifar(source: Path, layout: CifarLayout) -> dict[str, PoolPart]:
    """Return the training and test part of the data set in a folder or archive."""
    names = [*layout.train, *layout.test]
    contents = _read_members(source, {name + suffix for name in names for suffix in ("", ".bin")})
    suffix = ".bin" if any(f"{name}.bin" in contents for name in names) else ""
    missing = [name + suffix for name in names if name + suffix not in contents]
    if missing:
        raise PumaError(f"{source} lacks {', '.join(missing)} of the official binary or python layout.")

    def chunks(parts: tuple[str, ...]) -> Iterator[Chunk]:
        for name in parts:
            read = _read_binary if suffix else _read_python
            yield read(contents[name + suffix], layout, source / (name + suffix))

    return {
        part: PoolPart(chunks(files), layout.class_names, count)
        for part, files, count in (("train", layout.train, 50_000), ("test", layout.test, 10_000))
    }


def _read_binary(content: bytes, layout: CifarLayout, path: Path) -> Chunk:
    record = layout.label_bytes + _PIXELS
    if not content or len(content) % record:
        raise PumaError(f"{path} is cut short: {len(content)} bytes are not whole records of {record}.")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, record)
    return _to_nhwc(records[:, layout.label_bytes :]), records[:, layout.label_bytes - 1]


def _read_python(content: bytes, layout: CifarLayout, path: Path) -> Chunk:
    batch = read_cifar_pickle(content, path)
    pixels: Any = batch.get("data")
    labels: Any = batch.get(layout.label_key)
    whole = isinstance(labels, list) and all(isinstance(label, int) for label in labels)
    if not whole or not isinstance(pixels, np.ndarray) or pixels.shape != (len(labels), _PIXELS):
        raise PumaError(f"{path} is not a CIFAR batch: expected 'data' (n, 3072) and {layout.label_key!r} (n).")
    return _to_nhwc(pixels), np.array(labels)


def _to_nhwc(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def read_mnist(source: Path, class_names: tuple[str, ...], *, pool: int = 1) -> dict[str, PoolPart]:
    """Return the training and test part; ``pool`` averages pool x pool pixels (2 makes 14 px out of 28)."""
    parts = {}
    for part, prefix in _FILES.items():
        images, shape = _find_idx(source, f"{prefix}-images-idx3-ubyte", 3)
        labels, labelled = _find_idx(source, f"{prefix}-labels-idx1-ubyte", 1)
        if labelled[0] != shape[0]:
            raise PumaError(f"there must be as many labels as images, {source} has {labelled[0]} for {shape[0]}.")
        average_pixels(np.empty((0, *shape[1:]), dtype=np.uint8), pool)
        chunks = (
            (average_pixels(pixels, pool)[..., None], targets)
            for pixels, targets in zip(
                _stream_idx(images, shape, _ROWS), _stream_idx(labels, labelled, _ROWS), strict=True
            )
        )
        parts[part] = PoolPart(chunks, class_names, shape[0])
    return parts


def _find_idx(folder: Path, name: str, dimensions: int) -> tuple[Path, tuple[int, ...]]:
    """Find one idx file of bytes and read its header; a size that the file cannot hold raises."""
    path = next((path for path in (folder / f"{name}.gz", folder / name) if path.exists()), None)
    if path is None:
        raise PumaError(f"{folder} lacks {name}.gz (or {name}).")
    with _open_idx(path, dimensions, drain=False) as (shape, _):
        most = path.stat().st_size * (_MOST_DEFLATED if path.suffix == ".gz" else 1)
        row = math.prod(shape[1:])
        if math.prod(shape) > most or (shape[0] and not 1 <= row <= _LARGEST_IMAGE):
            raise PumaError(f"{path} should hold {math.prod(shape):,} bytes for {shape}, it cannot; fetch it again.")
    return path, shape


@contextmanager
def _open_idx(path: Path, dimensions: int, *, drain: bool) -> Iterator[tuple[tuple[int, ...], ForwardReader]]:
    with open_stream(path, "a whole idx file", limit=_LARGEST_IDX, verify=drain) as reader:
        header = reader(0, 4 + 4 * dimensions)
        if len(header) < 4 + 4 * dimensions:
            raise PumaError(f"{path} is damaged or cut short (it has no whole header); fetch it again.")
        magic, *shape = struct.unpack(f">{1 + dimensions}I", header)
        if magic != 0x800 + dimensions:
            raise PumaError(f"{path} is not an idx file of bytes in {dimensions} dimensions (magic {magic:#x}).")
        yield tuple(shape), reader


def _stream_idx(path: Path, shape: tuple[int, ...], rows: int) -> Iterator[NDArray[np.uint8]]:
    """Yield ``rows`` rows at a time; the file must hold what its header says, to the byte."""
    size = math.prod(shape[1:])
    with _open_idx(path, len(shape), drain=True) as (_, reader):
        begin = reader.place
        for first in range(0, shape[0], rows):
            count = min(rows, shape[0] - first)
            content = reader(reader.place, count * size)
            if len(content) < count * size:
                held = reader.place - begin
                raise PumaError(
                    f"{path} should hold {math.prod(shape)} bytes for {shape}, it holds {held}; fetch it again."
                )
            yield np.frombuffer(content, dtype=np.uint8).reshape(count, *shape[1:])
        if reader(reader.place, 1):
            raise PumaError(f"{path} should hold {math.prod(shape)} bytes for {shape}, it holds more; fetch it again.")


def average_pixels(pixels: NDArray[np.uint8], pool: int) -> NDArray[np.uint8]:
    """Average pool x pool blocks of (n, height, width), rounded to whole grey values."""
    count, height, width = pixels.shape
    if pool < 1 or height % pool or width % pool:
        raise PumaError(f"--pool must divide the image size {height} x {width}, got {pool}.")
    if pool == 1:
        return pixels
    blocks = pixels.reshape(count, height // pool, pool, width // pool, pool)
    averaged: NDArray[np.float32] = blocks.mean(axis=(2, 4), dtype=np.float32)
    return np.rint(averaged).astype(np.uint8)


def _read_members(source: Path, names: set[str]) -> dict[str, bytes]:
    """Return the contents of those of ``names`` that the folder (at any depth of two) or the archive holds."""
    if source.is_dir():
        found = {name: next(iter([*source.glob(name), *source.glob(f"*/{name}")]), None) for name in names}
        return {
            name: read_bytes(path, "a CIFAR batch", _LARGEST_CIFAR) for name, path in found.items() if path is not None
        }
    if not source.exists():
        raise PumaError(f"no such folder or archive: {source}.")
    return read_tar_files(source, names, "a whole tar archive", limit=_LARGEST_CIFAR)


class _Recorded:
    """Stands for an array or a dtype: keeps what it was made with and the state set on it."""

    def __init__(self, *made_with: Any) -> None:
        self.made_with = made_with
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Array(_Recorded):
    pass


class _Dtype(_Recorded):
    pass


def _encode_text(text: str, _encoding: str) -> bytes:
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode_text,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}") from None


def read_cifar_pickle(content: bytes, source: Path | str) -> dict[str, Any]:
    """Return the dictionary in a CIFAR batch file, its arrays as uint8; anything else raises."""
    try:
        _check_opcodes(content)
        read = _Restricted(io.BytesIO(content), encoding="bytes").load()
        if not isinstance(read, dict):
            raise pickle.UnpicklingError("it is not a dictionary")
        return {
            key.decode("latin1") if isinstance(key, bytes) else str(key): _make_plain(value)
            for key, value in read.items()
        }
    except PumaError:
        raise
    except Exception as error:  # a hostile or damaged pickle can raise anything
        raise PumaError(f"{source} is not a CIFAR batch ({error}); nothing in it was executed.") from error


def _check_opcodes(content: bytes) -> None:
    """Raise for a pickle that asks for more memory than it has bytes: a place for a far memo, an empty buffer."""
    for opcode, argument, _ in pickletools.genops(content):
        far = opcode.name.endswith(("PUT", "GET")) and int(argument or 0) > len(content)
        if far or opcode.name in ("BYTEARRAY8", "NEXT_BUFFER"):
            raise pickle.UnpicklingError(f"{opcode.name} asks for more than the file holds")


def _make_plain(value: Any) -> Any:
    if not isinstance(value, _Array):
        return value
    _version, shape, dtype, fortran_order, content = value.state
    if dtype.made_with[0] not in ("u1", b"u1", "uint8"):
        raise pickle.UnpicklingError(f"its array is {dtype.made_with[0]!r}, not uint8")
    array: NDArray[np.uint8] = np.frombuffer(content, dtype=np.uint8)
    return array.reshape(shape, order="F" if fortran_order else "C")
