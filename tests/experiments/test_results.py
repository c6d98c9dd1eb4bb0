import csv
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from puma.errors import PumaError
from puma.experiments.results import (
    COLUMNS,
    ResultLine,
    ResultOrigin,
    ResultSummary,
    format_results,
    read_results_file,
    summarise_results,
    write_results_file,
)

SMALL = ResultOrigin("tab-x", "small", "digits")
OLD_COLUMNS = (
    "format,experiment,preset,dataset,changed,row,at,quantity,mean,spread,seeds,by_seed,paper,paper_spread,commit,"
    "device,puma,torch"
)


def seeds(
    row: str, by_seed: Mapping[int, float], *, origin: ResultOrigin = SMALL, at: float | None = None, commit: str = ""
) -> list[ResultLine]:
    return [ResultLine(origin, row, "q", seed, value, at, 0.5, None, commit) for seed, value in by_seed.items()]


def test_mean_and_spread_are_computed_when_read(tmp_path: Path) -> None:
    path = tmp_path / "tab-x.csv"
    write_results_file(path, SMALL, seeds("a", {0: 0.5, 1: 0.7, 2: 0.9}) + seeds("b", {3: 0.5}))
    assert "0.7\n" not in path.read_text()
    several, single = summarise_results(read_results_file(path))
    assert several.mean == pytest.approx(0.7)
    assert several.spread == pytest.approx(0.2)
    assert (single.mean, single.spread) == (0.5, None)


def test_there_is_a_line_per_row_quantity_and_seed(tmp_path: Path) -> None:
    path = tmp_path / "tab-x.csv"
    write_results_file(path, SMALL, seeds("a, b", {1: 0.75, 0: 1 / 3}, at=0.2, commit="abc"))
    with path.open(newline="") as file:
        stored = list(csv.DictReader(file))
    assert [(line["row"], line["at"], line["seed"], line["value"]) for line in stored] == [
        ("a, b", "0.2", "0", "0.333333"),
        ("a, b", "0.2", "1", "0.75"),
    ]
    assert {(line["format"], line["paper"], line["commit"], line["device"]) for line in stored} == {
        ("puma-results-2", "0.5", "abc", "cpu")
    }


def test_lines_of_one_origin_are_replaced_and_others_kept(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tab-x.csv"
    write_results_file(path, SMALL, seeds("a", {0: 0.25}) + seeds("b, c", {0: 1.0}))
    paper = ResultOrigin("tab-x", "paper", "digits")
    write_results_file(path, paper, seeds("a", {0: 0.75}, origin=paper))
    renewed = seeds("a", {0: 0.25, 1: 0.75}, at=0.2, commit="abc")
    write_results_file(path, SMALL, renewed)
    assert read_results_file(path) == seeds("a", {0: 0.75}, origin=paper) + renewed
    assert [file.name for file in path.parent.glob(".*")] == [".tab-x.csv.lock"]
    write_results_file(path, SMALL, seeds("b", {0: 1.0}), keep=lambda place: place[0] == "a")
    assert [line.row for line in read_results_file(path) if line.origin == SMALL] == ["a", "a", "b"]


def test_seeds_that_a_run_leaves_out_stay(tmp_path: Path) -> None:
    path = tmp_path / "tab-x.csv"
    write_results_file(path, SMALL, seeds("a", {0: 0.25, 1: 0.75}, commit="one"))
    write_results_file(path, SMALL, seeds("a", {0: 0.5}, commit="two"))
    assert read_results_file(path) == seeds("a", {0: 0.5}, commit="two") + seeds("a", {1: 0.75}, commit="one")
    (both,) = summarise_results(read_results_file(path))
    assert both == ResultSummary(SMALL, "a", None, "q", {0: 0.5, 1: 0.75}, 0.5, "one two")
    write_results_file(path, SMALL, seeds("a", {0: 0.25, 1: 0.25}, commit="two"))
    assert read_results_file(path) == seeds("a", {0: 0.25, 1: 0.25}, commit="two")


def test_a_file_of_an_earlier_version_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "tab-x.csv"
    line = (
        'puma-results-1,tab-x,small,digits,eps 0.1,"a, b",0.2,q,0.5,0.353553,2,0:0.25 1:0.75,0.6,0.01,one two,cuda,'
        "0.1.0,2.13"
    )
    path.write_text(f"{OLD_COLUMNS}\n{line}\n")
    origin = ResultOrigin("tab-x", "small", "digits", "eps 0.1")
    before = [
        ResultLine(origin, "a, b", "q", seed, value, 0.2, 0.6, 0.01, "one two", "cuda", "0.1.0", "2.13")
        for seed, value in ((0, 0.25), (1, 0.75))
    ]
    assert read_results_file(path) == before
    write_results_file(path, SMALL, seeds("a", {0: 0.5}))
    assert read_results_file(path) == before + seeds("a", {0: 0.5})
    assert path.read_text().startswith(",".join(COLUMNS))


def test_the_table_on_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "tab-x.csv"
    lines = [ResultLine(SMALL, "a", "clean_accuracy", seed, 0.5 + 0.1 * seed, paper=0.6) for seed in (0, 1)]
    write_results_file(path, SMALL, [*lines, ResultLine(SMALL, "b", "robust_accuracy", 0, 0.25)])
    told = format_results("A title", SMALL, path).splitlines()
    assert told[0] == "A title (small, digits)"
    assert told[1].split() == ["accuracy", "paper", "robustness", "paper"]
    assert told[2].split() == ["a", "55.00", "+-", "7.07", "(2)", "60.00"]
    assert told[3].split() == ["b", "25.00"]


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tab-x.csv"

    def write(preset: str) -> None:
        origin = ResultOrigin("tab-x", preset, "digits")
        for value in range(30):
            write_results_file(path, origin, seeds("a", {0: float(value)}, origin=origin))

    threads = [threading.Thread(target=write, args=(preset,)) for preset in ("small", "paper")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = sorted((line.origin.preset, line.value) for line in read_results_file(path))
    assert stored == [("paper", 29), ("small", 29)]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "row,mean\na,1\n",
        ",".join(COLUMNS) + "\npuma-results-0" + "," * (len(COLUMNS) - 1) + "\n",
        ",".join(COLUMNS) + "\npuma-results-2" + "," * (len(COLUMNS) - 1) + "\n",
        ",".join(COLUMNS) + "\npuma-results-2,short\n",
        ",".join(COLUMNS) + "\npuma-results-2" + "," * len(COLUMNS) + "\n",
        OLD_COLUMNS + "\npuma-results-2" + "," * OLD_COLUMNS.count(",") + "\n",
        b"\xff\xfe\x00",
    ],
)
def test_a_file_of_another_version_is_refused_and_left_alone(content: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "tab-x.csv"
    whole = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(whole)
    with pytest.raises(PumaError, match="not a results file"):
        write_results_file(path, SMALL, seeds("a", {0: 1.0}))
    assert path.read_bytes() == whole
