import io
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from conftest import MakePool
from puma.errors import PumaError
from puma.evaluation import Count, EvaluationMetrics
from puma.report.page import write_report
from puma.report.rows import ReportRow, RowResult, SeedFiles, open_margins, open_plan, tell_damage
from report.results import write_evaluation, write_experiment, write_margins, write_plan, write_run


def test_whatever_goes_wrong_is_one_sentence_that_names_the_file() -> None:
    sentence = r"a.npy is damaged \(ZeroDivisionError: division by zero\); make it again"
    with pytest.raises(PumaError, match=sentence), tell_damage("a.npy"):
        1 / 0  # noqa: B018
    with pytest.raises(FileNotFoundError), tell_damage("a.npy"):
        Path("nowhere").read_text()


def test_a_damaged_header_of_a_pool_costs_only_the_pictures(make_pool: MakePool, tmp_path: Path) -> None:
    make_pool("pool")
    path = write_experiment(tmp_path / "exp", tmp_path / "pool")
    origin = tmp_path / "pool" / "origin.npy"
    origin.write_bytes(origin.read_bytes().replace(b"(50,)", b"(50,{"))
    assert "The pool cannot be opened" in write_report([path], tmp_path / "r.html").read_text()


def test_files_without_samples_and_with_other_types(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool("pool")
    nothing = pool.subset(np.zeros(50, dtype=bool))
    with pytest.raises(PumaError, match="holds no sample"):
        open_margins(write_margins(tmp_path / "m.parquet", nothing, np.zeros(0, dtype=np.float32)))
    path = write_experiment(tmp_path / "exp", tmp_path / "pool")
    run = path.parent / "PUMA-0" / "config.json"
    described = json.loads(run.read_text())
    described["inputs"]["plan"] = ["a"]
    del described["sha256"]
    run.write_text(json.dumps(described))
    with pytest.raises(PumaError, match="plan and pool_fingerprint must be text"):
        write_report([path], tmp_path / "r.html")
    cut = write_plan(tmp_path / "p.parquet", pool)
    cut.write_bytes(cut.read_bytes()[:-9])
    with pytest.raises(PumaError, match="is damaged or not a parquet file"):
        open_plan(cut)


def evaluated(right: int) -> EvaluationMetrics:
    classes = {"cw": {"ant": Count(right, 10), "bee": Count(2 * right, 20)}}
    return EvaluationMetrics({"cw": Count(3 * right, 30)}, classes, 0.1, "linf")


def test_classes_are_added_up_over_seeds() -> None:
    seeds = tuple(SeedFiles(seed) for seed in (0, 1, 2))
    result = RowResult(ReportRow("r", seeds), tuple(evaluated(right) for right in (1, 2, 4)), (), None)
    assert result.by_class("cw") == {"ant": Count(7, 30), "bee": Count(14, 60)}
    assert result.by_class("clean") == {}


def test_damage_is_one_sentence_or_a_note(make_pool: MakePool, tmp_path: Path) -> None:
    """What was once a traceback, or silence: each file is damaged in turn, and mended again."""
    pool = make_pool("pool")
    path = write_experiment(tmp_path / "exp", tmp_path / "pool")
    run = write_run(tmp_path / "runs" / "puma", [tmp_path / "pool"], plan=path.parent / "plan.parquet")
    evaluation = write_evaluation(run / "evaluation-test", 80, 50) / "metrics.json"
    labels = pool.labels.astype(np.int32)
    labels[3] = 99
    config = json.loads((run / "config.json").read_text())
    config.pop("sha256", None)
    config["inputs"]["plan"] = "x" * 9000
    good = (run / "metrics.jsonl").read_bytes()
    deep = b"[" * 200_000
    for file, content, sentence in (
        (evaluation, b'{"eps": NaN, "norm": "linf", "results": {}}', "eps must be a radius, got nan"),
        (evaluation, deep, "is damaged"),
        (run / "config.json", deep, "is damaged"),
        (run / "config.json", json.dumps(config).encode(), "The plan of run puma has moved away"),
        (run / "metrics.jsonl", b"\0garbage\n" * 7 + deep + b"\n" + good, "8 lines of"),
        (run / "metrics.jsonl", b'{"samples": 1' + b"0" * 400 + b', "loss": 1}\n' + good, "puma"),
        (tmp_path / "pool" / "labels.npy", to_npy(labels), "the pool cannot be opened"),
    ):
        before = file.read_bytes()
        file.write_bytes(content)
        try:
            told = write_report([run], tmp_path / "r.html").read_text()
        except PumaError as error:
            told = str(error)
            assert "\n" not in told
        assert sentence in told, file
        file.write_bytes(before)


def to_npy(values: NDArray[np.int32]) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()
