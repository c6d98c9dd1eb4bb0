"""One picture to pixels: sizes are looked at before anything is decoded, JPEGs are decoded no larger than needed."""

import io
import os
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError, tell_missing, unknown_name
from puma.files import open_regular

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
LARGEST_PICTURE = 1 << 28  # bytes of a file; a camera's largest, not compressed, is within
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # named, so that no other program is ever started
_MOST_PIXELS = 1 << 26  # 200 MB in colour; a camera's largest are within
_LONGEST = 32  # longer sides than this many times the shorter are cut first
_HEAD = 4096  # bytes that hold the size of most pictures

Resize = Literal["cover", "squash"]
ReadAt = Callable[[int, int], bytes]


@dataclass(frozen=True)
class DecodePolicy:
    """How the pictures of a pool become (size, size, channels).

    ``cover`` takes the middle square, ``squash`` the whole picture, whatever its proportions.
    """

    size: int
    resize: Resize = "cover"
    channels: int = 3

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 4096 or self.channels not in (1, 3):
            raise PumaError(
                f"--size must lie in 1..4096 and --channels be 1 or 3, got {self.size} and {self.channels}."
            )
        if self.resize not in ("cover", "squash"):
            raise unknown_name("--resize", str(self.resize), ["cover", "squash"])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""
        return (self.size, self.size, self.channels)


def is_picture(name: str) -> bool:
    """Whether a file of this name is taken for a picture."""
    return os.path.splitext(name)[1].lower() in SUFFIXES  # noqa: PTH122  (asked a million times)


def decode_bytes(content: bytes, policy: DecodePolicy) -> NDArray[np.uint8]:
    """Decode one picture by a pool's policy; one that is cut short, mislabelled or hostile raises a ValueError."""
    picture = _load_picture(io.BytesIO(content), policy.size, policy.channels)
    return fit_picture(picture, policy)


def fit_picture(picture: "Image.Image", policy: DecodePolicy) -> NDArray[np.uint8]:
    """Scale a picture that is grey or RGB already; every pixel of the part that is taken counts the same."""
    from PIL import Image

    width, height = picture.size
    box = (0, 0, width, height)
    if policy.resize == "cover":
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        box = (left, top, left + side, top + side)
    if (box[2] - box[0], box[3] - box[1]) == (policy.size, policy.size):
        fitted = picture.crop(box)
    else:
        fitted = picture.resize((policy.size, policy.size), Image.Resampling.BOX, box=box)
    return np.asarray(fitted, dtype=np.uint8).reshape(policy.shape)


def fit_pixels(pixels: NDArray[np.uint8], policy: DecodePolicy) -> NDArray[np.uint8]:
    """Scale pixels (height, width, channels) as pictures are."""
    with tell_missing("data"):
        from PIL import Image

    return fit_picture(Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels), policy)


def decode_picture(path: Path, size: int, channels: int) -> NDArray[np.uint8]:
    """Read one picture, scale its shorter side to ``size``, cut the middle square: (size, size, channels).

    Of 16 bits a pixel the upper 8 are taken. Notes on how the camera was held are passed over. A file that is cut
    short, mislabelled or hostile raises a ValueError.
    """
    with open_regular(path, "a picture") as file:
        converted = _load_picture(file, size, channels)
    from PIL import Image

    reach = _LONGEST * min(converted.size)
    if max(converted.size) > reach:  # the middle of a thin strip: the whole of it, scaled up, could fill the memory
        left, top = (max(0, side - reach) // 2 for side in converted.size)
        converted = converted.crop((left, top, left + min(converted.width, reach), top + min(converted.height, reach)))
    width, height = converted.size
    scale = size / min(width, height)
    resized = converted.resize(
        (max(size, round(width * scale)), max(size, round(height * scale))), Image.Resampling.BOX
    )
    left, top = (resized.width - size) // 2, (resized.height - size) // 2
    pixels = np.asarray(resized.crop((left, top, left + size, top + size)), dtype=np.uint8)
    return pixels.reshape(size, size, channels)


def _load_picture(file: IO[bytes], size: int, channels: int) -> "Image.Image":
    """Decode to grey or RGB, JPEGs at the smallest fraction that is not below ``size``."""
    with tell_missing("data"):
        from PIL import Image, UnidentifiedImageError

    mode = "L" if channels == 1 else "RGB"
    try:
        with Image.open(file, formats=_FORMATS) as picture:
            if picture.mode in ("I", "F"):
                raise ValueError("32 bits a pixel, of unknown range; save it with 8 or 16")
            picture.draft(mode, (size, size))  # JPEG: decode at a fraction of the resolution when that is enough
            if picture.width * picture.height > _MOST_PIXELS:
                raise ValueError(f"{picture.width} x {picture.height} px is too large; scale it down")
            if picture.mode.startswith("I;16"):
                eight_bits = (np.asarray(picture) >> 8).astype(np.uint8)
                return Image.fromarray(eight_bits).convert(mode)
            return picture.convert(mode)
    except UnidentifiedImageError as error:  # its own words name an object in memory
        raise ValueError("not a picture of a known format") from error
    except (OSError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError) as error:
        raise ValueError(str(error)) from error
    except Image.DecompressionBombWarning as error:  # where warnings are errors
        raise ValueError(str(error)) from error


def check_picture(read: ReadAt, offset: int, length: int, policy: DecodePolicy) -> str | None:
    """Tell what is wrong with the picture at a place of a file, None if nothing seems to be.

    A JPEG or PNG whose header tells a sane size and which ends with its end mark is taken to be whole: a glance of some
    microseconds. All others are decoded.
    """
    if not 0 < length <= LARGEST_PICTURE:
        return f"{length:,} bytes"
    head = read(offset, min(length, _HEAD))
    size = _find_size(head, lambda start, count: read(offset + start, max(0, min(count, length - start))))
    if size is not None and 0 not in size and size[0] * size[1] <= _MOST_PIXELS:
        end = read(offset + max(0, length - 12), min(length, 12))
        if (head[0] == 0xFF and end.endswith(b"\xff\xd9")) or (head[0] != 0xFF and end[4:8] == b"IEND"):
            return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            decode_bytes(read(offset, length), policy)
        except ValueError as error:
            return str(error)
    return None


def _find_size(head: bytes, read: ReadAt) -> tuple[int, int] | None:
    """Width and height as the header of a JPEG or PNG tells them; None for anything else."""
    if head.startswith(b"\x89PNG\r\n\x1a\n") and len(head) >= 33:
        width, height = struct.unpack(">2I", head[16:24])
        return int(width), int(height)
    if not head.startswith(b"\xff\xd8\xff"):
        return None
    place = 2
    for _ in range(64):  # segments before the frame; a handful is usual
        segment = head[place : place + 9] if place + 9 <= len(head) else read(place, 9)
        if len(segment) < 9 or segment[0] != 0xFF:
            return None
        if segment[1] in _FRAMES:
            height, width = struct.unpack(">2H", segment[5:9])
            return int(width), int(height)
        place += 2 + int.from_bytes(segment[2:4], "big")
    return None


_FRAMES = {mark for mark in range(0xC0, 0xD0) if mark not in (0xC4, 0xC8, 0xCC)}  # a JPEG's start-of-frame marks
