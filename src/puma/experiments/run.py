"""Run an experiment: every row for every seed, results written after each, so that a run cut short has lost nothing."""

import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from puma.errors import PumaError
from puma.evaluation import ATTACKS, check_config, read_evaluation
from puma.experiments.figures import draw
from puma.experiments.presets import Setting
from puma.experiments.record import record_folder, write_record
from puma.experiments.results import Keep, Line, Provenance, checked_table, stored_lines, write_results
from puma.experiments.spec import Amount, Experiment, Measured, Model, Row
from puma.experiments.workspace import Workspace, plan_counts
from puma.margins import read_margins
from puma.processes import resolve_device
from puma.report.training_curves import read_metrics

_CURVES = ("held_out_clean_accuracy", "held_out_robust_accuracy")


@dataclass
class Done:
    """What is known so far: files and numbers of each row and seed."""

    files: dict[str, dict[int, dict[str, Any]]] = field(default_factory=lambda: defaultdict(dict))
    commits: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    numbers: dict[tuple[str, float | None, str], dict[int, float]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, row: Row, seed: int, at: float | None, values: Mapping[str, float]) -> None:
        """Take down numbers of a row, with the six digits that results have."""
        for quantity, value in values.items():
            self.numbers[row.label, at, quantity][seed] = float(f"{value:.6g}")


def run_experiment(
    experiment: Experiment,
    workspace: Workspace,
    seeds: int,
    out: Path,
    *,
    only: Collection[str] = (),
    command: str = "",
) -> Path:
    """Run rows for seeds 0 to ``seeds`` - 1; write the table, the figure, and the record that a report reads.

    ``only`` names the rows to run, all by default. What earlier runs found for rows that this one does not run, or has
    not come to yet, stays.
    """
    possible, left_out = fitting(experiment, workspace.setting)
    rows = [row for row in possible if not only or row.name in only]
    check_inputs(experiment, rows, workspace, seeds)
    table = checked_table(out, experiment.name)
    if left_out and not only:
        tell(f"{experiment.name}: left out, since this preset has no such net: {', '.join(left_out)}")
    done = Done()
    setting = workspace.setting
    origin = Provenance(
        experiment=experiment.name,
        preset=setting.preset,
        dataset=setting.dataset,
        changed=setting.changed,
        device=setting.nets["main"].compute.device,
    )
    for seed in range(seeds):
        for number, row in enumerate(rows, start=1):
            tell(f"{experiment.name}, seed {seed}, row {number} of {len(rows)}: {row.name}")
            do_row(row, seed, workspace, done)
            write_results(table, origin, list(lines(rows, done)), keep=lines_of(possible))
            write_record(experiment, possible, workspace, done.files, command=command, left_out=left_out)
    if experiment.figure != "none":
        draw(experiment, stored_lines(table, origin), done.files, picture_of(experiment, workspace, out), setting)
    return table


def picture_of(experiment: Experiment, workspace: Workspace, out: Path) -> Path:
    """Return where the figure of an experiment is drawn; data set and changes are part of its name."""
    return out / f"{record_folder(experiment, workspace).name}.png"


def fitting(experiment: Experiment, setting: Setting) -> tuple[list[Row], list[str]]:
    """Return the rows whose nets the setting has, and the names of the others."""
    rows = [row for row in experiment.rows if needed_nets(row.wants) <= set(setting.nets)]
    return rows, [row.name for row in experiment.rows if row not in rows]


def lines_of(rows: list[Row]) -> Keep:
    """Return what tells whether a line is one of some rows."""
    places = {(row.label, row.at) for row in rows}

    def known(line: Line) -> bool:
        return (line.row, line.at) in places or (line.row, None) in places

    return known


def check_inputs(experiment: Experiment, rows: list[Row], workspace: Workspace, seeds: int) -> None:
    """Raise before anything is computed if something cannot be."""
    if seeds < 1:
        raise PumaError(f"give at least one seed, got {seeds}.")
    if not rows:
        raise PumaError(f"preset {workspace.setting.preset} has no net for that row of {experiment.name}; run others.")
    resolve_device(workspace.setting.nets["main"].compute.device)
    check_config(workspace.setting.evaluation, workspace.setting.eps)
    amounts: set[Amount] = set()
    for row in rows:
        amounts |= needed_amounts(row.wants)
    if missing := workspace.library.missing(amounts):
        raise PumaError(f"{'; '.join(missing)}.")
    workspace.library.check_shapes()


