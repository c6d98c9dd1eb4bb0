"""A pool: the images that are trained on, memory-mapped, with stable ids.

A pool is a selection of rows from one or more stores (folders on disk). Opening one reads a page of JSON and maps the
rest, so fifty million images cost no more memory than fifty; subsets and concatenations copy no images.
"""

import operator
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from puma.errors import PumaError
from puma.files import LINKS_KEY, Link, write_links
from puma.pools.decoding import Resize
from puma.pools.pictures import PictureFiles
from puma.pools.shards import ShardPictures
from puma.pools.store import Origin, Store, fingerprint_subset, is_pool, locate_picture, open_store
from puma.pools.tensors import Array, DatasetImages, OriginName, store_dataset, store_tensors
from puma.pools.writer import Chunk, PoolPart, fingerprint_content, write_parts

Rows = NDArray[np.int64]
_CHUNK_BYTES = 1 << 24  # of images that are read in one go


@dataclass(frozen=True)
class Batch:
    """Images as stored (uint8, shape NCHW in channels_last memory), labels and sample ids (int64)."""

    images: Tensor
    labels: Tensor
    sample_id: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def to_unit(images: Tensor) -> Tensor:
    """Turn uint8 pixels into float32 within [0, 1]."""
    return images.to(torch.float32).div_(255)


