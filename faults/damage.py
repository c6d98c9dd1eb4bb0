"""Ways to damage a file, drawn from a seed."""

import os
import random
import re
from collections.abc import Callable
from pathlib import Path

_DEEP = 200_000
KINDS = ("nothing", "empty", "folder", "pipe", "loop")
_TOKEN = re.compile(rb'-?\d+(?:\.\d+)?(?:e-?\d+)?|"(?:[^"\\]|\\.)*"|true|false|null')
_ODD_TOKENS = (
    b"-1", b"0", b"1e999", b"-1e999", b"NaN", b"1e308", b"1e-320", b"9" * 30, b"9" * 5000, b"null", b"[]", b"{}", b'""',
    b"true", b'"../../../etc/passwd"', b'"\\u0000"', b'"\\ud800"', b'"\xff\xfe"', b"[" * _DEEP, b'{"a":' * _DEEP,
    b"18446744073709551616", b"2147483648", b"4294967295", b"0x10", b"1_000",
)  # fmt: skip
_ODD_NUMBERS = (
    0,
    1,
    0x7F,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    0x7FFFFFFFFFFFFFFF,
    0xFFFFFFFFFFFFFFFF,
)


def flip_bits(content: bytearray, draw: random.Random) -> None:
    """Flip one to eight bits."""
    for _ in range(draw.choice((1, 1, 1, 2, 8))):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)


def set_bytes(content: bytearray, draw: random.Random) -> None:
    """Overwrite some bytes by random ones."""
    start = draw.randrange(len(content))
    for at in range(start, min(len(content), start + draw.choice((1, 4, 16, 64)))):
        content[at] = draw.randrange(256)


def cut_short(content: bytearray, draw: random.Random) -> None:
    """Leave the end out."""
    del content[draw.randrange(len(content)) :]


def append_bytes(content: bytearray, draw: random.Random) -> None:
    """Add something behind the end."""
    content.extend(draw.randbytes(draw.choice((1, 8, 100, 5000))))


def clear_range(content: bytearray, draw: random.Random) -> None:
    """Overwrite a range by zeros, as a lost block of a disk."""
    start = draw.randrange(len(content))
    stop = min(len(content), start + draw.choice((1, 8, 64, 512, 4096)))
    content[start:stop] = bytes(stop - start)


def drop_range(content: bytearray, draw: random.Random) -> None:
    """Leave a range out."""
    start = draw.randrange(len(content))
    del content[start : start + draw.choice((1, 2, 8, 64, 512))]


def repeat_range(content: bytearray, draw: random.Random) -> None:
    """Put a range in twice."""
    start = draw.randrange(len(content))
    stop = start + draw.choice((1, 8, 64, 512))
    content[start:start] = content[start:stop]


def swap_ranges(content: bytearray, draw: random.Random) -> None:
    """Exchange two ranges of the same length."""
    length = min(draw.choice((1, 4, 16, 64)), len(content))
    one, two = (draw.randrange(len(content) - length + 1) for _ in range(2))
    content[one : one + length], content[two : two + length] = content[two : two + length], content[one : one + length]


def set_number(content: bytearray, draw: random.Random) -> None:
    """Overwrite two to eight bytes by an extreme number, in either order of bytes."""
    size = draw.choice((2, 4, 8))
    number = draw.choice(_ODD_NUMBERS) & ((1 << 8 * size) - 1)
    start = draw.randrange(max(1, len(content) - size + 1))
    content[start : start + size] = number.to_bytes(size, draw.choice(("little", "big")))


def replace_token(content: bytearray, draw: random.Random) -> None:
    """Replace a number, a string or a word of a text by an odd one."""
    found = list(_TOKEN.finditer(bytes(content[: 1 << 16])))
    if found:
        token = draw.choice(found)
        content[token.start() : token.end()] = draw.choice(_ODD_TOKENS)
    else:
        flip_bits(content, draw)


BYTES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    flip_bits, flip_bits, flip_bits, flip_bits, set_bytes, cut_short, cut_short, append_bytes, clear_range, drop_range,
    repeat_range, swap_ranges, set_number, set_number, replace_token,
)  # fmt: skip
TEXT = (*BYTES, replace_token, replace_token, replace_token, replace_token, replace_token)


def damage_file(path: Path, draw: random.Random, *, text: bool) -> str:
    """Damage a file; return in which way."""
    if draw.random() < 0.03:
        return replace_file(path, draw.choice(KINDS))
    content = bytearray(path.read_bytes())
    change = draw.choice(TEXT if text or path.suffix in (".json", ".jsonl", ".csv") else BYTES)
    if content:
        change(content, draw)
    path.write_bytes(content)
    return change.__name__


def replace_file(path: Path, kind: str) -> str:
    """Put something in the place of a file that is none."""
    path.unlink()
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path.name)
    return f"replaced by {kind}"
