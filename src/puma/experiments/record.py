"""The record of an experiment: which run, plan, margins and evaluation belong to which row and seed."""

from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from puma.errors import PumaError
from puma.experiments.images import SOURCES
from puma.experiments.locks import locked
from puma.experiments.results import commit
from puma.experiments.spec import Experiment, Row
from puma.experiments.workspace import Workspace
from puma.report import experiment_record as records
from puma.report.rows import ReportRow, SeedFiles

Files = Mapping[str, Mapping[int, Mapping[str, Any]]]  # by row and seed: run, plan, margins, evaluation, pools


def record_folder(experiment: Experiment, workspace: Workspace) -> Path:
    """Return where the record of an experiment is kept."""
    setting = workspace.setting
    name = "-".join([experiment.name, setting.preset, setting.dataset, *setting.changed.replace(",", "").split()])
    return workspace.path / "experiments" / name


def write_record(
    experiment: Experiment, rows: list[Row], workspace: Workspace, files: Files, *, command: str, left_out: list[str]
) -> Path:
    """Write experiment.json; rows and seeds that have no files in this run keep those of an earlier one."""
    folder = record_folder(experiment, workspace)
    setting = workspace.setting
    usual = workspace.library.images("usual")
    notes = [*usual.notes, *([f"Changed from the preset: {setting.changed}."] if setting.changed else [])]
    notes += [f"Left out, since this preset has no such net: {', '.join(left_out)}."] if left_out else []
    notes += [f"The paper: {experiment.expect}"] if experiment.expect else []
    path = folder / records.RECORD_FILE
    with locked(path):
        record = records.ExperimentRecord(
            rows=tuple(_merge_rows(rows, files, path)),
            experiment=experiment.name,
            title=experiment.title,
            preset=setting.preset,
            dataset=SOURCES[setting.dataset].title,
            command=command,
            notes=tuple(notes),
            eps=setting.eps,
            norm=setting.nets["main"].attack.norm,
            pools=usual.pools,
            test=usual.test,
            provenance={
                "commit": commit(),
                "device": setting.nets["main"].compute.device,
                "puma": version("puma-pruning"),
                "torch": version("torch"),
                "date": datetime.now(UTC).date().isoformat(),
            },
        )
        records.write_record(path, record)
    return folder


def _merge_rows(rows: list[Row], files: Files, path: Path) -> list[ReportRow]:
    try:
        before = {row.name: {seed.seed: seed for seed in row.seeds} for row in records.read_record(path).rows}
    except PumaError:  # there is none yet, or it is damaged
        before = {}
    merged = []
    for row in rows:
        made = {seed: SeedFiles(seed, **places) for seed, places in files.get(row.name, {}).items()}
        seeds = {**before.get(row.name, {}), **made}
        paper = {"clean": row.paper.clean / 100, "cw": row.paper.robust / 100} if row.paper else {}
        if seeds:
            merged.append(ReportRow(row.name, tuple(seeds[seed] for seed in sorted(seeds)), row.baseline, paper))
    return merged
