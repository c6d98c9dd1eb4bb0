"""The outcomes of a study as tables: for claims, for figures, and on disk."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from puma.perceptron.curves import Curve, CurveKey
from puma.perceptron.newton import Array
from puma.perceptron.points import Outcome, Point, code_fingerprint
from puma.perceptron.sampling import Task
from puma.perceptron.students import name_of
from puma.perceptron.study import Series, Study


@dataclass(frozen=True)
class Results:
    """Outcomes and theory curves of a study."""

    study: Study
    outcomes: Mapping[Point, Outcome]
    curves: Mapping[CurveKey, Curve]

    def errors(self, line: Series, alpha: float) -> Array | None:
        """Return the error of every seed, None when this was not computed."""
        task = Task(alpha, line.pruning, self.study.dimension, line.teacher, line.probe)
        points = [Point(task, line.student, line.eps, seed) for seed in range(self.study.seeds)]
        found = [self.outcomes.get(point) for point in points]
        if any(outcome is None for outcome in found):
            return None
        return np.array([outcome.error for outcome in found if outcome is not None])

    def theory(self, line: Series) -> Curve | None:
        """Return the theory curve of a line, None when there is none."""
        key = line.curve(self.study)
        return None if key is None else self.curves.get(key)


def write_results(results: Results, folder: Path) -> list[Path]:
    """Write ``results.parquet`` (one row per point) and ``theory.parquet`` (one row per point of a curve)."""
    rows = [_point_row(point, outcome) for point, outcome in results.outcomes.items()]
    curve_rows = [row for key, curve in results.curves.items() for row in _curve_rows(key, curve)]
    settings = {"study": json.dumps(asdict(results.study)), "code": code_fingerprint()}
    written = []
    for name, table in (("results.parquet", rows), ("theory.parquet", curve_rows)):
        if not table:
            continue
        path = folder / name
        partial = path.with_suffix(".partial")
        pq.write_table(pa.Table.from_pylist(table).replace_schema_metadata(settings), partial)
        partial.replace(path)
        written.append(path)
    return written


def _point_row(point: Point, outcome: Outcome) -> dict[str, Any]:
    task = point.task
    return {
        "student": name_of(point.student),
        "student_settings": json.dumps(asdict(point.student)),
        "teacher": task.teacher,
        "dimension": task.dimension,
        "strategy": task.pruning.strategy,
        "keep": task.pruning.keep,
        "filtered": task.pruning.filtered,
        "probe_angle": task.probe.angle,
        "probe_signed": task.probe.signed,
        "alpha": task.alpha,
        "samples": task.count,
        "eps": float(point.eps),
        "seed": point.seed,
        **asdict(outcome),
    }


def _curve_rows(key: CurveKey, curve: Curve) -> list[dict[str, Any]]:
    shared = {
        "student": name_of(key.student),
        "teacher": key.teacher,
        "dimension": key.dimension,
        "strategy": key.pruning.strategy,
        "keep": key.pruning.keep,
        "filtered": key.pruning.filtered,
        "eps": float(key.eps),
    }
    pairs = zip(curve.alphas, curve.errors, strict=True)
    return [{**shared, "alpha": alpha, "error": error} for alpha, error in pairs]
