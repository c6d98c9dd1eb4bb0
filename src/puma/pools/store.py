"""Where the images of a pool lie: in a folder on disk, in memory, or behind a dataset of the user's.

In a folder ``pool.json`` describes them. ``labels.npy`` (int32) and ``origin.npy`` (int8) lie beside the images, which
are either ``images.npy`` (uint8, NHWC, memory-mapped) or a list of picture files that are decoded when they are read.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError
from puma.files import Link, open_regular, read_json, read_links
from puma.pools.pictures import PictureFiles
from puma.pools.writer import FORMAT, fingerprint_content, make_image_reader, restore_folder


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

    def __reduce__(self) -> tuple[Callable[..., "Store"], tuple[Any, ...]]:
        """Pickle as the place on disk: workers open the folder themselves instead of getting the images."""
        if self.folder is not None:
            return open_store, (self.folder.resolve(),)
        names = ("folder", "images", "labels", "origin", "image_shape", "class_names", "fingerprint", "checksum")
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
        if self.folder is not None and not isinstance(self.images, PictureFiles):
            return make_image_reader(self.folder / "images.npy", self.image_shape)(row)
        return np.asarray(self.images[np.array([row])]).tobytes()

    def verify(self) -> None:
        """Recompute the fingerprint and raise if the files are not those that were imported."""
        found = fingerprint_content(
            self.read_image, self.labels, self.origin, self.image_shape, self.class_names, self.checksum
        )
        if found != self.fingerprint:
            raise PumaError(f"pool {self.folder or 'in memory'} has changed since it was imported; import it again.")


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
        raise PumaError(f"{path} is not a pool (no pool.json); {hint}.")
    described = read_json(path / "pool.json", "a pool's description")
    try:
        if described["format"] != FORMAT:
            raise PumaError(f"pool {path} has format {described['format']!r}, this version reads {FORMAT!r}.")
        shape = tuple(int(size) for size in described["image_shape"])
        count = int(described["count"])
        names = tuple(str(name) for name in described["class_names"])
        fingerprint, checksum = str(described["fingerprint"]), int(described["checksum"])
        root = described.get("pictures")
        resize = int(described.get("size", 0))
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise PumaError(f"{path / 'pool.json'} is damaged ({error}); import the pool again.") from error
    if len(shape) != 3:
        raise PumaError(f"{path / 'pool.json'} is damaged (image_shape {shape}); import the pool again.")
    images: ImageRows
    if root is None:
        images = _map_array(path / "images.npy", np.dtype(np.uint8), (count, *shape))
    else:
        names_file, ends = path / "files.txt", _map_array(path / "files_end.npy", np.dtype(np.int64), (count,))
        images = PictureFiles(Path(os.path.normpath(path / root)), names_file, ends, resize, shape[2])
    return Store(
        folder=path,
        images=images,
        labels=_map_array(path / "labels.npy", np.dtype(np.int32), (count,)),
        origin=_map_array(path / "origin.npy", np.dtype(np.int8), (count,)),
        image_shape=(shape[0], shape[1], shape[2]),
        class_names=names,
        fingerprint=fingerprint,
        checksum=checksum,
    )


def _map_array(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    open_regular(path, "an array of a pool").close()
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a damaged header can raise anything
        raise PumaError(f"{path} is missing or cut short ({error}); import the pool again.") from error
    if array.dtype != dtype or array.shape != shape:
        raise PumaError(f"{path} should hold {dtype} {shape}, it holds {array.dtype} {array.shape}; import again.")
    return array.view(np.ndarray)
