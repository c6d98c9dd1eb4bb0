"""Folders of pictures, one sub-folder per class: packed to one array, or kept as files that are decoded when read.

A few threads decode (decoding releases the lock).
"""

import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError
from puma.pools.decoding import SUFFIXES, decode_picture, is_picture
from puma.pools.shards import map_text
from puma.pools.writer import Chunk, NpyAppender, PoolPart, hash_images, new_folder, write_description, write_pool
from puma.progress import progress_bar

Item = TypeVar("Item")
Result = TypeVar("Result")
_CHUNK = 1024  # pictures decoded at a time
_PARTS = {"train", "test", "val", "valid", "validation"}  # what datasets call their parts


class PictureFiles:
    """Rows of images behind a list of file names below one folder."""

    def __init__(self, root: Path, names_file: Path, ends: NDArray[np.int64], size: int, channels: int) -> None:
        self.root, self.ends, self.size, self.channels = root, ends, size, channels
        self.names = map_text(names_file, ends)

    def __len__(self) -> int:
        return len(self.ends)

    def path(self, row: int) -> Path:
        """File of one row; a name that leads out of the folder raises."""
        start = int(self.ends[row - 1]) if row else 0
        name = os.fsdecode(self.names[start : int(self.ends[row])].tobytes())
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise PumaError(f"the pool names a picture outside its folder: {name!r}; import the pool again.")
        return self.root / name

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Decode these rows."""
        images = np.empty((len(rows), self.size, self.size, self.channels), dtype=np.uint8)
        decoded = _map_threads(self._decode, (int(row) for row in rows))
        for index, image in enumerate(decoded):
            images[index] = image
        return images

    def _decode(self, row: int) -> NDArray[np.uint8]:
        path = self.path(row)
        try:
            return decode_picture(path, self.size, self.channels)
        except ValueError as error:
            raise PumaError(f"picture {path} cannot be read ({error}); mend it or import the pool again.") from error


def _map_threads(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield ``work(item)`` in order, with a bounded number of items under way."""
    threads = max(2, min(16, os.cpu_count() or 2))
    source = iter(items)
    with ThreadPoolExecutor(threads) as pool:
        waiting = [pool.submit(work, item) for item in islice(source, 4 * threads)]
        while waiting:
            yield waiting.pop(0).result()
            waiting.extend(pool.submit(work, item) for item in islice(source, 1))


@dataclass(frozen=True)
class PictureFolder:
    """File names below ``root`` and the label of each; ``broken`` fills up while they are decoded."""

    root: Path
    names: list[str]
    labels: list[int]
    class_names: list[str]
    size: int
    channels: int
    broken: list[str] = field(default_factory=list)


def list_pictures(root: Path, size: int, channels: int) -> PictureFolder:
    """List the pictures of every class folder, in the order of their names."""
    if root.is_file():
        kind = "npz" if root.suffix == ".npz" else "tar" if root.suffix == ".tar" else ""
        hint = (
            f"import it with: puma data import {kind} {root}"
            if kind
            else "give the folder that holds the class folders"
        )
        raise PumaError(f"{root} is a file, not a folder; {hint}.")
    if not root.is_dir():
        raise PumaError(f"no such folder: {root}.")
    if size < 1 or channels not in (1, 3):
        raise PumaError(f"--size must be positive and --channels 1 or 3, got {size} and {channels}.")
    class_names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    if not class_names:
        raise PumaError(f"{root} has no sub-folders; expected one folder of pictures per class.")
    if set(class_names) <= _PARTS and all(
        any(entry.is_dir() for entry in (root / name).iterdir()) for name in class_names
    ):
        places = " and ".join(str(root / name) for name in class_names)
        raise PumaError(
            f"{root} holds parts of a dataset ({', '.join(class_names)}), not classes; import {places} each."
        )
    names, labels = [], []
    for label, class_name in enumerate(class_names):
        files = sorted(
            os.path.relpath(Path(folder, file), root)
            for folder, _, files in os.walk(root / class_name)
            for file in files
            if is_picture(file) and Path(folder, file).is_file()
        )
        names += files
        labels += [label] * len(files)
    if not names:
        raise PumaError(f"{root} holds no pictures ({', '.join(sorted(SUFFIXES))}).")
    return PictureFolder(root, names, labels, class_names, size, channels)


