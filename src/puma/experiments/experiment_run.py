"""Run an experiment: every row for every seed, results written after each, so that a run cut short has lost nothing."""

import os
import shutil
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np

from puma.errors import PumaError, unknown_name
from puma.evaluation import ATTACKS, check_evaluation_config, read_evaluation
from puma.experiments.generated import draw_bands
from puma.experiments.presets import PRESETS
from puma.experiments.results import (
    Place,
    ResultLine,
    ResultOrigin,
    check_table,
    draw_figure,
    find_commit,
    format_number,
    read_results_file,
    summarise_results,
    write_results_file,
)
from puma.experiments.spec import (
    TRADES,
    Experiment,
    GeneratedAmount,
    GeneratorImages,
    MarginSpec,
    ModelSpec,
    PerceptronFigure,
    RowSpec,
    list_amounts,
    select_rows,
)
from puma.experiments.workspace import Workspace, summarise_plan
from puma.files import lock
from puma.margins import compare_margins, read_margins
from puma.perceptron import PerceptronStudy, StudyResults, needed_curves, needed_points, plan_figures, run_study
from puma.processes import resolve_device
from puma.report import RECORD_FILE, ExperimentRecord, ReportRow, SeedFiles, read_record, write_record
from puma.training import RunFolder

_CURVES = ("held_out_clean_accuracy", "held_out_robust_accuracy")
_ALIKE = ("rank_correlation", "plan_agreement", "pruned_overlap", "strength_error")
_AUTOATTACK = ATTACKS["autoattack"].quantity
_GAUSSIAN = "gaussian"  # what the perceptron study calls its data


@dataclass
class ExperimentProgress:
    """What is known so far: the files of each row by seed, and the results."""

    origin: ResultOrigin
    device: str
    files: dict[str, dict[int, SeedFiles]] = field(default_factory=lambda: defaultdict(dict))
    lines: list[ResultLine] = field(default_factory=list)

    def add(self, row: RowSpec, seed: int, at: float | None, values: Mapping[str, float], commit: str) -> None:
        """Take down numbers of a row; what the paper reports stands beside ours."""
        for quantity, value in values.items():
            paper = spread = None
            if row.paper is not None and at == row.at and quantity in ("clean_accuracy", "robust_accuracy"):
                clean = quantity == "clean_accuracy"
                paper = (row.paper.clean if clean else row.paper.robust) / 100
                spread = (row.paper.clean_spread if clean else row.paper.robust_spread) / 100 or None
            rounded = float(format_number(value))
            self.lines.append(
                ResultLine(self.origin, row.label, quantity, seed, rounded, at, paper, spread, commit, self.device)
            )


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
    possible, left_out = select_rows(
        experiment,
        workspace.setting.nets,
        workspace.setting.amounts,
        generator=workspace.setting.generator is not None,
    )
    rows = [row for row in possible if not only or row.name in only]
    check_inputs(experiment, rows, workspace, seeds)
    table = check_table(out, experiment.name)
    if left_out and not only:
        _print_progress(f"{experiment.name}: left out, since {workspace.setting.shortage}: {', '.join(left_out)}")
    progress = ExperimentProgress(result_origin(experiment, workspace), workspace.setting.nets["main"].compute.device)
    order = {row.label: place for place, row in reversed(list(enumerate(rows)))}
    places = {(row.label, row.at) for row in possible}

    def keep_line(place: Place) -> bool:
        row, at, _ = place
        return (row, at) in places or (row, None) in places

    for seed in range(seeds):
        for number, row in enumerate(rows, start=1):
            _print_progress(f"{experiment.name}, seed {seed}, row {number} of {len(rows)}: {row.name}")
            run_row(row, seed, workspace, progress)
            if experiment.figure == "heat map":
                compare_with_others(row, seed, workspace.setting.eps, progress)
            lines = sorted(progress.lines, key=lambda line: order[line.row])
            write_results_file(table, progress.origin, lines, keep=keep_line)
            _record_experiment(experiment, possible, workspace, progress, command=command, left_out=left_out)
    if experiment.figure == "bands":
        draw_bands(_find_band_margins(rows, workspace), picture_path(experiment, workspace, out), workspace.setting.eps)
    elif experiment.figure != "none":
        summaries = summarise_results(line for line in read_results_file(table) if line.origin == progress.origin)
        margins = {name: first.margins for name, made in progress.files.items()
                   if (first := next(iter(made.values()))).margins is not None}  # fmt: skip
        draw_figure(experiment, summaries, margins, picture_path(experiment, workspace, out), workspace.setting)
    return table


