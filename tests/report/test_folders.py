import json
import shutil
from pathlib import Path

import pytest

from conftest import MakePool, Run
from puma.errors import PumaError
from puma.report.folders import read_study
from report.results import margin_of, write_evaluation, write_experiment, write_margins, write_plan, write_run


def test_a_folder_of_runs_becomes_rows(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool("pool")
    work = tmp_path / "work"
    (work / "deep").mkdir(parents=True)
    margins, plan = write_margins(work / "margins.parquet", pool), write_plan(work / "plan.parquet", pool)
    for seed in (0, 1):
        write_run(work / f"puma-seed{seed}", [tmp_path / "pool"], plan=plan, seed=seed)
    baseline = write_run(work / "deep" / "trades", [tmp_path / "pool"])
    tested = write_evaluation(baseline / "evaluation-test", 80, 50)
    write_run(work / ".hidden", [tmp_path / "pool"], seed=7)
    study = read_study([work])
    assert [(row.name, row.baseline, [seed.seed for seed in row.seeds]) for row in study.rows] == [
        ("trades", True, [0]),
        ("puma", False, [0, 1]),
    ]
    assert study.rows[0].seeds[0].evaluation == tested
    assert study.rows[0].seeds[0].margins is None
    assert {(seed.plan, seed.margins) for seed in study.rows[1].seeds} == {(plan, margins)}
    (one,) = read_study([work / "puma-seed1"]).rows
    assert (one.name, one.seeds[0].margins, one.eps) == ("puma-seed1", margins, 0.1)


def test_other_programs_and_links_and_broken_pools_are_no_obstacle(make_pool: MakePool, tmp_path: Path) -> None:
    write_margins(tmp_path / "margins.parquet", make_pool("pool"))
    make_pool("broken", seed=1)
    (tmp_path / "broken" / "images.npy").unlink()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text('{"architectures": ["other"]}')
    (tmp_path / "theirs" / "loop").symlink_to(tmp_path)
    study = read_study([tmp_path])
    assert [row.name for row in study.rows] == ["margins"]
    assert study.rows[0].seeds[0].pools == (tmp_path / "pool",)
    assert study.notes[0].startswith("A pool cannot be opened")
    with pytest.raises(PumaError, match=r"config.json is damaged \('format'\)"):
        read_study([tmp_path / "theirs"])


def test_plans_and_margins_alone(make_pool: MakePool, tmp_path: Path) -> None:
    pool, other = make_pool("pool"), make_pool("other", seed=1)
    for name in ("a", "b"):
        write_margins(tmp_path / f"margins-{name}.parquet", pool)
        write_plan(tmp_path / f"plan-{name}.parquet", pool)
    write_margins(tmp_path / "margins-other.parquet", other, margin_of(50, seed=1))
    rows = {row.name: row.seeds[0] for row in read_study([tmp_path]).rows}
    assert {name: seed.margins and seed.margins.name for name, seed in rows.items()} == {
        "plan-a": "margins-a.parquet",
        "plan-b": "margins-b.parquet",
        "margins-other": "margins-other.parquet",
    }
    assert rows["margins-other"].pools == (tmp_path / "other",)
    assert rows["plan-a"].pools == (tmp_path / "pool",)


def test_runs_that_were_moved_find_their_files(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool("here/pool")
    plan = write_plan(tmp_path / "here" / "plan.parquet", pool)
    write_margins(tmp_path / "here" / "margins.parquet", pool)
    write_run(tmp_path / "here" / "puma", [tmp_path / "here" / "pool"], plan=plan)
    shutil.move(tmp_path / "here", tmp_path / "there")
    (row,) = read_study([tmp_path / "there"]).rows
    there = tmp_path / "there"
    assert (row.seeds[0].plan, row.seeds[0].pools) == (there / "plan.parquet", (there / "pool",))
    (there / "plan.parquet").unlink()
    study = read_study([there])
    assert study.rows[0].seeds[0].plan is None
    assert "The plan of run puma has moved away" in study.notes[0]


def test_an_experiment_is_read_as_it_is_written(make_pool: MakePool, tmp_path: Path) -> None:
    make_pool("pool")
    path = write_experiment(tmp_path / "exp", tmp_path / "pool")
    study = read_study([path])
    assert study == read_study([path.parent])
    assert study == read_study([tmp_path])
    assert (study.title, study.notes) == ("A test", ("A note.",))
    assert ("commit", "0123abc") in study.facts
    first, second = study.rows
    assert (first.name, first.baseline, first.paper) == ("TRADES", True, {"clean": 0.8500000000000001, "robust": 0.55})
    assert second.seeds[1].run == path.parent / "PUMA-1"
    assert second.seeds[1].pools == (tmp_path / "pool",)
    (path.parent / "PUMA-1" / "evaluation-test" / "metrics.json").unlink()
    (path.parent / "PUMA-1" / "evaluation-test").rmdir()
    study = read_study([path])
    assert study.rows[1].seeds[1].evaluation is None
    assert study.notes[1].startswith("Missing: evaluation of PUMA, seed 1")


def test_two_studies_keep_their_baselines(make_pool: MakePool, tmp_path: Path) -> None:
    make_pool("pool")
    paths = [write_experiment(tmp_path / name, tmp_path / "pool", title=name) for name in ("one", "two")]
    rows = read_study(paths).rows
    assert [row.name for row in rows] == ["one: TRADES", "one: PUMA", "two: TRADES", "two: PUMA"]
    assert [row.study for row in rows] == ["one", "one", "two", "two"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"format": "puma-experiment-0"}, "has format 'puma-experiment-0', this version reads 'puma-experiment-1'"),
        ({"rows": 3}, r"is damaged \(TypeError"),
        ({"rows": [{"row": "a"}]}, r"is damaged \(KeyError: 'seeds'\)"),
        ({"rows": []}, "none of the 0 rows"),
        ({"rows": [{"row": "a", "seeds": [{"seed": 0, "run": "gone"}]}]}, r"none of the 1 rows .* run of a, seed 0"),
        ({"rows": [{"row": "a", "seeds": [], "paper": {"clean_accuracy": 87}}]}, "must be fractions in"),
        ({"eps": -1}, "eps must be positive"),
        ({"eps": "x"}, "is damaged"),
    ],
)
def test_a_bad_experiment(make_pool: MakePool, tmp_path: Path, changes: dict[str, object], sentence: str) -> None:
    make_pool("pool")
    path = write_experiment(tmp_path / "exp", tmp_path / "pool", **changes)
    with pytest.raises(PumaError, match=sentence):
        read_study([path])


