"""Where the images of a pool lie: in a folder on disk, in memory, or behind a dataset of the user's.

In a folder ``pool.json`` describes them. ``labels.npy`` (int32) and ``origin.npy`` (int8) lie beside the images, which
are ``images.npy`` (uint8, NHWC, memory-mapped), a list of picture files or an index of pictures in shards, which are
decoded when they are read, or some rows of another pool.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError
from puma.files import LINKS_KEY, Link, read_json, read_links, write_links
from puma.pools.pictures import PictureFiles
from puma.pools.shards import KEYED, SHARDS_FORMAT, ShardPictures, fingerprint_index, map_array, open_shards
from puma.pools.writer import (
    FORMAT,
    PoolPart,
    fingerprint_content,
    make_image_reader,
    new_folder,
    restore_folder,
    write_description,
)

SUBSET_FORMAT = "puma-subset-1"
_FORMATS = (FORMAT, SHARDS_FORMAT, SUBSET_FORMAT)


class Origin(IntEnum):
    """Where a sample comes from."""

    REAL = 0
    GENERATED = 1


class ImageRows(Protocol):
    """Anything that gives uint8 images (k, height, width, channels) for k rows."""

    def __getitem__(self, rows: Any) -> NDArray[np.uint8]: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, eq=False)
class Store:
    """Images, labels and origin of one place; ``folder`` is None for what lies in memory."""

    folder: Path | None
    images: ImageRows
    labels: NDArray[np.int32]
    origin: NDArray[np.int8]
    image_shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    fingerprint: str
    checksum: int
    sample_id: NDArray[np.int64] | None = None  # None: a sample's id is its row

    def __reduce__(self) -> tuple[Callable[..., "Store"], tuple[Any, ...]]:
        """Pickle as the place on disk: workers open the folder themselves instead of getting the images."""
        if self.folder is not None:
            return open_store, (self.folder.resolve(),)
        names = (
            "folder",
            "images",
            "labels",
            "origin",
            "image_shape",
            "class_names",
            "fingerprint",
            "checksum",
            "sample_id",
        )
        return Store, tuple(getattr(self, name) for name in names)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def path(self) -> Path:
        """The folder; a pool in memory has none."""
        if self.folder is None:
            raise PumaError("the pool lies in memory; write it to a folder with pool.save(folder).")
        return self.folder

    def read(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Copy images and labels of these rows into memory."""
        return np.asarray(self.images[rows]), self.labels[rows].astype(np.int64)

    def read_image(self, row: int) -> bytes:
        """Pixels of one image, without mapping what lies around it."""
        if self.folder is not None and isinstance(self.images, np.ndarray):
            return make_image_reader(self.folder / "images.npy", self.image_shape)(row)
        return np.asarray(self.images[np.array([row])]).tobytes()

    def verify(self) -> None:
        """Recompute the fingerprint and raise if the files are not those that were imported."""
        if self._compute_fingerprint() != self.fingerprint:
            raise PumaError(f"pool {self.folder or 'in memory'} has changed since it was imported; import it again.")

    def _compute_fingerprint(self) -> str:
        ids = np.asarray(self.sample_id)
        if isinstance(self.images, ShardPictures):
            pictures = self.images
            pictures.check_shards()
            return fingerprint_index(
                pictures.index, pictures.pages, ids, self.labels, self.origin, self.class_names, pictures.policy
            )
        if isinstance(self.images, ChosenImages):
            self.images.base.verify()
            return fingerprint_subset([self.images.base.fingerprint], ids)
        return fingerprint_content(
            self.read_image, self.labels, self.origin, self.image_shape, self.class_names, self.checksum
        )


def is_pool(path: Path) -> bool:
    """Tell whether a folder holds a pool."""
    return (path / "pool.json").is_file()


def read_pool_links(folder: Path) -> tuple[Link, ...] | None:
    """Return what the pool in a folder was made from; None for one that was imported."""
    return read_links(read_json(folder / "pool.json", "a pool's description"))


