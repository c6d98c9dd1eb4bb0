"""The whole study: points, theory, tables, figures, claims."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from puma.errors import PumaError, tell_missing
from puma.files import read_json, replace_atomically, write_text
from puma.perceptron.claims import Evidence, StudyClaim, format_claims, judge_study
from puma.perceptron.students import student_name
from puma.perceptron.study_design import PerceptronStudy, StudyResults, compute_study, plan_figures
from puma.perceptron.sweep import ResultCache, StudentOutcome, StudyPoint, code_fingerprint
from puma.perceptron.theory import CurveKey, TheoryCurve


@dataclass(frozen=True)
class StudyReport:
    """What a study found, and the files that say so."""

    results: StudyResults
    claims: list[StudyClaim]
    files: list[Path]


def run_study(study: PerceptronStudy, folder: Path, *, jobs: int = 1, progress: bool = True) -> StudyReport:
    """Compute a study and write ``results.parquet``, ``theory.parquet``, figures, claims and settings."""
    # here, not above: workers import this module too and draw nothing
    with tell_missing("perceptron"):
        from puma.perceptron.study_figures import draw_study_figure

    check_study_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "config.json", json.dumps(asdict(study), indent=2) + "\n")
    results = compute_study(study, ResultCache(folder / "points.jsonl"), jobs=jobs, progress=progress)
    files = write_tables(results, folder)
    for figure in plan_figures(study):
        files += draw_study_figure(figure, results, folder / "figures")
    claims = judge_study(Evidence(results, study.student(study.students[0])))
    files += write_claims(claims, folder)
    return StudyReport(results, claims, files)


def check_study_folder(folder: Path) -> None:
    """Raise where files of another kind have the names that a study writes."""
    if folder.exists() and not folder.is_dir():
        raise PumaError(f"--out {folder} is a file; give a folder.")
    names = ("config.json", "points.jsonl", "results.parquet", "theory.parquet", "claims.md", "claims.json")
    there = [name for name in names if os.path.lexists(folder / name)]
    if not there:
        return
    config = read_json(folder / "config.json", "a study's config.json") if "config.json" in there else {}
    if not {"alphas", "keeps", "teacher"} <= set(config):
        raise PumaError(
            f"--out {folder} holds {', '.join(there)} of something else than a study; choose another --out."
        )


def write_claims(claims: Sequence[StudyClaim], folder: Path) -> list[Path]:
    """Write the table of claims for readers and for programs."""
    paths = [folder / "claims.md", folder / "claims.json"]
    write_text(paths[0], format_claims(list(claims)))
    write_text(paths[1], json.dumps([asdict(claim) for claim in claims], indent=2) + "\n")
    return paths


def write_tables(results: StudyResults, folder: Path) -> list[Path]:
    """Write ``results.parquet`` (one row per point) and ``theory.parquet`` (one row per point of a curve)."""
    rows = [_point_row(point, outcome) for point, outcome in results.outcomes.items()]
    curve_rows = [row for key, curve in results.curves.items() for row in _curve_rows(key, curve)]
    settings = {"study": json.dumps(asdict(results.study)), "code": code_fingerprint()}
    written = []
    for name, table in (("results.parquet", rows), ("theory.parquet", curve_rows)):
        if not table:
            continue
        path = folder / name
        with replace_atomically(path) as partial:
            pq.write_table(pa.Table.from_pylist(table).replace_schema_metadata(settings), partial)
        written.append(path)
    return written


def _point_row(point: StudyPoint, outcome: StudentOutcome) -> dict[str, Any]:
    task = point.task
    return {
        "student": student_name(point.student),
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


def _curve_rows(key: CurveKey, curve: TheoryCurve) -> list[dict[str, Any]]:
    shared = {
        "student": student_name(key.student),
        "teacher": key.teacher,
        "dimension": key.dimension,
        "strategy": key.pruning.strategy,
        "keep": key.pruning.keep,
        "filtered": key.pruning.filtered,
        "eps": float(key.eps),
    }
    pairs = zip(curve.alphas, curve.errors, strict=True)
    return [{**shared, "alpha": alpha, "error": error} for alpha, error in pairs]
