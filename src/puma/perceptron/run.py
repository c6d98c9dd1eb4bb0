"""The whole study: points, theory, tables, figures, claims."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from puma.perceptron.cache import Cache
from puma.perceptron.claims import Claim, judge, markdown
from puma.perceptron.curves import CurveKey
from puma.perceptron.evidence import Evidence
from puma.perceptron.points import Point
from puma.perceptron.results import Results, write_results
from puma.perceptron.study import Figure, Series, Study, figures_of
from puma.perceptron.sweep import run_curves, run_points


@dataclass(frozen=True)
class Report:
    """What a study found, and the files that say so."""

    results: Results
    claims: list[Claim]
    files: list[Path]


def needed_points(study: Study) -> list[Point]:
    """Return every point that the figures of a study show, once."""
    return list(dict.fromkeys(point for line in _lines(study) for point in line.points(study)))


def needed_curves(study: Study) -> list[CurveKey]:
    """Return every theory curve that the figures of a study show, once."""
    keys = (line.curve(study) for line in _lines(study))
    return list(dict.fromkeys(key for key in keys if key is not None))


def compute_study(study: Study, cache: Cache, *, jobs: int = 1, progress: bool = True) -> Results:
    """Compute the points and curves of a study, as far as the cache does not know them."""
    outcomes = run_points(needed_points(study), cache, jobs=jobs, progress=progress)
    curves = run_curves(needed_curves(study), cache, jobs=jobs, progress=progress)
    return Results(study, outcomes, curves)


def run_study(study: Study, folder: Path, *, jobs: int = 1, progress: bool = True) -> Report:
    """Compute a study and write ``results.parquet``, ``theory.parquet``, figures, claims and settings."""
    # here, not above: workers import this module too and draw nothing
    from puma.perceptron.figures import draw

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(asdict(study), indent=2) + "\n")
    results = compute_study(study, Cache(folder / "points.jsonl"), jobs=jobs, progress=progress)
    files = write_results(results, folder)
    for figure in figures_of(study):
        files += draw(figure, results, folder / "figures")
    claims = judge(Evidence(results, study.student(study.students[0])))
    files += write_claims(claims, folder)
    return Report(results, claims, files)


def write_claims(claims: Sequence[Claim], folder: Path) -> list[Path]:
    """Write the table of claims for readers and for programs."""
    paths = [folder / "claims.md", folder / "claims.json"]
    paths[0].write_text(markdown(list(claims)))
    paths[1].write_text(json.dumps([asdict(claim) for claim in claims], indent=2) + "\n")
    return paths


def _lines(study: Study) -> list[Series]:
    figures: list[Figure] = figures_of(study)
    return [line for figure in figures for panel in figure.panels for line in panel.needed()]
