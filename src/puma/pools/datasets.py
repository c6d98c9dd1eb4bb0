"""The data sets that come in files of their own: digits, CIFAR-10 and -100, MNIST and Fashion-MNIST.

The python layout of CIFAR is a pickle; it is read without letting it run anything. Two kinds of objects are allowed,
arrays and their dtypes, and they are not numpy's: they only record what the file says of them, so even numpy's own
unpickling code is never driven by the file.
"""

import gzip
import io
import lzma
import math
import pickle
import struct
import tarfile
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError, tell_missing
from puma.pools.writer import Chunk, PoolPart

_PIXELS = 3 * 32 * 32

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
_FILES = {"train": "train", "test": "t10k"}
_TEST_SHARE = 5  # every fifth image of a class is a test image
_SEED = 0
_LARGEST_MEMBER = 1 << 30  # no file of the data sets read this way comes near; a hostile archive might


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
    contents = _read_members(source, [f"{name}.bin" for name in names])
    binary = bool(contents)
    if not binary:
        contents = _read_members(source, names)
    suffix = ".bin" if binary else ""
    missing = [name + suffix for name in names if name + suffix not in contents]
    if missing:
        raise PumaError(f"{source} lacks {', '.join(missing)} of the official binary or python layout.")

    def chunks(parts: tuple[str, ...]) -> Iterator[Chunk]:
        for name in parts:
            read = _read_binary if binary else _read_python
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
        pixels = average_pixels(_read_idx(source, f"{prefix}-images-idx3-ubyte", 3), pool)[..., None]
        labels = _read_idx(source, f"{prefix}-labels-idx1-ubyte", 1)
        parts[part] = PoolPart([(pixels, labels)], class_names, len(pixels))
    return parts


def _read_idx(folder: Path, name: str, dimensions: int) -> NDArray[np.uint8]:
    """Read one idx file of bytes; its header must fit its size."""
    path = next((path for path in (folder / f"{name}.gz", folder / name) if path.is_file()), None)
    if path is None:
        raise PumaError(f"{folder} lacks {name}.gz (or {name}).")
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with cast(BinaryIO, opener(path, "rb")) as file:
            header = file.read(4 + 4 * dimensions)
            magic, *shape = struct.unpack(f">{1 + dimensions}I", header)
            if magic != 0x800 + dimensions:
                raise PumaError(f"{path} is not an idx file of bytes in {dimensions} dimensions (magic {magic:#x}).")
            content = file.read(min(math.prod(shape), _LARGEST_IDX) + 1)
    except (EOFError, zlib.error, struct.error, gzip.BadGzipFile) as error:
        raise PumaError(f"{path} is damaged or cut short ({error}); fetch it again.") from error
    length = len(content) if len(content) <= math.prod(shape) else "more"
    if len(content) != math.prod(shape):
        raise PumaError(
            f"{path} should hold {math.prod(shape)} bytes for {tuple(shape)}, it holds {length}; fetch it again."
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


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


def _read_members(source: Path, names: Collection[str]) -> dict[str, bytes]:
    """Return the contents of those of ``names`` that the folder (at any depth of two) or the archive holds."""
    if source.is_dir():
        found = {name: next(iter([*source.glob(name), *source.glob(f"*/{name}")]), None) for name in names}
        return {name: path.read_bytes() for name, path in found.items() if path is not None}
    if not source.is_file():
        raise PumaError(f"no such folder or archive: {source}.")
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(source) as archive:
            for member in archive:
                name = Path(member.name).name
                if name in names and member.isfile() and member.size <= _LARGEST_MEMBER:
                    file = archive.extractfile(member)
                    if file is not None:
                        contents[name] = file.read()
                        if len(contents[name]) != member.size:
                            raise EOFError(name)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        raise PumaError(f"{source} is not a whole tar archive ({error}); fetch it again.") from error
    return contents


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


def _make_plain(value: Any) -> Any:
    if not isinstance(value, _Array):
        return value
    _version, shape, dtype, fortran_order, content = value.state
    if dtype.made_with[0] not in ("u1", b"u1", "uint8"):
        raise pickle.UnpicklingError(f"its array is {dtype.made_with[0]!r}, not uint8")
    array: NDArray[np.uint8] = np.frombuffer(content, dtype=np.uint8)
    return array.reshape(shape, order="F" if fortran_order else "C")
