"""MNIST and Fashion-MNIST from their four idx files, gzipped or not."""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError
from puma.pools.writer import PoolPart

MNIST_CLASSES = tuple("0123456789")
FASHION_CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle-boot")
_LARGEST = 1 << 32  # bytes; the data sets in this format have less than a tenth
_FILES = {"train": "train", "test": "t10k"}


def idx(source: Path, class_names: tuple[str, ...], *, pool: int = 1) -> dict[str, PoolPart]:
    """Return the training and test part; ``pool`` averages pool x pool pixels (2 makes 14 px out of 28)."""
    parts = {}
    for part, prefix in _FILES.items():
        pixels = average_pooled(read_idx(source, f"{prefix}-images-idx3-ubyte", 3), pool)[..., None]
        labels = read_idx(source, f"{prefix}-labels-idx1-ubyte", 1)
        parts[part] = PoolPart([(pixels, labels)], class_names, len(pixels))
    return parts


def read_idx(folder: Path, name: str, dimensions: int) -> NDArray[np.uint8]:
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
            content = file.read(min(math.prod(shape), _LARGEST) + 1)
    except (EOFError, zlib.error, struct.error, gzip.BadGzipFile) as error:
        raise PumaError(f"{path} is damaged or cut short ({error}); fetch it again.") from error
    length = len(content) if len(content) <= math.prod(shape) else "more"
    if len(content) != math.prod(shape):
        raise PumaError(
            f"{path} should hold {math.prod(shape)} bytes for {tuple(shape)}, it holds {length}; fetch it again."
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def average_pooled(pixels: NDArray[np.uint8], pool: int) -> NDArray[np.uint8]:
    """Average pool x pool blocks of (n, height, width), rounded to whole grey values."""
    count, height, width = pixels.shape
    if pool < 1 or height % pool or width % pool:
        raise PumaError(f"--pool must divide the image size {height} x {width}, got {pool}.")
    if pool == 1:
        return pixels
    blocks = pixels.reshape(count, height // pool, pool, width // pool, pool)
    averaged: NDArray[np.float32] = blocks.mean(axis=(2, 4), dtype=np.float32)
    return np.rint(averaged).astype(np.uint8)