def _find_band_margins(rows: Sequence[RowSpec], workspace: Workspace) -> dict[GeneratorImages, Path]:
    """Return the margins of every kind of generated images that the rows were trained on."""
    kinds = {row.wants.generated: row.wants for row in rows if isinstance(row.wants, ModelSpec)}
    stages = workspace.generated_stages
    return {
        kind: stages.measure(workspace.find_pools(model).pools[-1])
        for kind, model in kinds.items()
        if isinstance(kind, GeneratorImages)
    }


def result_origin(experiment: Experiment, workspace: Workspace) -> ResultOrigin:
    """Return what the results of an experiment are marked with."""
    setting = workspace.setting
    return ResultOrigin(experiment.name, setting.preset, setting.dataset, setting.changed)


def record_folder(experiment: Experiment, workspace: Workspace) -> Path:
    """Return where the record of an experiment is kept."""
    setting = workspace.setting
    words = setting.changed.replace(",", "").replace("/", "-").replace(":", "-").split()
    name = "-".join([experiment.name, setting.preset, setting.dataset, *words])
    return workspace.path / "experiments" / name


def picture_path(experiment: Experiment, workspace: Workspace, out: Path) -> Path:
    """Return where the figure of an experiment is drawn; data set and changes are part of its name."""
    return out / f"{record_folder(experiment, workspace).name}.png"


def check_inputs(experiment: Experiment, rows: list[RowSpec], workspace: Workspace, seeds: int) -> None:
    """Raise before anything is computed if something cannot be."""
    if seeds < 1:
        raise PumaError(f"give at least one seed, got {seeds}.")
    if workspace.path.is_file():
        raise PumaError(f"--work {workspace.path} is a file; give a folder.")
    if not rows:
        raise PumaError(f"preset {workspace.setting.preset} has no net for that row of {experiment.name}; run others.")
    resolve_device(workspace.setting.nets["main"].compute.device)
    check_evaluation_config(workspace.setting.evaluation, workspace.setting.eps)
    amounts: set[GeneratedAmount] = set()
    for row in rows:
        amounts |= list_amounts(row.wants)
    if missing := workspace.library.list_missing(amounts):
        raise PumaError(f"{'; '.join(missing)}.")
    if experiment.figure == "curves" and not workspace.setting.nets["main"].evaluate_every:
        raise PumaError(
            f"{experiment.name} draws curves over training, for which preset {workspace.setting.preset} holds no "
            f"images out; run it with preset small."
        )
    workspace.library.check_shapes()


