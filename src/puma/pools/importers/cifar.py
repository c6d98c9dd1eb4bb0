"""CIFAR-10 and CIFAR-100 from their official files: the binary or the python layout, a folder or a tar archive."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError
from puma.pools.importers.cifar_pickle import read_cifar_pickle
from puma.pools.importers.members import read_members
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


@dataclass(frozen=True)
class Layout:
    """File names of the two layouts and how a record of the binary one begins."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    label_bytes: int  # before the pixels; the last of them is the label
    label_key: str  # in the python layout
    class_names: tuple[str, ...]


_BATCHES = tuple(f"data_batch_{index}" for index in range(1, 6))
CIFAR10 = Layout(_BATCHES, ("test_batch",), 1, "labels", tuple(CIFAR10_CLASSES))
CIFAR100 = Layout(("train",), ("test",), 2, "fine_labels", tuple(CIFAR100_CLASSES))


def cifar(source: Path, layout: Layout) -> dict[str, PoolPart]:
    """Return the training and test part of the data set in a folder or archive."""
    names = [*layout.train, *layout.test]
    contents = read_members(source, [f"{name}.bin" for name in names])
    binary = bool(contents)
    if not binary:
        contents = read_members(source, names)
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


def _read_binary(content: bytes, layout: Layout, path: Path) -> Chunk:
    record = layout.label_bytes + _PIXELS
    if not content or len(content) % record:
        raise PumaError(f"{path} is cut short: {len(content)} bytes are not whole records of {record}.")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, record)
    return _nhwc(records[:, layout.label_bytes :]), records[:, layout.label_bytes - 1]


def _read_python(content: bytes, layout: Layout, path: Path) -> Chunk:
    batch = read_cifar_pickle(content, path)
    pixels: Any = batch.get("data")
    labels: Any = batch.get(layout.label_key)
    whole = isinstance(labels, list) and all(isinstance(label, int) for label in labels)
    if not whole or not isinstance(pixels, np.ndarray) or pixels.shape != (len(labels), _PIXELS):
        raise PumaError(f"{path} is not a CIFAR batch: expected 'data' (n, 3072) and {layout.label_key!r} (n).")
    return _nhwc(pixels), np.array(labels)


def _nhwc(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
