import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "minimal.py"


def test_the_example_is_short_and_runs_to_its_last_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 100
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--samples-seen", "5000"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("   1147 of 1433 kept; ") for line in lines)
    for name, line in zip(("TRADES", "PUMA"), lines[-2:], strict=True):
        counts = re.fullmatch(rf"{name} +(\d+) of 364 right, (\d+) under attack", line)
        assert counts, line
        clean, robust = map(int, counts.groups())
        assert 364 >= clean > 0.6 * 364  # 10 % would be chance
        assert clean >= robust > 0.2 * 364
