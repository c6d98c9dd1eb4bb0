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


@contextmanager
def progress_bar(title: str, total: int, *, unit: str = "samples", enabled: bool = True) -> Iterator[Advance]:
    """Yield ``advance(count, note="")``; draws on standard error, so standard output stays clean."""
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
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=terminal) as bar:
        task = bar.add_task(title, total=total, speed="", note="")
        begun, done = time.monotonic(), 0

        def advance(count: int, note: str = "") -> None:
            nonlocal done
            done += count
            speed = done / max(time.monotonic() - begun, 1e-9)
            bar.update(task, advance=count, speed=f"{speed:,.0f} {unit}/s", note=note)

        yield advance


def _line_printer(title: str, total: int, unit: str) -> Advance:
    begun = last = time.monotonic()
    done = 0

    def advance(count: int, note: str = "") -> None:
        nonlocal done, last
        done += count
        now = time.monotonic()
        if now - last < _SECONDS_BETWEEN_LINES and done < total:
            return
        last = now
        speed = done / max(now - begun, 1e-9)
        left = (total - done) / max(speed, 1e-9)
        line = f"{title}: {done:,}/{total:,} {unit}, {speed:,.0f}/s, {left:.0f} s left"
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
    """Write a time with its unit."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:,.1f} hours"