@dataclass(frozen=True, eq=False)
class Pool:
    """Images, labels, origin and ids of training samples.

    Examples:
        >>> pool = puma.Pool.from_tensors(torch.rand(6, 3, 8, 8), [0, 1, 2, 0, 1, 2])  # numpy arrays do as well
        >>> pool  # also Pool.from_dataset(dataset), Pool.open(folder), pool + pool
        Pool(6 images of 8 x 8 x 3, 3 classes, 0 generated, fingerprint ...)
        >>> image, label = pool[5]  # (channels, height, width) in [0, 1]: torch's DataLoader(pool) works
        >>> image.shape, label
        (torch.Size([3, 8, 8]), 2)
        >>> pool.subset(pool.labels == 1).sample_id  # a subset keeps the ids
        array([1, 4])
        >>> len(puma.Pool.open(pool.save("mine")))
        6

    A sample's id is its row in the store, plus the sizes of the stores before it, or made from its key where pictures
    stay in their shards: it does not change when the pool is pruned. ``rows`` are the selected rows of all stores
    together, None for all.
    """

    stores: tuple[Store, ...]
    rows: Rows | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.stores, tuple) and self.stores and all(isinstance(s, Store) for s in self.stores)):
            raise PumaError(
                "a pool is made by Pool.from_tensors(images, labels), Pool.from_dataset(dataset) or Pool.open(folder)."
            )

    @classmethod
    def from_tensors(
        cls,
        images: Array,
        labels: Array,
        *,
        origin: OriginName | Origin | Array = "real",
        class_names: Sequence[str] | None = None,
        layout: str | None = None,
    ) -> "Pool":
        """Make a pool of images and labels in memory; ids count from 0.

        Examples:
            >>> images = torch.rand(6, 3, 8, 8)  # (n, channels, height, width) or (n, height, width, channels)
            >>> puma.Pool.from_tensors(images, torch.tensor([0, 1, 2, 0, 1, 2]))[5][1]
            2

        Args:
            images: torch or numpy, uint8 or floating point in [0, 1], which is rounded to whole grey values.
            labels: integers (n,) from 0 on.
            origin: ``real`` or ``generated``, or 0 or 1 for every image.
            class_names: in the order of the labels; numbers if they are not given.
            layout: ``NCHW`` or ``NHWC``; found out where only one of them can be meant.
        """
        store = store_tensors(images, labels, origin=origin, class_names=class_names, layout=layout)
        return cls((store,))

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        *,
        origin: OriginName | Origin | Array = "real",
        class_names: Sequence[str] | None = None,
        size: int | None = None,
        resize: Resize = "cover",
    ) -> "Pool":
        """Make a pool of any map-style dataset of (image, label); images are read when they are asked for.

        Examples:
            >>> pairs = [(torch.rand(1, 8, 8), label) for label in (0, 1, 0)]
            >>> len(puma.Pool.from_dataset(pairs))
            3

        Images are PIL pictures, tensors or arrays, without random augmentation, and all of one size unless ``size`` is
        given. They stay where they are: nothing is copied. Ids are positions. The fingerprint looks at every label and
        at 1024 evenly spaced images.

        Args:
            dataset: anything with ``len(dataset)`` and ``dataset[position]``.
            origin: ``real`` or ``generated``, or 0 or 1 for every image.
            class_names: in the order of the labels; by default ``dataset.classes``, or numbers.
            size: scale every image to so many pixels a side, as pools in place do.
            resize: take the middle square (``cover``), or the whole image (``squash``).
        """
        return cls((store_dataset(dataset, origin=origin, class_names=class_names, size=size, resize=resize),))

    @classmethod
    def open(cls, path: str | Path) -> "Pool":
        """Open the pool in a folder; images stay on disk."""
        return cls((open_store(Path(path)),))

    def __reduce__(self) -> tuple[type["Pool"], tuple[tuple[Store, ...], Rows | None]]:
        """Pickle without what can be worked out again."""
        return Pool, (self.stores, self.rows)

    @cached_property
    def _starts(self) -> Rows:
        return np.cumsum([0] + [len(store) for store in self.stores])

    def __repr__(self) -> str:
        height, width, channels = self.image_shape
        return (
            f"Pool({len(self):,} images of {height} x {width} x {channels}, {self.num_classes} classes, "
            f"{int((self.origin == Origin.GENERATED).sum()):,} generated, fingerprint {self.fingerprint[:8]})"
        )

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        """Return image (channels, height, width), float32 in [0, 1], and label; so ``DataLoader(pool)`` works."""
        try:
            place = operator.index(position)
        except TypeError as error:
            kind = type(position).__name__
            raise PumaError(f"a position must be a whole number, got {kind}; pool.subset takes several.") from error
        place += len(self) if place < 0 else 0
        if not 0 <= place < len(self):
            raise IndexError(f"position {position} is outside of a pool of {len(self):,} images")
        return self.__getitems__([place])[0]

    def __getitems__(self, positions: list[int]) -> list[tuple[Tensor, int]]:
        """Return several items at once, as torch's DataLoader asks for them."""
        batch = self.batch(positions)
        return list(zip(to_unit(batch.images), batch.labels.tolist(), strict=True))

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the pool into a folder, with ids that count from 0; the same content is found again.

        Another pool in the way raises, unless ``force`` is given.
        """
        out = Path(path)
        if (out / "pool.json").is_file() and not force:
            there = open_store(out)
            if there.fingerprint != self._fingerprint_saved():
                raise PumaError(f"{out} holds another pool of {len(there):,} images; choose another folder.")
            return out
        sampled = len(self.stores) == 1 and self.rows is None and isinstance(self.stores[0].images, DatasetImages)
        part = PoolPart(
            self._read_chunks(),
            self.class_names,
            len(self),
            self.origin,
            allow_empty_class=True,
            description=self._describe_origin(),
            checksum=self.stores[0].checksum if sampled else None,
        )
        return write_parts({"": part}, out, force=force)

    def _describe_origin(self) -> dict[str, Any]:
        """Say in which folders the images lay; what lay in memory alone was made from nothing of ours."""
        folders = [store for store in self.stores if store.folder is not None]
        links = [Link("images", "pool", store.fingerprint, str(store.folder)) for store in folders]
        return {LINKS_KEY: write_links(links)} if links else {}

    def _read_chunks(self) -> Iterator[Chunk]:
        for batch in self.batches(max(1, _CHUNK_BYTES // int(np.prod(self.image_shape)))):
            yield batch.images.permute(0, 2, 3, 1).numpy(), batch.labels.numpy()

    def _fingerprint_saved(self) -> str:
        """The fingerprint that the pool has once it is saved."""
        if len(self.stores) == 1 and self.rows is None and not self._keyed:
            return self.stores[0].fingerprint
        checksum = 0
        for images, _ in self._read_chunks():
            checksum = zlib.crc32(np.ascontiguousarray(images).data, checksum)
        return fingerprint_content(
            lambda row: self.batch([row]).images.permute(0, 2, 3, 1).numpy().tobytes(),
            self.labels,
            self.origin,
            self.image_shape,
            self.class_names,
            checksum,
        )

    @property
    def place(self) -> str:
        """Where the pool lies, as a hint for those who look for it; empty for memory."""
        return " + ".join(str(store.folder) for store in self.stores if store.folder is not None)

    def __len__(self) -> int:
        return int(self._starts[-1]) if self.rows is None else len(self.rows)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""
        return self.stores[0].image_shape

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of their labels."""
        return self.stores[0].class_names

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def _keyed(self) -> bool:
        """Whether some ids are made from keys, and not simply rows."""
        return any(store.sample_id is not None for store in self.stores)

    @cached_property
    def sample_id(self) -> Rows:
        """Stable ids (n,), ascending in the order of the pool unless a subset was reordered or ids come from keys."""
        if not self._keyed:
            return self._places
        columns = [
            np.arange(start, start + len(store)) if store.sample_id is None else store.sample_id
            for start, store in zip(self._starts, self.stores, strict=False)
        ]
        ids = self._column([np.asarray(column) for column in columns]).astype(np.int64)
        if len(self.stores) > 1 and len(np.unique(ids)) < len(ids):
            raise PumaError("the pools have samples of the same key or id in common; give each sample once.")
        return ids

    @property
    def _places(self) -> Rows:
        """Rows of the samples in all stores together."""
        return np.arange(self._starts[-1]) if self.rows is None else self.rows

    def number_rows(self, start: int, stop: int) -> Rows:
        """Return the ids of the samples from ``start`` up to ``stop``; those of all are not made if they are rows."""
        if self._keyed:
            return np.array(self.sample_id[start:stop])
        return np.arange(start, min(stop, len(self))) if self.rows is None else np.array(self.rows[start:stop])

    @cached_property
    def labels(self) -> Rows:
        """Labels (n,)."""
        return self._column([store.labels for store in self.stores]).astype(np.int64)

    @cached_property
    def origin(self) -> NDArray[np.int8]:
        """Origin (n,) of each sample: ``Origin.REAL`` or ``Origin.GENERATED``."""
        return self._column([store.origin for store in self.stores]).astype(np.int8)

    def _column(self, columns: list[NDArray[np.generic]]) -> NDArray[np.generic]:
        whole = columns[0] if len(columns) == 1 else np.concatenate(columns)
        return whole if self.rows is None else whole[self.rows]

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the stores' contents and of which rows are selected; files made from the pool carry it."""
        if len(self.stores) == 1 and self.rows is None:
            return self.stores[0].fingerprint
        return fingerprint_subset(
            [store.fingerprint for store in self.stores], None if self.rows is None else self.sample_id
        )

    def batch(self, positions: NDArray[np.integer] | Sequence[int]) -> Batch:
        """Read the samples at these positions (0 to len - 1), in this order."""
        wanted = np.asarray(positions, dtype=np.int64)
        if wanted.size and (wanted.min() < 0 or wanted.max() >= len(self)):
            raise PumaError(f"positions must lie in 0..{len(self) - 1}, got {wanted.min()}..{wanted.max()}.")
        places = wanted if self.rows is None else self.rows[wanted]
        if len(self.stores) == 1:
            images, labels = self.stores[0].read(places)
        else:
            images = np.empty((len(places), *self.image_shape), dtype=np.uint8)
            labels = np.empty(len(places), dtype=np.int64)
            owner = np.searchsorted(self._starts, places, side="right") - 1
            for index, store in enumerate(self.stores):
                mine = owner == index
                if mine.any():
                    images[mine], labels[mine] = store.read(places[mine] - self._starts[index])
        return Batch(
            images=torch.from_numpy(images).permute(0, 3, 1, 2),
            labels=torch.from_numpy(labels),
            sample_id=torch.from_numpy(np.array(self.sample_id[wanted] if self._keyed else places)),
        )

    def locate(self, position: int) -> tuple[ShardPictures, int] | None:
        """Return where a sample's picture lies encoded: shards and the row in their index; None for pixels."""
        place = position if self.rows is None else int(self.rows[position])
        owner = int(np.searchsorted(self._starts, place, side="right")) - 1
        return locate_picture(self.stores[owner], place - int(self._starts[owner]))

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Read the pool once, in order; the last batch may be short."""
        if batch_size < 1:
            raise PumaError(f"batch_size must be at least 1, got {batch_size}.")
        for start in range(0, len(self), batch_size):
            yield self.batch(np.arange(start, min(start + batch_size, len(self))))

    def subset(self, keep: Array) -> "Pool":
        """Keep the samples where ``keep`` (n,) is true, or those at the positions it lists; ids stay the same."""
        try:
            chosen = keep.numpy(force=True) if isinstance(keep, Tensor) else np.asarray(keep)
        except ValueError as error:
            raise PumaError(
                f"keep must be {len(self)} booleans, or positions, got lists of several lengths."
            ) from error
        if chosen.dtype == np.bool_ and chosen.shape == (len(self),):
            return Pool(self.stores, self._places[chosen])
        if chosen.dtype.kind not in "iu" or chosen.ndim != 1:
            raise PumaError(
                f"keep must be {len(self)} booleans, or positions, got {chosen.dtype} of shape {chosen.shape}."
            )
        if len(chosen) and (chosen.min() < 0 or chosen.max() >= len(self) or len(np.unique(chosen)) < len(chosen)):
            raise PumaError(f"positions must lie in 0..{len(self) - 1}, each once.")
        return Pool(self.stores, self._places[chosen])

    def __add__(self, other: "Pool") -> "Pool":
        """Put another pool behind this one (real + generated); its ids move up by this one's stores."""
        if not isinstance(other, Pool):
            raise PumaError(f"only another pool can be put behind a pool, got {type(other).__name__}.")
        if self.image_shape != other.image_shape:
            raise PumaError(f"pools must have images of one shape, got {self.image_shape} and {other.image_shape}.")
        if self.class_names != other.class_names:
            raise PumaError(f"pools must have the same classes, got {self.class_names} and {other.class_names}.")
        if self.rows is None and other.rows is None:
            return Pool(self.stores + other.stores)
        return Pool(self.stores + other.stores, np.concatenate([self._places, other._places + self._starts[-1]]))

    def find_files(self, positions: NDArray[np.integer] | Sequence[int]) -> list[Path | None]:
        """Return the picture file of each position; None for images that are no files of their own."""
        places: list[Path | None] = []
        for row in self._places[np.asarray(positions, dtype=np.int64)]:
            owner = int(np.searchsorted(self._starts, row, side="right")) - 1
            images = self.stores[owner].images
            places.append(images.path(int(row - self._starts[owner])) if isinstance(images, PictureFiles) else None)
        return places

    def positions_of(self, origin: Origin) -> Rows:
        """Positions of the samples of one origin."""
        return np.flatnonzero(self.origin == origin)


PoolSource = Pool | str | Path


def open_pools(paths: PoolSource | Sequence[PoolSource]) -> Pool:
    """Open several folders as one pool, in this order; pools that are open already count too."""
    return reduce(add, list_pools(paths))


def list_pools(paths: PoolSource | Sequence[PoolSource]) -> list[Pool]:
    """Open folders; what is neither a pool nor the folder of one is told in one sentence."""
    given: list[Any] = list(paths) if isinstance(paths, list | tuple) else [paths]
    if not given:
        raise PumaError("no pool given; name at least one folder made by: puma data import.")
    for one in given:
        if not isinstance(one, str | Path | Pool):
            raise PumaError(
                f"a pool must be a puma.Pool or the folder of one, got {type(one).__name__}; "
                "puma.Pool.from_tensors and puma.Pool.from_dataset make one."
            )
    return [one if isinstance(one, Pool) else Pool.open(one) for one in given]


def open_inner_pools(path: Path) -> dict[str, Pool]:
    """Open the pool in a folder, or all the pools directly inside it, by name."""
    inner = sorted(file.parent for file in path.glob("*/pool.json"))
    if inner and not is_pool(path):
        return {folder.name: Pool.open(folder) for folder in inner}
    return {path.name: Pool.open(path)}
