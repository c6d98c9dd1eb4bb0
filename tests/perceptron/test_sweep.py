"""The cache and the parallel run: nothing is computed twice, and jobs do not change a bit."""

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from puma.errors import PumaError
from puma.perceptron import sweep
from puma.perceptron.problem import PerceptronTask, PoolPruning
from puma.perceptron.students import Logistic, MaxMargin
from puma.perceptron.sweep import (
    ResultCache,
    StudentOutcome,
    StudyPoint,
    compute_points,
    group_points,
    run_curves,
    run_points,
)
from puma.perceptron.theory import CurveKey


def some_points(alphas: Sequence[float] = (1.0, 3.0), seeds: int = 2) -> list[StudyPoint]:
    strategies = (PoolPruning(), PoolPruning("pe", 0.2), PoolPruning("pe", 0.2, filtered=True))
    return [
        StudyPoint(PerceptronTask(alpha, pruning, 30), Logistic(), eps, seed)
        for alpha in alphas
        for pruning in strategies
        for eps in (0.0, 0.01)
        for seed in range(seeds)
    ]


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[StudyPoint]:
    """Collect the points that are really computed."""
    seen: list[StudyPoint] = []

    def counting(group: Sequence[StudyPoint]) -> list[StudentOutcome]:
        seen.extend(group)
        return compute_points(group)

    monkeypatch.setattr(sweep, "compute_points", counting)
    return seen


def test_one_more_alpha_computes_only_that(tmp_path: Path, computed: list[StudyPoint]) -> None:
    path = tmp_path / "points.jsonl"
    first = run_points(some_points(), ResultCache(path), progress=False)
    assert len(computed) == len(first) == 24
    computed.clear()
    more = run_points(some_points((1.0, 2.0, 3.0)), ResultCache(path), progress=False)
    assert {point.task.alpha for point in computed} == {2.0}
    assert {point: more[point] for point in first} == first


def test_any_number_of_jobs_gives_the_same_bits(tmp_path: Path) -> None:
    here = run_points(some_points(), ResultCache(tmp_path / "one.jsonl"), jobs=1, progress=False)
    spread = run_points(some_points(), ResultCache(tmp_path / "two.jsonl"), jobs=2, progress=False)
    assert here == spread


def test_a_point_does_not_depend_on_its_company() -> None:
    for group in group_points(some_points((3.0,), 1)):
        assert compute_points(group) == [compute_points([point])[0] for point in group]
    assert max(len(group) for group in group_points(some_points((3.0,), 1))) == 2


def test_a_line_cut_off_by_a_crash_is_computed_again(tmp_path: Path, computed: list[StudyPoint]) -> None:
    path = tmp_path / "points.jsonl"
    first = run_points(some_points(), ResultCache(path), progress=False)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    computed.clear()
    again = run_points(some_points(), ResultCache(path), progress=False)
    assert len(computed) == 1
    assert again == first
    computed.clear()
    assert run_points(some_points(), ResultCache(path), progress=False) == first
    assert computed == []


def test_what_was_found_before_an_interruption_is_kept(
    tmp_path: Path, computed: list[StudyPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopping(group: Sequence[StudyPoint]) -> list[StudentOutcome]:
        if len(computed) >= 6:
            raise KeyboardInterrupt
        computed.extend(group)
        return compute_points(group)

    monkeypatch.setattr(sweep, "compute_points", stopping)
    with pytest.raises(KeyboardInterrupt):
        run_points(some_points(), ResultCache(tmp_path / "points.jsonl"), progress=False)
    known = ResultCache(tmp_path / "points.jsonl")
    assert [known.get(point.key) is not None for point in computed] == [True] * len(computed)


def test_every_setting_and_the_code_are_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    point = some_points()[0]
    others = [
        replace(point, eps=0.5),
        replace(point, seed=9),
        replace(point, student=Logistic(1e-4)),
        replace(point, student=MaxMargin()),
        replace(point, task=replace(point.task, alpha=1.5)),
        replace(point, task=replace(point.task, teacher="dense")),
        replace(point, task=replace(point.task, pruning=PoolPruning("pd", 0.5))),
    ]
    keys = {candidate.key for candidate in [point, *others]}
    monkeypatch.setattr(sweep, "code_fingerprint", lambda: "other code")
    assert len(keys | {point.key}) == len(others) + 2


def test_curves_are_cached_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = CurveKey(PoolPruning("pe", 0.05), 0.01, 200, "axis", MaxMargin(), (1.0, 30.0, 60.0))
    first = run_curves([key], ResultCache(tmp_path / "curves.jsonl"), progress=False)
    monkeypatch.setattr(sweep, "trace_curve", None)
    again = run_curves([key], ResultCache(tmp_path / "curves.jsonl"), progress=False)
    assert repr(first) == repr(again)
    assert "nan" in repr(first)


def test_jobs_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(PumaError, match="at least 1, got 0"):
        run_points(some_points(), ResultCache(tmp_path / "points.jsonl"), jobs=0, progress=False)


def test_a_killed_run_leaves_its_results_and_no_workers(tmp_path: Path) -> None:
    words = ["--figures", "eps0", "--keeps", "0.5", "--seeds", "40", "--alphas", "4", "8", "--jobs", "2"]
    command = [
        sys.executable,
        "-m",
        "puma",
        "perceptron",
        "--dimension",
        "60",
        "--out",
        str(tmp_path),
        *words,
    ]
    path = tmp_path / "points.jsonl"
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as running:
        while not path.exists() and running.poll() is None:
            time.sleep(0.02)
        workers = psutil.Process(running.pid).children(recursive=True)
        running.kill()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert workers
    assert alive == []
    known = ResultCache(path)
    points = [
        StudyPoint(PerceptronTask(alpha, pruning, 60), Logistic(), 0.0, seed)
        for alpha in (4.0, 8.0)
        for pruning in (PoolPruning(), PoolPruning("pe", 0.5), PoolPruning("pd", 0.5))
        for seed in range(40)
    ]
    found = [point for point in points if known.get(point.key) is not None]
    assert 32 <= len(found) < len(points)
    first = found[0]
    assert run_points([first], known, progress=False)[first] == compute_points([first])[0]
