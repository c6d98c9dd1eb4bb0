"""Every experiment runs at the size of smoke, through the command line."""

import json
from pathlib import Path

import pytest
from PIL import Image

from conftest import Run
from puma.experiments import PAPER, PerceptronFigure
from puma.experiments.results import ResultLine, read_results_file, summarise_results
from puma.experiments.spec import MarginSpec
from puma.pools import Pool
from puma.report.page import write_report


@pytest.mark.parametrize("name", PAPER)
def test_smoke(name: str, shared_work: Path, tmp_path: Path, puma: Run) -> None:
    code, said, err = puma("run", name, "--preset", "smoke", "--work", str(shared_work), "--out", str(tmp_path))
    assert code == 0, err
    experiment = PAPER[name]
    lines = read_results_file(tmp_path / f"{name}.csv")
    assert f"results: {tmp_path / name}.csv" in said
    if isinstance(experiment, PerceptronFigure):
        assert len(lines) == 3 * 5 * 2  # alphas; none, and two kept shares of two strategies; seeds
        assert all(0 <= line.value <= 2 for line in lines)
        assert (tmp_path / f"{name}-smoke-gaussian.png").is_file()
        return
    for row in experiment.rows:
        mine = {line.quantity: line for line in lines if (line.row, line.at) == (row.label, row.at)}
        if isinstance(row.wants, MarginSpec):
            assert mine["crossed_share"].value > 0.9
            continue
        clean, robust = mine["clean_accuracy"].value, mine["robust_accuracy"].value
        assert 0 <= robust <= clean <= 1
        assert clean * 64 == pytest.approx(round(clean * 64), abs=1e-3)  # exact counts of 64 test images
        if row.paper is not None:
            assert mine["clean_accuracy"].paper == pytest.approx(row.paper.clean / 100)
            assert mine["robust_accuracy"].paper == pytest.approx(row.paper.robust / 100)
    if experiment.figure != "none":
        with Image.open(tmp_path / f"{name}-smoke-digits.png") as picture:
            assert picture.size[0] > 800
    folder = shared_work / "experiments" / f"{name}-smoke-digits"
    recorded = json.loads((folder / "experiment.json").read_text(encoding="utf-8"))
    assert [row["row"] for row in recorded["rows"]] == [row.name for row in experiment.rows]
    assert Pool.open(folder / recorded["test"]).num_classes == 10
    page = write_report([folder], tmp_path / "report.html").read_text(encoding="utf-8")
    assert experiment.title in page


def test_a_narrower_run_keeps_the_rest(shared_work: Path, tmp_path: Path, puma: Run) -> None:
    """Of rows, seeds and attacks that it leaves out nothing is lost."""
    command = ["run", "tab-gap", "--preset", "smoke", "--work", str(shared_work), "--out", str(tmp_path)]
    assert puma(*command, "--seeds", "2", "--attacks", "pgd20")[0] == 0

    def lines() -> set[ResultLine]:
        return set(read_results_file(tmp_path / "tab-gap.csv"))

    whole = lines()
    assert puma(*command, "--rows", "gap eps/8")[0] == 0
    assert lines() == whole
    seeds = {(line.row, line.quantity, line.at): set(line.by_seed) for line in summarise_results(whole)}
    assert seeds["no gap", "pgd20_accuracy", None] == {0, 1}
    folder = shared_work / "experiments" / "tab-gap-smoke-digits"
    record = json.loads((folder / "experiment.json").read_text(encoding="utf-8"))
    assert [len(row["seeds"]) for row in record["rows"]] == [2, 2]


def test_curves_are_recorded_over_training(shared_work: Path, tmp_path: Path, puma: Run) -> None:
    command = ["run", "fig-pd", "--rows", "PD 12 %", "--preset", "smoke", "--work", str(shared_work)]
    assert puma(*command, "--out", str(tmp_path))[0] == 0
    lines = read_results_file(tmp_path / "fig-pd.csv")
    assert {line.row for line in lines} == {"PD 12 %"}
    for quantity in ("held_out_clean_accuracy", "held_out_robust_accuracy"):
        assert [line.at for line in lines if line.quantity == quantity] == [320, 640, 960, 1280]