def test_bad_input_is_one_sentence(make_pool: MakePool, tmp_path: Path, puma: Run) -> None:
    make_pool("pool")
    (tmp_path / "empty").mkdir()
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "margins.parquet").write_bytes(b"PAR1 cut short")
    text = tmp_path / "text" / "experiment.json"
    text.parent.mkdir()
    text.write_text('{"format": ')
    listed = tmp_path / "listed" / "experiment.json"
    listed.parent.mkdir()
    listed.write_text("[1]")
    broken = write_experiment(tmp_path / "exp", tmp_path / "pool")
    metrics = broken.parent / "PUMA-0" / "evaluation-test" / "metrics.json"
    metrics.write_text(json.dumps({"results": {"clean": {"right": 5, "total": 3}}, "eps": 1, "norm": "linf"}))
    out = ["--out", str(tmp_path / "r.html")]
    for words, sentence in {
        (): "give at least one run",
        ("nowhere",): "no such file or folder: nowhere",
        (str(tmp_path / "empty"),): "nothing to report on in",
        (str(damaged),): "is damaged or not a parquet file",
        (str(text),): "is missing or damaged",
        (str(listed),): "should hold a JSON object, it holds a list",
        (str(damaged / "margins.parquet"),): "is a file; give the folder it lies in",
        (str(broken),): "is damaged or not of puma evaluate",
    }.items():
        code, _, err = puma("report", *words, *out)
        assert (code, sentence in err, len(err.strip().splitlines())) == (2, True, 1), err
    assert not (tmp_path / "r.html").exists()
