"""Progress in a terminal of 80 columns: the time left is whole, results of held-out images stay above the bar."""

import io
import re

import pytest
from rich.console import Console

from puma import progress
from puma.progress import choose_words, format_pixel_step, format_seconds, progress_bar


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0 s"),
        (3.14, "3.1 s"),
        (31.2, "31 s"),
        (119, "119 s"),
        (300, "5 min"),
        (3599, "1 h"),
        (7800, "2 h 10 min"),
        (86400, "1 d"),
        (273_600, "3 d 4 h"),
    ],
)
def test_times_are_told_in_two_units(seconds: float, told: str) -> None:
    assert format_seconds(seconds) == told


@pytest.mark.parametrize(
    ("number", "told"), [(8 / 255, "8/255"), (-1 / 255, "-1/255"), (0.2, "0.2"), (0.6, "0.6"), (1.0, "1"), (0.1, "0.1")]
)
def test_steps_of_a_pixel_are_told_as_such(number: float, told: str) -> None:
    assert format_pixel_step(number) == told


@pytest.mark.parametrize("room", [20, 40, 60, 80])
def test_words_give_way_before_the_time_left(room: int) -> None:
    note = "loss 1.177, clean 57.0%, attacked 54.3%"
    words = choose_words(1_000, 1_001_000, 7.8, "samples", note, room)
    assert words.startswith("  0% 2 h 10 min left")
    assert len(words) <= max(room, len("  0% 2 h 10 min left"))
    assert choose_words(1_000, 1_001_000, 7.8, "samples", note, 80).endswith(note)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_bar_fits_its_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = io.StringIO()
    terminal = Console(file=drawn, force_terminal=True, width=width, color_system=None)
    monkeypatch.setattr(progress, "_find_terminal", lambda: terminal)
    with progress_bar("train", 1_000_000) as advance:
        advance(128, "loss 1.177, clean 57.0%, attacked 54.3%")
        advance(0, told="held out, at 128 samples: clean 71.0%, attacked 65.5% of 200 images")
        advance(128, "loss 1.177, clean 57.0%, attacked 54.3%")
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.getvalue()).replace("\r", "\n").splitlines()
    bars = [line for line in lines if line.startswith("train")]
    assert max(len(line.rstrip()) for line in bars) <= width
    assert bars[-1].count(" left") == 1
    assert "…" not in drawn.getvalue()
    assert sum("held out, at 128 samples: clean 71.0%" in line for line in lines) == 1


def test_a_log_has_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("train", 100) as advance:
        advance(50, "loss 1")
        advance(0, told="held out: 3 of 4")
        advance(50, "loss 2")
    held, last = capsys.readouterr().err.splitlines()
    assert held == "held out: 3 of 4"
    assert re.fullmatch(r"train: 100/100 samples, [\d,]+/s, 0 s left, loss 2", last)