def models_of(wants: Model | Measured) -> Iterator[Model]:
    """Yield every model that has to be trained, those that are built on first."""
    if isinstance(wants, Measured):
        yield from models_of(wants.by)
        return
    if wants.planned is not None:
        if wants.planned.needs_margins:
            yield from models_of(wants.planned.margins)
        if wants.planned.needs_difficulty:
            yield from models_of(wants.planned.difficulty_of)
    yield wants


def needed_nets(wants: Model | Measured) -> set[str]:
    """Return the roles of all nets that a row needs."""
    return {model.net for model in models_of(wants)}


def needed_amounts(wants: Model | Measured) -> set[Amount]:
    """Return the amounts of generated images that a row needs."""
    return {model.generated for model in models_of(wants)} | ({"usual"} if isinstance(wants, Measured) else set())


def do_row(row: Row, seed: int, workspace: Workspace, done: Done) -> None:
    """Train, measure and evaluate what a row wants, and take its numbers down."""
    if isinstance(row.wants, Measured):
        images = workspace.images(Model())
        path = workspace.margins(row.wants, images.pools, seed)
        done.files[row.name][seed] = _files(images.pools, margins=path)
        done.commits[row.label].add(workspace.made_at(workspace.trained(row.wants.by, seed)))
        done.add(row, seed, row.at, margin_numbers(path, workspace.setting.eps))
        return
    model, images = row.wants, workspace.images(row.wants)
    run = workspace.trained(model, seed)
    evaluation = workspace.evaluated(model, seed)
    plan = margins = None
    if model.planned is not None:
        plan = workspace.plan(model.planned, images.pools, seed)
        done.add(row, seed, row.at, plan_counts(plan, model.planned.eps * workspace.setting.eps))
        if model.planned.needs_margins:
            margins = workspace.margins(model.planned.margins, images.pools, seed)
    done.files[row.name][seed] = _files(images.pools, run=run, plan=plan, margins=margins, evaluation=evaluation)
    done.commits[row.label] |= {workspace.made_at(run), workspace.made_at(evaluation)}
    done.add(row, seed, row.at, accuracies(evaluation))
    if row.at is None:
        for line in read_metrics(run):
            curve = {name: line[name] for name in _CURVES if name in line}
            done.add(row, seed, float(line["samples"]), curve)


def _files(pools: tuple[Path, ...], **paths: Path | None) -> dict[str, Any]:
    return {"pools": pools, "run": None, "plan": None, "margins": None, "evaluation": None, **paths}


def accuracies(evaluation: Path) -> dict[str, float]:
    """Read the shares of right samples of an evaluation."""
    return {ATTACKS[name].quantity: counted.accuracy for name, counted in read_evaluation(evaluation).counts.items()}


def margin_numbers(path: Path, eps: float) -> dict[str, float]:
    """Summarise margins: quantiles of those that were found, and shares of all."""
    table = read_margins(path)
    found = table.margin[table.crossed].double().numpy()
    quantiles = {
        f"margin_q{100 * share:02.0f}": float(np.quantile(found, share)) for share in (0.05, 0.25, 0.5, 0.75, 0.95)
    }
    shares = {"crossed_share": table.crossed, "negative_share": table.margin < 0, "below_eps_share": table.margin < eps}
    return quantiles | {name: float(flags.double().mean()) for name, flags in shares.items()}


def lines(rows: list[Row], done: Done) -> Iterator[Line]:
    """Yield the lines of the table, in the order of the rows; what the paper reports stands beside ours."""
    order = {row.label: place for place, row in reversed(list(enumerate(rows)))}
    papers = {(row.label, row.at): row.paper for row in rows}
    for (name, at, quantity), by_seed in sorted(done.numbers.items(), key=lambda entry: order[entry[0][0]]):
        paper = papers.get((name, at))
        value = spread = None
        if paper is not None and quantity in ("clean_accuracy", "robust_accuracy"):
            clean = quantity == "clean_accuracy"
            value = (paper.clean if clean else paper.robust) / 100
            spread = (paper.clean_spread if clean else paper.robust_spread) / 100
        made_at = " ".join(sorted(done.commits[name] - {""}))
        yield Line(name, quantity, by_seed, at, value, spread or None, made_at)


def tell(sentence: str) -> None:
    """Say on standard error where the run is."""
    print(f"puma: {sentence}", file=sys.stderr, flush=True)
