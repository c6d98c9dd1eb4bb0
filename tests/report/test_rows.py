import json
from pathlib import Path

import numpy as np
import pytest

from conftest import MakePool
from puma.errors import PumaError
from puma.evaluation import Count, EvaluationMetrics
from puma.report.page import write_report
from puma.report.rows import ReportRow, RowResult, SeedFiles, open_margins, open_plan, tell_damage
from report.results import write_experiment, write_margins, write_plan


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