def run_row(row: RowSpec, seed: int, workspace: Workspace, progress: ExperimentProgress) -> None:
    """Train, measure and evaluate what a row wants, and take its numbers down."""
    if isinstance(row.wants, MarginSpec):
        pools = workspace.find_pools(ModelSpec()).pools
        path = workspace.measure_margins(row.wants, pools, seed)
        progress.files[row.name][seed] = SeedFiles(seed, pools=pools, margins=path)
        by = row.wants.by
        commit = workspace.read_commit(workspace.train_model(by, seed)) if isinstance(by, ModelSpec) else find_commit()
        progress.add(row, seed, row.at, summarise_margin_file(path, workspace.setting.eps), commit)
        return
    model, pools = row.wants, workspace.find_pools(row.wants).pools
    run = workspace.train_model(model, seed)
    evaluation = workspace.evaluate_model(model, seed)
    commits = {workspace.read_commit(run), workspace.read_commit(evaluation)}
    commit = " ".join(sorted(commits - {""}))
    plan = margins = None
    if model.plan is not None:
        plan = workspace.make_plan(model.plan, pools, seed)
        progress.add(row, seed, row.at, summarise_plan(plan, model.plan.eps * workspace.setting.eps), commit)
        if model.plan.needs_margins:
            margins = workspace.measure_margins(model.plan.margins, pools, seed)
    progress.files[row.name][seed] = SeedFiles(seed, run, pools, plan, margins, evaluation)
    progress.add(row, seed, row.at, read_accuracies(evaluation), commit)
    if isinstance(model.generated, GeneratorImages):
        judge = workspace.train_judge()
        test = workspace.find_pools(model).test
        progress.add(
            row, seed, row.at, workspace.generated_stages.describe(pools[-1], model.generated, judge, test), commit
        )
    if workspace.setting.autoattack_samples:
        strongest = workspace.evaluate_model(model, seed, autoattack=True)
        counted = {name: value for name, value in read_accuracies(strongest).items() if name == _AUTOATTACK}
        progress.add(row, seed, row.at, counted, workspace.read_commit(strongest))
    if row.at is None:
        for line in RunFolder(run).read_metrics():
            curve = {name: line[name] for name in _CURVES if name in line}
            progress.add(row, seed, float(line["samples"]), curve, commit)


def compare_with_others(row: RowSpec, seed: int, eps: float, progress: ExperimentProgress) -> None:
    """Take down how alike a row's margins are to those of the rows before it, and to its own of the first seed."""
    mine = progress.files[row.name][seed].margins
    assert mine is not None
    others = {name: made[seed].margins for name, made in progress.files.items() if name != row.name and seed in made}
    others |= {"itself": progress.files[row.name][0].margins} if seed else {}
    ours = read_margins(mine)
    for name, path in others.items():
        if path is None:
            continue
        pair = compare_margins({name: read_margins(path), f"{row.name}, here": ours}, eps=eps)[0]
        values = {f"{quantity}_with {name}": getattr(pair, quantity) for quantity in _ALIKE}
        progress.add(row, seed, row.at, values, find_commit())


def read_accuracies(evaluation: Path) -> dict[str, float]:
    """Read the shares of right samples of an evaluation."""
    return {ATTACKS[name].quantity: counted.accuracy for name, counted in read_evaluation(evaluation).counts.items()}


def summarise_margin_file(path: Path, eps: float) -> dict[str, float]:
    """Summarise margins: quantiles of those that were found, and shares of all."""
    table = read_margins(path)
    found = table.margin[table.crossed].double().numpy()
    quantiles = {
        f"margin_q{100 * share:02.0f}": float(np.quantile(found, share)) for share in (0.05, 0.25, 0.5, 0.75, 0.95)
    }
    shares = {"crossed_share": table.crossed, "negative_share": table.margin < 0, "below_eps_share": table.margin < eps}
    return quantiles | {name: float(flags.double().mean()) for name, flags in shares.items()}


def _record_experiment(
    experiment: Experiment,
    rows: list[RowSpec],
    workspace: Workspace,
    progress: ExperimentProgress,
    *,
    command: str,
    left_out: list[str],
) -> None:
    """Write experiment.json; rows and seeds that have no files in this run keep those of an earlier one."""
    setting = workspace.setting
    usual = workspace.find_pools(TRADES)
    notes = [*usual.notes, *([f"Changed from the preset: {setting.changed}."] if setting.changed else [])]
    notes += [f"Left out, since {setting.shortage}: {', '.join(left_out)}."] if left_out else []
    notes += [f"The paper: {experiment.expect}"] if experiment.expect else []
    path = record_folder(experiment, workspace) / RECORD_FILE
    with lock(path, wait=True):
        record = ExperimentRecord(
            rows=tuple(_merge_rows(rows, progress.files, path)),
            experiment=experiment.name,
            title=experiment.title,
            preset=setting.preset,
            dataset=workspace.library.title,
            command=command,
            notes=tuple(notes),
            eps=setting.eps,
            norm=setting.nets["main"].attack.norm,
            pools=usual.pools,
            test=usual.test,
            provenance={
                "commit": find_commit(),
                "device": progress.device,
                "puma": version("puma-pruning"),
                "torch": version("torch"),
                "date": datetime.now(UTC).date().isoformat(),
            },
        )
        write_record(path, record)


