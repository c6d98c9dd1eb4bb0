import threading
from pathlib import Path

import pytest

from puma.errors import PumaError
from puma.experiments.results import COLUMNS, Line, Provenance, read_results, stored_lines, write_results

SMALL = Provenance("tab-x", "small", "digits", "", "cpu")


def test_mean_and_spread() -> None:
    line = Line("a", "clean_accuracy", {0: 0.5, 1: 0.7, 2: 0.9})
    assert line.mean == pytest.approx(0.7)
    assert line.spread == pytest.approx(0.2)
    assert Line("a", "clean_accuracy", {3: 0.5}).spread is None


def test_lines_of_one_origin_are_replaced_and_others_kept(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tab-x.csv"
    write_results(path, SMALL, [Line("a", "q", {0: 0.25}, paper=0.5), Line("b, c", "q", {0: 1.0})])
    write_results(path, Provenance("tab-x", "paper", "digits", "", "cuda"), [Line("a", "q", {0: 0.75})])
    write_results(path, SMALL, [Line("a", "q", {0: 0.25, 1: 0.75}, at=0.2, paper=0.5, commit="abc")])
    lines = read_results(path)
    assert [(line["preset"], line["row"], line["mean"], line["device"]) for line in lines] == [
        ("paper", "a", "0.75", "cuda"),
        ("small", "a", "0.5", "cpu"),
    ]
    assert (lines[1]["at"], lines[1]["by_seed"], lines[1]["seeds"]) == ("0.2", "0:0.25 1:0.75", "2")
    assert float(lines[1]["spread"]) == pytest.approx(0.353553)
    assert [file.name for file in path.parent.glob(".*")] == [".tab-x.csv.lock"]
    assert stored_lines(path, SMALL) == [Line("a", "q", {0: 0.25, 1: 0.75}, 0.2, 0.5, commit="abc")]
    write_results(path, SMALL, [Line("b", "q", {0: 1.0})], keep=lambda line: line.row == "a")
    assert [line.row for line in stored_lines(path, SMALL)] == ["a", "b"]


def test_seeds_that_a_run_leaves_out_stay(tmp_path: Path) -> None:
    path = tmp_path / "tab-x.csv"
    write_results(path, SMALL, [Line("a", "q", {0: 0.25, 1: 0.75}, commit="one")])
    write_results(path, SMALL, [Line("a", "q", {0: 0.5}, commit="two")])
    assert stored_lines(path, SMALL) == [Line("a", "q", {0: 0.5, 1: 0.75}, commit="one two")]
    write_results(path, SMALL, [Line("a", "q", {0: 0.25, 1: 0.25}, commit="two")])
    assert stored_lines(path, SMALL) == [Line("a", "q", {0: 0.25, 1: 0.25}, commit="two")]


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tab-x.csv"

    def write(preset: str) -> None:
        for value in range(30):
            write_results(path, Provenance("tab-x", preset, "digits", "", "cpu"), [Line("a", "q", {0: float(value)})])

    threads = [threading.Thread(target=write, args=(preset,)) for preset in ("small", "paper")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted((line["preset"], line["mean"]) for line in read_results(path)) == [("paper", "29"), ("small", "29")]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "row,mean\na,1\n",
        ",".join(COLUMNS) + "\npuma-results-0" + "," * (len(COLUMNS) - 1) + "\n",
        ",".join(COLUMNS) + "\npuma-results-1,short\n",
        ",".join(COLUMNS) + "\npuma-results-1" + "," * len(COLUMNS) + "\n",
        b"\xff\xfe\x00",
    ],
)
def test_a_file_of_another_version_is_refused_and_left_alone(content: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "tab-x.csv"
    whole = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(whole)
    with pytest.raises(PumaError, match="not a results file"):
        write_results(path, SMALL, [Line("a", "q", {0: 1.0})])
    assert path.read_bytes() == whole
