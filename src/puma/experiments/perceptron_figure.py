"""A figure of the perceptron study as an experiment: points and theory by ``puma.perceptron``, then the table."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from puma.errors import unknown_name
from puma.experiments.locks import locked
from puma.experiments.presets import PRESETS
from puma.experiments.results import Line, Provenance, checked_table, commit, write_results
from puma.perceptron import FigureName, Study, run_study
from puma.perceptron.results import Results
from puma.perceptron.run import needed_curves, needed_points
from puma.perceptron.study import figures_of

DATASET = "gaussian"


@dataclass(frozen=True)
class PerceptronFigure:
    """A figure of the study.

    Attributes:
        name: what ``puma run`` calls it.
        title: what it shows.
        figure: what ``puma perceptron`` calls it.
        expect: what the paper finds, in a sentence.
    """

    name: str
    title: str
    figure: FigureName
    expect: str = ""


def study_of(experiment: PerceptronFigure, preset: str, seeds: int | None) -> Study:
    """Return the study at the size of a preset; small is the paper's size already."""
    if preset not in PRESETS:
        raise unknown_name("preset", preset, list(PRESETS))
    repeats = usual_seeds(preset) if seeds is None else seeds
    if preset == "smoke":
        return Study((experiment.figure,), alphas=(1.0, 2.0, 4.0), keeps=(1.0, 0.5, 0.2), seeds=repeats, dimension=20)
    return Study((experiment.figure,), seeds=repeats)


def usual_seeds(preset: str) -> int:
    """Return how many seeds a preset has."""
    return 2 if preset == "smoke" else 10


def run_perceptron(
    experiment: PerceptronFigure, preset: str, seeds: int | None, work: Path, out: Path
) -> tuple[Path, Path]:
    """Compute the figure's points, as far as they are not known yet; return the table and the picture."""
    study = study_of(experiment, preset, seeds)
    table = checked_table(out, experiment.name)
    changed = "" if study.seeds == usual_seeds(preset) else f"seeds {study.seeds}"
    name = "-".join([experiment.name, preset, DATASET, *changed.split()])
    folder = work / "perceptron" / name
    with locked(folder):
        report = run_study(study, folder, jobs=os.cpu_count() or 1)
    write_results(table, Provenance(experiment.name, preset, DATASET, changed, "cpu"), list(lines(report.results)))
    shutil.copyfile(folder / "figures" / f"{experiment.figure}.png", out / f"{name}.png")
    return table, out / f"{name}.png"


def lines(results: Results) -> Iterator[Line]:
    """Yield the error of every strategy at every alpha."""
    made_at = commit()
    for figure in figures_of(results.study):
        series = {line.pruning.label: line for panel in figure.panels for line in panel.series}
        for label, line in series.items():
            for alpha in results.study.alphas:
                errors = results.errors(line, alpha)
                if errors is not None:
                    by_seed = {seed: float(error) for seed, error in enumerate(errors)}
                    yield Line(label, "error", by_seed, at=alpha, commit=made_at)


def cost(experiment: PerceptronFigure, preset: str, seeds: int | None) -> str:
    """Say how much there is to compute."""
    study = study_of(experiment, preset, seeds)
    return f"{len(needed_points(study)):,} students and {len(needed_curves(study))} theory curves"