def _merge_rows(rows: list[RowSpec], files: Mapping[str, Mapping[int, SeedFiles]], path: Path) -> Iterator[ReportRow]:
    try:
        before = {row.name: {seed.seed: seed for seed in row.seeds} for row in read_record(path).rows}
    except PumaError:  # there is none yet, or it is damaged
        before = {}
    for row in rows:
        seeds = {**before.get(row.name, {}), **files.get(row.name, {})}
        paper = {"clean": row.paper.clean / 100, "cw": row.paper.robust / 100} if row.paper else {}
        if seeds:
            yield ReportRow(row.name, tuple(seeds[seed] for seed in sorted(seeds)), row.baseline, paper)


def build_study(figure: PerceptronFigure, preset: str, seeds: int | None) -> PerceptronStudy:
    """Return the perceptron study at the size of a preset; small is the paper's size already."""
    if preset not in PRESETS:
        raise unknown_name("preset", preset, list(PRESETS))
    repeats = default_seeds(preset) if seeds is None else seeds
    if preset == "smoke":
        return PerceptronStudy(
            (figure.figure,), alphas=(1.0, 2.0, 4.0), keeps=(1.0, 0.5, 0.2), seeds=repeats, dimension=20
        )
    return PerceptronStudy((figure.figure,), seeds=repeats)


def default_seeds(preset: str) -> int:
    """Return how many seeds the perceptron figures have at a preset."""
    return 2 if preset == "smoke" else 10


def run_perceptron_figure(
    figure: PerceptronFigure, preset: str, seeds: int | None, work: Path, out: Path
) -> tuple[Path, Path]:
    """Compute the figure's points, as far as they are not known yet; return the table and the picture."""
    study = build_study(figure, preset, seeds)
    table = check_table(out, figure.name)
    changed = "" if study.seeds == default_seeds(preset) else f"seeds {study.seeds}"
    name = "-".join([figure.name, preset, _GAUSSIAN, *changed.split()])
    folder = work / "perceptron" / name
    with lock(folder, wait=True):
        report = run_study(study, folder, jobs=os.cpu_count() or 1)
    origin = ResultOrigin(figure.name, preset, _GAUSSIAN, changed)
    write_results_file(table, origin, list(_iterate_errors(report.results, origin)))
    shutil.copyfile(folder / "figures" / f"{figure.figure}.png", out / f"{name}.png")
    return table, out / f"{name}.png"


def _iterate_errors(results: StudyResults, origin: ResultOrigin) -> Iterator[ResultLine]:
    """Yield the error of every strategy at every alpha and seed."""
    commit = find_commit()
    for figure in plan_figures(results.study):
        series = {line.pruning.label: line for panel in figure.panels for line in panel.series}
        for label, line in series.items():
            for alpha in results.study.alphas:
                errors = results.errors(line, alpha)
                for seed, error in enumerate(() if errors is None else errors):
                    yield ResultLine(origin, label, "error", seed, float(error), at=alpha, commit=commit)


def describe_perceptron_cost(figure: PerceptronFigure, preset: str, seeds: int | None) -> str:
    """Say how much there is to compute for a figure of the perceptron study."""
    study = build_study(figure, preset, seeds)
    return f"{len(needed_points(study)):,} students and {len(needed_curves(study))} theory curves"


def _print_progress(sentence: str) -> None:
    """Say on standard error where the run is."""
    print(f"puma: {sentence}", file=sys.stderr, flush=True)
