"""Progress of long work: a bar with speed and time left on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

Advance = Callable[..., None]

_SECONDS_BETWEEN_LINES = 10.0  # where there is no terminal: a log stays short
_SHORTEST_BAR = 5  # signs
_WIDE = 100  # signs; in narrower terminals the bar takes what the words leave


@contextmanager
def progress_bar(title: str, total: int, *, unit: str = "samples", enabled: bool = True) -> Iterator[Advance]:
    """Yield ``advance(count, note="", told="")``; draws on standard error, so standard output stays clean.

    ``note`` stands behind the bar as far as there is room, ``told`` is a line of its own that stays above it.
    """
    if not enabled:
        yield lambda *_, **__: None
    elif (terminal := _find_terminal()) is not None:
        with _terminal_bar(terminal, title, total, unit) as advance:
            yield advance
    else:
        yield _line_printer(title, total, unit)


def _find_terminal() -> "Console | None":
    """Return the terminal behind standard error; None without one, or without rich to draw on it."""
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return None
    console = Console(stderr=True)
    return console if console.is_terminal else None


@contextmanager
def _terminal_bar(terminal: "Console", title: str, total: int, unit: str) -> Iterator[Advance]:
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    columns = (
        TextColumn("{task.description}", table_column=Column(no_wrap=True)),
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=_SHORTEST_BAR, max_width=40)),
        TextColumn("{task.fields[words]}", markup=False, table_column=Column(no_wrap=True)),
    )
    with Progress(*columns, console=terminal, expand=terminal.width < _WIDE) as bar:
        task = bar.add_task(title, total=total, words="")
        begun, done = time.monotonic(), 0

        def advance(count: int, note: str = "", told: str = "") -> None:
            nonlocal done
            done += count
            if told:
                terminal.print(told, markup=False, highlight=False, soft_wrap=True)
            if count:
                room = terminal.width - len(title) - _SHORTEST_BAR - 2  # a blank between two columns
                words = choose_words(done, total, time.monotonic() - begun, unit, note, room)
                bar.update(task, advance=count, words=words)

        yield advance


def choose_words(done: int, total: int, seconds: float, unit: str, note: str, room: int) -> str:
    """Return percent, time left, speed and note as far as there is room; the time left is always whole."""
    speed = done / max(seconds, 1e-9)
    words = f"{100 * done // max(total, 1):3d}% {format_seconds(round((total - done) / max(speed, 1e-9)))} left"
    number, _, time_unit = _format_speed(speed).partition("/")
    rates = [f", {number} {unit}/{time_unit}", f", {number}/{time_unit}", ""]
    parts = note.split(", ") if note else []
    notes = ["".join(f", {part}" for part in parts[:count]) for count in range(len(parts), -1, -1)]
    texts = (f"{words}{rate}{told}" for told in notes for rate in rates)
    return next((text for text in texts if len(text) <= room), words)


def _format_speed(speed: float) -> str:
    """Write a speed in the smallest unit of time in which it is at least one: ``700/s``, ``12/min``, ``3/h``."""
    for seconds, unit in ((1, "s"), (60, "min")):
        if speed * seconds >= 1:
            return f"{speed * seconds:,.0f}/{unit}"
    return f"{speed * 3600:,.0f}/h"


def _line_printer(title: str, total: int, unit: str) -> Advance:
    begun = last = time.monotonic()
    done = 0

    def advance(count: int, note: str = "", told: str = "") -> None:
        nonlocal done, last
        done += count
        now = time.monotonic()
        if told:
            print(told, file=sys.stderr, flush=True)
        if not count or (now - last < _SECONDS_BETWEEN_LINES and done < total):
            return
        last = now
        speed = done / max(now - begun, 1e-9)
        left = format_seconds(round((total - done) / max(speed, 1e-9)))
        line = f"{title}: {done:,}/{total:,} {unit}, {_format_speed(speed)}, {left} left"
        print(f"{line}, {note}" if note else line, file=sys.stderr, flush=True)

    return advance


def format_bytes(count: float) -> str:
    """Write an amount of memory with its unit."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:,.3g} GiB"


def format_seconds(seconds: float) -> str:
    """Write a time in the two units that matter: ``31 s``, ``5 min``, ``2 h 10 min``, ``3 d 4 h``."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"  # below, a digit behind the point
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"
    hours = round(minutes / 60)
    return f"{hours // 24:,} d {hours % 24} h" if hours % 24 else f"{hours // 24:,} d"


def format_pixel_step(number: float) -> str:
    """Write a number shortly, and whole steps of a pixel as people write them: ``8/255``."""
    steps = 255 * number
    is_radius = 0 < abs(number) < 1 and abs(steps - round(steps)) < 1e-6 and 5 * number != round(5 * number)
    return f"{round(steps)}/255" if is_radius else f"{number:g}"
