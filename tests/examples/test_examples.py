import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run_example(name: str, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *words])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_the_minimal_example_is_short_and_runs_to_its_last_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len((EXAMPLES / "minimal.py").read_text(encoding="utf-8").splitlines()) <= 100
    run_example("minimal.py", monkeypatch, "--samples-seen", "5000")
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("   1147 of 1433 kept; ") for line in lines)
    for name, line in zip(("TRADES", "PUMA"), lines[-2:], strict=True):
        counts = re.fullmatch(rf"{name} +(\d+) of 364 right, (\d+) under attack", line)
        assert counts, line
        clean, robust = map(int, counts.groups())
        assert 364 >= clean > 0.6 * 364  # 10 % would be chance
        assert clean >= robust > 0.2 * 364


def test_a_dataset_and_a_net_of_ones_own_become_a_report_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for _ in range(2):
        run_example("own_model_and_dataset.py", monkeypatch, "--out", str(tmp_path), "--samples-seen", "1500")
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert re.search(r"^TRADES  [\d.]+% right, [\d.]+% under attack\nPUMA    ", said[0], flags=re.M)
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "My own digits" in report
    assert "No evaluation was found" not in report


def test_a_plan_in_a_loop_of_ones_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = (EXAMPLES / "plan_in_your_loop.py").read_text(encoding="utf-8")
    loop = text[text.index("def train") : text.index("def main")]
    assert len(loop.strip().splitlines()) <= 20
    run_example("plan_in_your_loop.py", monkeypatch, "--epochs", "2")
    alike, fitted = capsys.readouterr().out.splitlines()
    assert "Plan(1,400 samples, 1,400 kept, strength +0.1000 to +0.1000" in alike
    assert "Plan(1,400 samples, 1,120 kept" in fitted


def test_the_notebook_runs_twice_and_its_outputs_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = runpy.run_path(str(ROOT / "docs" / "notebook.py"))
    notebook = tool["read_notebook"](EXAMPLES / "first_look.ipynb")
    monkeypatch.chdir(tmp_path)
    shortened = {"SAMPLES = 20_000": "SAMPLES = 2_000"}
    assert any(old in "".join(cell["source"]) for cell in notebook["cells"] for old in shortened)
    first = tool["run_notebook"](notebook, shortened)
    again = tool["run_notebook"](notebook, shortened)
    assert first == again
    for cell, stored in zip(first["cells"], notebook["cells"], strict=True):
        kinds = [
            [sorted(output.get("data", {"text": ""})) for output in one.get("outputs", [])] for one in (cell, stored)
        ]
        assert kinds[0] == kinds[1], "bring its outputs up to date: python docs/notebook.py examples/first_look.ipynb"
    page, pictures = tool["to_page"](notebook, "images")
    assert page.startswith("# A first look\n")
    assert len(pictures) == page.count("![") == 5
    assert all(picture[:4] == b"\x89PNG" for picture in pictures.values())
    assert Path("first-look/report.html").is_file()