def _decode_pictures(pictures: PictureFolder, *, strict: bool) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Decode every picture and yield its row; broken ones are noted and left out, or raise if ``strict``."""

    def read(row: int) -> NDArray[np.uint8] | str:
        try:
            return decode_picture(pictures.root / pictures.names[row], pictures.size, pictures.channels)
        except ValueError as error:
            return f"{pictures.names[row]} ({error})"

    for row, result in enumerate(_map_threads(read, range(len(pictures.names)))):
        if not isinstance(result, str):
            yield row, result
        elif strict:
            raise PumaError(f"broken picture {result}; remove it, or leave out --strict to skip such files.")
        else:
            pictures.broken.append(result)
    if len(pictures.broken) == len(pictures.names):
        raise PumaError(f"every picture in {pictures.root} is broken; first: {pictures.broken[0]}.")


def _pack_pictures(pictures: PictureFolder, *, strict: bool) -> Iterator[Chunk]:
    """Yield the decoded pictures in chunks, to be written as one array."""
    decoded = _decode_pictures(pictures, strict=strict)
    while chunk := list(islice(decoded, _CHUNK)):
        yield np.stack([image for _, image in chunk]), np.array([pictures.labels[row] for row, _ in chunk])


def _write_as_files(
    folder: Path, pictures: PictureFolder, part: PoolPart, *, strict: bool, advance: Callable[[int], None]
) -> None:
    """Write a pool that points at the pictures; each is decoded once now, so that broken ones are left out."""
    end = checksum = 0
    with (
        (folder / "files.txt").open("wb") as names,
        NpyAppender(folder / "files_end.npy", np.int64) as ends,
        NpyAppender(folder / "labels.npy", np.int32) as labels,
    ):
        for row, image in _decode_pictures(pictures, strict=strict):
            checksum = zlib.crc32(image.data, checksum)
            name = os.fsencode(pictures.names[row])
            end += len(name)
            names.write(name)
            ends.append(np.array([end]))
            labels.append(np.array([pictures.labels[row]]))
            advance(1)
    shape = (pictures.size, pictures.size, pictures.channels)
    file_ends = np.load(folder / "files_end.npy")
    images = PictureFiles(pictures.root, folder / "files.txt", file_ends, pictures.size, pictures.channels)
    more = {"pictures": str(pictures.root.resolve()), "size": pictures.size, "checksum": checksum}
    fingerprint = hash_images(folder, part, shape, checksum, lambda row: images[np.array([row])].tobytes())
    write_description(folder, part, shape, more, fingerprint)


def write_picture_folder(
    pictures: PictureFolder,
    out: str | Path,
    *,
    origin: int = 0,
    keep_files: bool = False,
    strict: bool = False,
    allow_empty_class: bool = False,
    force: bool = False,
    progress: bool = False,
) -> Path:
    """Write a pool of a folder of pictures: packed to one array, or pointing at the files."""
    out = Path(out)
    chunks = () if keep_files else _pack_pictures(pictures, strict=strict)
    part = PoolPart(chunks, pictures.class_names, len(pictures.names), origin, allow_empty_class)
    with new_folder(out, force=force) as folder:
        with progress_bar(f"import {out.name}", part.count, unit="pictures", enabled=progress) as advance:
            if keep_files:
                _write_as_files(folder, pictures, part, strict=strict, advance=advance)
            else:
                write_pool(folder, part, advance=advance)
        if pictures.broken:
            (folder / "broken.txt").write_text("\n".join(pictures.broken) + "\n", encoding="utf-8", errors="replace")
    return out