def open_store(path: Path) -> Store:
    """Map the arrays of a pool folder; a folder that is not whole raises."""
    if not path.exists():
        restore_folder(path.resolve())
    if not is_pool(path):
        inner = sorted(child.parent.name for child in path.glob("*/pool.json"))
        hint = f"it has pools inside: {', '.join(inner)}" if inner else "make one with: puma data import"
        hint = f"give its folder, {path.parent}" if is_pool(path.parent) else hint
        raise PumaError(f"{path} is not a pool (no pool.json); {hint}.")
    described = read_json(path / "pool.json", "a pool's description")
    try:
        if described["format"] not in _FORMATS:
            known = ", ".join(map(repr, _FORMATS))
            raise PumaError(f"pool {path} has format {described['format']!r}, this version reads {known}.")
        shape = tuple(int(size) for size in described["image_shape"])
        count = int(described["count"])
        names = tuple(str(name) for name in described["class_names"])
        fingerprint, checksum = str(described["fingerprint"]), int(described["checksum"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise PumaError(f"{path / 'pool.json'} is damaged ({error}); import the pool again.") from error
    if len(shape) != 3:
        raise PumaError(f"{path / 'pool.json'} is damaged (image_shape {shape}); import the pool again.")
    keyed = described["format"] != FORMAT
    return Store(
        folder=path,
        images=_open_images(path, described, (count, *shape)),
        labels=map_array(path / "labels.npy", np.dtype(np.int32), (count,)),
        origin=map_array(path / "origin.npy", np.dtype(np.int8), (count,)),
        image_shape=(shape[0], shape[1], shape[2]),
        class_names=names,
        fingerprint=fingerprint,
        checksum=checksum,
        sample_id=map_array(path / "sample_id.npy", np.dtype(np.int64), (count,)) if keyed else None,
    )


def _open_images(path: Path, described: Mapping[str, Any], shape: tuple[int, ...]) -> ImageRows:
    """Return the rows of images of a pool folder: mapped pixels, picture files, shards, or rows of another pool."""
    if described["format"] == SHARDS_FORMAT:
        return open_shards(path, described)
    if described["format"] == SUBSET_FORMAT:
        return _open_chosen(path, described, shape)
    root = described.get("pictures")
    if root is None:
        return map_array(path / "images.npy", np.dtype(np.uint8), shape)
    ends = map_array(path / "files_end.npy", np.dtype(np.int64), shape[:1])
    size = described.get("size", 0)
    if not isinstance(root, str) or not isinstance(size, int):
        raise PumaError(f"{path / 'pool.json'} is damaged (pictures {root!r}); import the pool again.")
    return PictureFiles(Path(os.path.normpath(path / root)), path / "files.txt", ends, size, shape[3])


class ChosenImages:
    """Some rows of another pool's images."""

    def __init__(self, base: Store, rows: NDArray[np.int64]) -> None:
        self.base, self.rows = base, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Read these rows (k, height, width, channels)."""
        return np.asarray(self.base.images[self.rows[rows]])


def _open_chosen(path: Path, described: Mapping[str, Any], shape: tuple[int, ...]) -> ChosenImages:
    place, expected = described.get("of"), described.get("of_fingerprint")
    whole = Path(os.path.normpath(path / str(place)))
    try:
        base = open_store(whole)
    except PumaError as error:
        if is_pool(whole):
            raise
        raise PumaError(
            f"{path} is a part of {whole}, which is gone; bring it back, or make the part again."
        ) from error
    if base.fingerprint != expected:
        raise PumaError(f"{path} is a part of {base.folder}, which is another pool by now; make the part again.")
    rows = map_array(path / "rows.npy", np.dtype(np.int64), shape[:1])
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(base):
        raise PumaError(f"{path / 'rows.npy'} names rows that {base.folder} does not have; make the part again.")
    return ChosenImages(base, rows)


def locate_picture(store: Store, row: int) -> tuple[ShardPictures, int] | None:
    """Return where a row's picture lies encoded: shards and the row in their index; None for a store of pixels."""
    if isinstance(store.images, ChosenImages):
        return locate_picture(store.images.base, int(store.images.rows[row]))
    return (store.images, row) if isinstance(store.images, ShardPictures) else None


def fingerprint_subset(fingerprints: Sequence[str], ids: NDArray[np.int64] | None) -> str:
    """Hash of stores and of the ids that are selected, None for all; ids made from keys count in any order."""
    digest = hashlib.sha256("".join(fingerprints).encode())
    if ids is not None:
        ordered = np.sort(ids) if len(ids) and int(ids.max()) >= KEYED else ids
        digest.update(np.ascontiguousarray(ordered).data)
    return digest.hexdigest()


def write_subset(store: Store, rows: NDArray[np.int64], out: Path, *, force: bool = False) -> Path:
    """Write a pool that is some rows of another: an index into it, with the same ids; nothing else is copied."""
    base, places, images = store, rows, store.images
    while isinstance(images, ChosenImages):
        base, places, images = images.base, images.rows[places], images.base.images
    if not len(rows):
        raise PumaError("no sample is left; choose others.")
    ids = rows if store.sample_id is None else store.sample_id[rows]
    kept = np.asarray(rows if store.sample_id is None else ids, dtype=np.int64)
    with new_folder(out, force=force) as folder:
        np.save(folder / "rows.npy", np.asarray(places, dtype=np.int64))
        np.save(folder / "sample_id.npy", kept)
        np.save(folder / "labels.npy", store.labels[rows])
        links = {LINKS_KEY: write_links([Link("images", "pool", base.fingerprint, str(base.path.resolve()))])}
        part = PoolPart((), store.class_names, len(rows), store.origin[rows], True, description=links)
        more = {
            "format": SUBSET_FORMAT,
            "of": os.path.relpath(base.path.resolve(), out.resolve()),
            "of_fingerprint": base.fingerprint,
            "checksum": 0,
        }
        fingerprint = fingerprint_subset([base.fingerprint], kept)
        write_description(folder, part, store.image_shape, more, lambda *_: fingerprint)
    return out
