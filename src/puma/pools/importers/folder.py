"""A folder with one sub-folder of pictures per class: packed to one array, or kept as files."""

import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError
from puma.pools.pictures import BROKEN, PictureFiles, decode, in_threads
from puma.pools.writer import Chunk, NpyAppender, PoolPart, write_description

_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
_ROWS = 1024


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
    if not root.is_dir():
        raise PumaError(f"no such folder: {root}.")
    if size < 1 or channels not in (1, 3):
        raise PumaError(f"--size must be positive and --channels 1 or 3, got {size} and {channels}.")
    class_names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    if not class_names:
        raise PumaError(f"{root} has no sub-folders; expected one folder of pictures per class.")
    names, labels = [], []
    for label, class_name in enumerate(class_names):
        files = sorted(
            os.path.relpath(Path(folder, file), root)
            for folder, _, files in os.walk(root / class_name)
            for file in files
            if Path(file).suffix.lower() in _SUFFIXES and Path(folder, file).is_file()
        )
        names += files
        labels += [label] * len(files)
    if not names:
        raise PumaError(f"{root} holds no pictures ({', '.join(sorted(_SUFFIXES))}).")
    return PictureFolder(root, names, labels, class_names, size, channels)


def whole_pictures(pictures: PictureFolder, *, strict: bool) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Decode every picture and yield its row; broken ones are noted and left out, or raise if ``strict``."""

    def read(row: int) -> NDArray[np.uint8] | str:
        try:
            return decode(pictures.root / pictures.names[row], pictures.size, pictures.channels)
        except BROKEN as error:
            return f"{pictures.names[row]} ({error})"

    for row, result in enumerate(in_threads(read, range(len(pictures.names)))):
        if not isinstance(result, str):
            yield row, result
        elif strict:
            raise PumaError(f"broken picture {result}; remove it, or leave out --strict to skip such files.")
        else:
            pictures.broken.append(result)
    if len(pictures.broken) == len(pictures.names):
        raise PumaError(f"every picture in {pictures.root} is broken; first: {pictures.broken[0]}.")


def packed_chunks(pictures: PictureFolder, *, strict: bool) -> Iterator[Chunk]:
    """Yield the decoded pictures in chunks, to be written as one array."""
    decoded = whole_pictures(pictures, strict=strict)
    while chunk := list(islice(decoded, _ROWS)):
        yield np.stack([image for _, image in chunk]), np.array([pictures.labels[row] for row, _ in chunk])


def write_as_files(
    folder: Path, pictures: PictureFolder, part: PoolPart, *, strict: bool, advance: Callable[[int], None]
) -> None:
    """Write a pool that points at the pictures; each is decoded once now, so that broken ones are left out."""
    end = checksum = 0
    with (
        (folder / "files.txt").open("wb") as names,
        NpyAppender(folder / "files_end.npy", np.int64) as ends,
        NpyAppender(folder / "labels.npy", np.int32) as labels,
    ):
        for row, image in whole_pictures(pictures, strict=strict):
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
    write_description(folder, part, images.image_bytes, shape, more)
