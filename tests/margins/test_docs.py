"""The page "measure margins of your own model" does what it says."""

import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from puma.cli import main
from puma.margins import read_margins

PAGE = Path(__file__).parents[2] / "docs" / "measure-your-own-model.md"


def test_every_block_of_the_page_runs_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    blocks = re.findall(r"```(python|sh)\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    assert [kind for kind, _ in blocks] == ["python", "python", "sh", "python", "sh"]
    for number, (kind, text) in enumerate(blocks):
        if kind == "sh":
            for line in text.strip().splitlines():
                main(shlex.split(line)[1:])
        else:
            path = Path("my_model.py" if text.startswith("# my_model.py") else f"block{number}.py")
            path.write_text(text, encoding="utf-8")
            runpy.run_path(str(path))
    printed = capsys.readouterr().out
    assert "100% measured" in printed
    assert "below eps" in printed
    assert Path("methods.png").read_bytes()[:4] == b"\x89PNG"
    drawn = json.loads(Path("methods.json").read_text(encoding="utf-8"))
    assert set(drawn["counts"]) == {"margins", "fast"}
    measured = int(read_margins("margins.parquet").crossed.sum())
    assert sum(drawn["counts"]["margins"]) == measured
    assert len(drawn["edges"]) == len(drawn["counts"]["fast"]) + 1
