import re
import runpy
from pathlib import Path

import pytest

from puma.cli import main
from puma.experiments.results import ResultLine, ResultOrigin, summarise_results

ROOT = Path(__file__).parents[1]


def test_the_example_runs_and_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    assert example.count("\n") <= 10
    assert example.count("import") == 1
    monkeypatch.chdir(tmp_path)
    main(["data", "import", "digits", "--out", "digits"])
    Path("example.py").write_text(example.replace('recipe="small-digits"', 'recipe="small-digits", samples_seen=1024'))
    capsys.readouterr()
    runpy.run_path("example.py")
    margins, plan, *accuracy = capsys.readouterr().out.splitlines()
    assert margins.startswith("Margins(1,433 samples, deepfool, linf: ")
    assert plan.startswith("Plan(1,433 samples, 1,147 kept")
    assert all(line.startswith("{'clean': 0.") for line in accuracy)


def test_the_map_names_what_exists() -> None:
    for place in re.findall(r"^\| `([^`]+)`", (ROOT / "README.md").read_text(), flags=re.M):
        assert (ROOT / place).exists()


@pytest.mark.parametrize(
    "page", ["README.md", "docs/reproduce.md", "docs/training.md", "docs/verdicts.md", "docs/wrong-labels.md"]
)
def test_the_numbers_are_those_of_the_results(page: str) -> None:
    """Say which command brings them up to date, if not: python docs/measured.py."""
    numbers = runpy.run_path(str(ROOT / "docs" / "measured.py"))
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "<!-- numbers: " in text
    assert numbers["update_page"](page, text) == text


def test_margins_of_a_shorter_run_are_not_shown_as_the_preset() -> None:
    numbers = runpy.run_path(str(ROOT / "docs" / "measured.py"))
    names = "rank_correlation_with itself", "plan_agreement_with itself"
    lines = [
        ResultLine(ResultOrigin("tab-margin-correlation", "small", "digits", changed), "same", name, 0, value)
        for changed, value in (("", 0.9), ("samples_seen 20000", 0.5))
        for name in names
    ]
    numbers["format_pairs"].__globals__["list_summaries"] = lambda _: summarise_results(lines)
    rows = numbers["format_pairs"]("tab-margin-correlation").splitlines()[2:]
    assert rows == [
        "| same | itself | 0.900 | 90.00 | 1 | digits |",
        "| same | itself | 0.500 | 50.00 | 1 | digits, 20,000 samples seen |",
    ]
