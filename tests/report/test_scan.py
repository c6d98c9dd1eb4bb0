import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from conftest import MakePool, Run
from puma.errors import PumaError
from puma.files import link_to_file, write_links
from puma.report.rows import compare_rows, read_results
from puma.report.scan import read_study
from puma.tables import write_table
from report.results import margin_of, write_evaluation, write_experiment, write_margins, write_plan, write_run


def test_a_folder_of_runs_becomes_rows(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool("pool")
    work = tmp_path / "work"
    (work / "deep").mkdir(parents=True)
    margins = write_margins(work / "margins.parquet", pool)
    plan = write_plan(work / "plan.parquet", pool, margins=margins)
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
    for name, seed in (("a", 2), ("b", 3)):  # the names of the files say nothing
        measured = write_margins(tmp_path / f"of-{name}.parquet", pool, margin_of(50, seed=seed))
        write_plan(tmp_path / f"plan-{name}.parquet", pool, margins=measured)
    write_margins(tmp_path / "margins-other.parquet", other, margin_of(50, seed=1))
    rows = {row.name: row.seeds[0] for row in read_study([tmp_path]).rows}
    assert {name: seed.margins and seed.margins.name for name, seed in rows.items()} == {
        "plan-a": "of-a.parquet",
        "plan-b": "of-b.parquet",
        "margins-other": "margins-other.parquet",
    }
    assert rows["margins-other"].pools == (tmp_path / "other",)
    assert rows["plan-a"].pools == (tmp_path / "pool",)


def test_runs_that_were_moved_find_their_files(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool("here/pool")
    margins = write_margins(tmp_path / "here" / "margins.parquet", pool)
    plan = write_plan(tmp_path / "here" / "plan.parquet", pool, margins=margins)
    write_run(tmp_path / "here" / "puma", [tmp_path / "here" / "pool"], plan=plan)
    shutil.move(tmp_path / "here", tmp_path / "there")
    (row,) = read_study([tmp_path / "there"]).rows
    there = tmp_path / "there"
    seed = row.seeds[0]
    assert (seed.plan, seed.margins, seed.pools) == (
        there / "plan.parquet",
        there / "margins.parquet",
        (there / "pool",),
    )
    write_plan(there / "plan.parquet", pool, pruned=0.4)
    study = read_study([there])
    assert study.rows[0].seeds[0].plan is None
    assert f"The plan of run puma has changed since: {there / 'plan.parquet'}." in study.notes
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
    assert (first.name, first.baseline, first.paper) == ("TRADES", True, {"clean": 0.8500000000000001, "cw": 0.55})
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
    assert [row.study for row in rows] == [0, 0, 1, 1]


def test_studies_of_one_title_are_told_apart(make_pool: MakePool, tmp_path: Path) -> None:
    make_pool("pool")
    for name, preset in (("one", "smoke"), ("two", "small"), ("three", "small")):
        path = write_experiment(tmp_path / name, tmp_path / "pool", preset=preset)
        for run, right in (("TRADES-0", 10), ("TRADES-1", 11)):
            if name != "one":
                shutil.rmtree(path.parent / run / "evaluation-test")
                write_evaluation(path.parent / run / "evaluation-test", right, 5)
    study = read_study([tmp_path / name for name in ("one", "two", "three")])
    assert [row.name for row in study.rows if row.baseline] == [
        "A test (smoke): TRADES",
        "A test (two): TRADES",
        "A test (three): TRADES",
    ]
    found = compare_rows(read_results(study))
    assert {name: values["clean"].mean for name, values in found.items()} == pytest.approx(
        {"A test (smoke): PUMA": 0.1, "A test (two): PUMA": 0.8, "A test (three): PUMA": 0.8}
    )


def test_each_pool_and_radius_has_a_baseline_of_its_own(make_pool: MakePool, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for name in ("a", "b"):
        write_plan(work / f"plan-{name}.parquet", make_pool(name, seed=ord(name)))
    for name, pool, eps, clean in (
        ("trades-a", "a", 0.1, 80),
        ("trades-b", "b", 0.1, 60),
        ("trades-a-weak", "a", 0.05, 70),
        ("puma-a", "a", 0.1, 90),
        ("puma-b", "b", 0.1, 90),
        ("puma-b-weak", "b", 0.05, 90),
    ):
        plan = work / f"plan-{pool}.parquet" if name.startswith("puma") else None
        run = write_run(work / name, [tmp_path / pool], plan=plan, eps=eps)
        write_evaluation(run / "evaluation-test", clean, 50, eps=eps)
    results = read_results(read_study([work]))
    assert {result.row.name for result in results if result.row.baseline} == {"trades-a", "trades-b", "trades-a-weak"}
    means = {name: values["clean"].mean for name, values in compare_rows(results).items()}
    assert means == pytest.approx({"puma-a": 0.1, "puma-b": 0.3})


@pytest.mark.parametrize("changes", [{"eps": 0.2}, {"norm": "l2"}, {"pool_fingerprint": "other"}])
def test_rows_that_were_tested_otherwise_are_not_compared(
    make_pool: MakePool, tmp_path: Path, changes: dict[str, object]
) -> None:
    make_pool("pool")
    path = write_experiment(tmp_path / "exp", tmp_path / "pool")
    assert compare_rows(read_results(read_study([path]))).keys() == {"PUMA"}
    for seed in (0, 1):
        metrics = path.parent / f"PUMA-{seed}" / "evaluation-test" / "metrics.json"
        metrics.write_text(json.dumps({**json.loads(metrics.read_text()), **changes}))
    assert compare_rows(read_results(read_study([path]))) == {}


def test_what_an_experiment_names_is_not_listed_again(make_pool: MakePool, tmp_path: Path) -> None:
    work = tmp_path / "work"
    pool = make_pool("work/pools/real")
    path = write_experiment(work / "experiments" / "exp", work / "pools" / "real")
    described = json.loads(path.read_text())
    for name in ("runs", "plans", "margins"):
        (work / name).mkdir()
    for name in ("TRADES-0", "TRADES-1", "PUMA-0", "PUMA-1"):
        (path.parent / name).rename(work / "runs" / name)
    write_plan(work / "plans" / "plan-0.parquet", pool)
    write_margins(work / "margins" / "margins-0.parquet", pool)
    for row in described["rows"]:
        for seed in row["seeds"]:
            seed["run"], seed["evaluation"] = f"../../runs/{seed['run']}", f"../../runs/{seed['evaluation']}"
            if seed["plan"]:
                seed["plan"], seed["margins"] = "../../plans/plan-0.parquet", "../../margins/margins-0.parquet"
    path.write_text(json.dumps(described))
    assert read_study([work]) == read_study([path])
    assert read_study([work, path.parent, work / "." / "experiments"]) == read_study([path])
    write_run(work / "runs" / "another", [work / "pools" / "real"])
    names = [row.name for row in read_study([work]).rows]
    assert names == ["A test: TRADES", "A test: PUMA", "work: another"]


def test_seeds_with_plans_of_their_own_are_one_row(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool("pool")
    work = tmp_path / "work"
    for seed in (0, 1, 2):
        plan = write_plan(work / "plans" / f"{seed}.parquet", pool, said={"pruning.seed": str(seed)})
        write_run(work / "runs" / f"puma-easy20-seed{seed}-{seed:010x}", [tmp_path / "pool"], plan=plan, seed=seed)
    plan = write_plan(work / "plans" / "less.parquet", pool, pruned=0.1)
    write_run(work / "runs" / "puma-easy10-seed0-00000000aa", [tmp_path / "pool"], plan=plan)
    rows = read_study([work]).rows
    assert [(row.name, [seed.seed for seed in row.seeds]) for row in rows] == [
        ("puma-easy10-seed0-00000000aa", [0]),
        ("puma-easy20", [0, 1, 2]),
    ]
    plan = write_plan(work / "plans" / "other-margins.parquet", pool)
    write_run(work / "runs" / "puma-easy20-seed0-00000000bb", [tmp_path / "pool"], plan=plan)
    study = read_study([work])  # which of the two the other seeds go with is not known
    assert [len(row.seeds) for row in study.rows] == [1] * 5
    assert any(note.startswith("Which of these runs are seeds of one setting is unknown") for note in study.notes)


def test_plans_made_alike_are_told_apart_by_their_margins(make_pool: MakePool, tmp_path: Path) -> None:
    pool, work = make_pool("pool"), tmp_path / "work"
    for name in ("weak", "strong"):
        margins = write_margins(work / f"{name}.parquet", pool, margin_of(50, seed=len(name)))
        for seed in (0, 1):
            said = {"pruning.seed": str(seed)}
            plan = write_plan(work / "plans" / f"{name}{seed}.parquet", pool, said=said, margins=margins)
            write_run(work / "runs" / f"{name}-seed{seed}", [tmp_path / "pool"], plan=plan, seed=seed)
    rows = read_study([work]).rows
    assert [(row.name, [seed.seed for seed in row.seeds]) for row in rows] == [("strong", [0, 1]), ("weak", [0, 1])]
    assert {seed.margins for row in rows for seed in row.seeds} == {work / "weak.parquet", work / "strong.parquet"}


def test_margins_that_a_plan_does_not_name_are_unknown(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool("pool")
    margins = write_margins(tmp_path / "margins-a.parquet", pool, margin_of(50, seed=8))
    write_plan(tmp_path / "plan-a.parquet", pool)
    study = read_study([tmp_path])
    assert study.notes == ("Which margins plan-a.parquet was made from is unknown: it does not say.",)
    assert [(row.name, row.seeds[0].margins) for row in study.rows] == [("plan-a", None), ("margins-a", margins)]
    write_plan(tmp_path / "plan-a.parquet", pool, margins=margins)
    assert [row.name for row in read_study([tmp_path]).rows] == ["plan-a"]
    write_margins(margins, pool, margin_of(50, seed=9))
    study = read_study([tmp_path])
    assert study.notes == (f"The margins that plan-a.parquet was made from are not here: {margins}.",)
    assert [row.name for row in study.rows] == ["plan-a", "margins-a"]


def test_mixed_pools_are_found_by_what_they_are_together(make_pool: MakePool, tmp_path: Path) -> None:
    pools = [make_pool("real"), make_pool("generated", seed=1), make_pool("other", seed=2)]
    write_margins(tmp_path / "margins.parquet", pools[1] + pools[0], margin_of(100))
    assert read_study([tmp_path]).rows[0].seeds[0].pools == (tmp_path / "generated", tmp_path / "real")


def test_a_run_finds_its_evaluations_by_its_weights(make_pool: MakePool, tmp_path: Path) -> None:
    pool, work = make_pool("pool"), tmp_path / "work"
    plan = write_plan(work / "plans" / "0123456789.parquet", pool)
    runs = [write_run(work / "runs" / name, [tmp_path / "pool"], plan=plan) for name in ("one", "two")]
    for run in runs:
        (run / "model.safetensors").write_bytes(run.name.encode())
    made = [
        write_evaluation(work / "evaluations" / f"{index}", 80 + index, 50, links=_link_weights(run))
        for index, run in enumerate(runs)
    ]
    assert read_study([runs[0]]).rows[0].seeds[0].evaluation == made[0]
    assert read_study([runs[1]]).rows[0].seeds[0].evaluation == made[1]
    older = write_evaluation(work / "evaluations" / "2", 85, 50, total=200, model="runs/two")
    study = read_study([runs[1]])  # an older file gives the run's name alone
    assert study.rows[0].seeds[0].evaluation == older
    assert any("several evaluations on the same test (2, 1); shown is 2, the one with" in note for note in study.notes)
    shutil.rmtree(older)
    (runs[1] / "model.safetensors").write_bytes(b"trained on")
    assert "No evaluation was found for: two." in read_study([runs[1]]).notes
    inside = write_evaluation(runs[1] / "evaluation-test", 80, 50, links=_link_weights(runs[0]))
    sentence = "evaluation-test of run two is left out: it judged other weights than the run's."
    assert sentence in read_study([runs[1]]).notes
    shutil.rmtree(inside)
    write_evaluation(inside, 80, 50)
    study = read_study([runs[1]])
    assert study.rows[0].seeds[0].evaluation == inside
    assert "Which weights evaluation-test of run two judged is unknown: it does not say." in study.notes


def _link_weights(run: Path) -> list[dict[str, str]]:
    return write_links([link_to_file("weights", "weights", run / "model.safetensors")])


def test_evaluations_on_several_pools_are_rows_of_their_own(make_pool: MakePool, tmp_path: Path) -> None:
    make_pool("pool")
    for name, clean in (("trades", 80), ("puma", 90)):
        run = write_run(tmp_path / "runs" / name, [tmp_path / "pool"])
        for test, right in (("cifar/test", clean), ("mine/test", clean - 30)):
            write_evaluation(run / f"evaluation-{test[0]}", right, 50, pool=f"/tests/{test}", pool_fingerprint=test)
    write_evaluation(tmp_path / "runs" / "puma" / "evaluation-weak", 90, 60, pool_fingerprint="mine/test", eps=0.05)
    results = read_results(read_study([tmp_path / "runs"]))
    told = {result.row.name: result.estimates()["clean"].mean for result in results}
    assert told == {
        "puma (cifar/test, eps 25.5/255)": 0.9,
        "puma (mine/test, eps 25.5/255)": 0.6,
        "puma (images mine/tes, eps 12.75/255)": 0.9,
        "trades (cifar/test)": 0.8,
        "trades (mine/test)": 0.5,
    }
    assert [result.row.baseline for result in results] == [True] * 3 + [False] * 2
    against = {name: values["clean"].mean for name, values in compare_rows(results).items()}
    assert against == pytest.approx({"trades (cifar/test)": -0.1, "trades (mine/test)": -0.1})


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
    (tmp_path / "text" / "notes.txt").write_text("hello")
    other = write_table(tmp_path / "other.parquet", pa.schema([("a", pa.int64())]), [], {})
    broken = write_experiment(tmp_path / "exp", tmp_path / "pool")
    metrics = broken.parent / "PUMA-0" / "evaluation-test" / "metrics.json"
    metrics.write_text(json.dumps({"results": {"clean": {"right": 5, "total": 3}}, "eps": 1, "norm": "linf"}))
    out = ["--out", str(tmp_path / "r.html")]
    for words, sentence in {
        (): "give at least one run",
        ("nowhere",): "no such file or folder: nowhere",
        (str(tmp_path / "empty"),): "nothing to report on in",
        (str(damaged),): "is damaged or not a parquet file",
        (str(text),): "is damaged: an experiment.json must be JSON",
        (str(listed),): "is damaged: an experiment.json must be a JSON object, got list",
        (str(damaged / "margins.parquet"),): "is damaged or not a parquet file",
        (str(text.with_name("notes.txt")),): "is a file; give margins, a plan, an experiment.json or the folder",
        (str(other),): "other.parquet is neither margins nor a plan",
        (str(broken),): "is damaged or not of puma evaluate",
    }.items():
        code, _, err = puma("report", *words, *out)
        assert (code, sentence in err, len(err.strip().splitlines())) == (2, True, 1), err
    assert not (tmp_path / "r.html").exists()
