"""Images kept as picture files and decoded when they are read, by a few threads (decoding releases the lock)."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from puma.errors import PumaError

# what Pillow raises for a file that is cut short, mislabelled or hostile
BROKEN = (OSError, UnidentifiedImageError, SyntaxError, ValueError, Image.DecompressionBombError)

Item = TypeVar("Item")
Result = TypeVar("Result")


class PictureFiles:
    """Rows of images behind a list of file names below one folder."""

    def __init__(self, root: Path, names_file: Path, ends: NDArray[np.int64], size: int, channels: int) -> None:
        self.root, self.ends, self.size, self.channels = root, ends, size, channels
        try:
            self.names: NDArray[np.uint8] = np.memmap(names_file, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise PumaError(f"{names_file} is missing or empty; import the pool again.") from error
        if len(ends) and int(ends[-1]) != len(self.names):
            raise PumaError(f"{names_file} is cut short; import the pool again.")

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
        decoded = in_threads(self._decode, (int(row) for row in rows))
        for index, image in enumerate(decoded):
            images[index] = image
        return images

    def image_bytes(self, row: int) -> bytes:
        """Decoded pixels of one row."""
        return self._decode(row).tobytes()

    def _decode(self, row: int) -> NDArray[np.uint8]:
        path = self.path(row)
        try:
            return decode(path, self.size, self.channels)
        except BROKEN as error:
            raise PumaError(f"picture {path} cannot be read ({error}); mend it or import the pool again.") from error


def decode(path: Path, size: int, channels: int) -> NDArray[np.uint8]:
    """Read one picture, scale its shorter side to ``size``, cut the middle square: (size, size, channels).

    Of 16 bits a pixel the upper 8 are taken. Notes on how the camera was held are passed over.
    """
    mode = "L" if channels == 1 else "RGB"
    with Image.open(path) as picture:
        if picture.mode in ("I", "F"):
            raise ValueError("32 bits a pixel, of unknown range; save it with 8 or 16")
        picture.draft(mode, (size, size))  # JPEG: decode at a fraction of the resolution when that is enough
        if picture.mode.startswith("I;16"):
            eight_bits = (np.asarray(picture) >> 8).astype(np.uint8)
            converted = Image.fromarray(eight_bits).convert(mode)
        else:
            converted = picture.convert(mode)
    width, height = converted.size
    scale = size / min(width, height)
    resized = converted.resize(
        (max(size, round(width * scale)), max(size, round(height * scale))), Image.Resampling.BOX
    )
    left, top = (resized.width - size) // 2, (resized.height - size) // 2
    pixels = np.asarray(resized.crop((left, top, left + size, top + size)), dtype=np.uint8)
    return pixels.reshape(size, size, channels)


def in_threads(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield ``work(item)`` in order, with a bounded number of items under way."""
    threads = max(2, min(16, os.cpu_count() or 2))
    source = iter(items)
    with ThreadPoolExecutor(threads) as pool:
        waiting = [pool.submit(work, item) for item in islice(source, 4 * threads)]
        while waiting:
            yield waiting.pop(0).result()
            waiting.extend(pool.submit(work, item) for item in islice(source, 1))
