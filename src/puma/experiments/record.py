"""``experiment.json``: which run, plan, margins and evaluation belong to which row and seed; a report reads it."""

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from puma.experiments.images import SOURCES
from puma.experiments.locks import locked
from puma.experiments.results import commit
from puma.experiments.spec import Experiment, Row
from puma.experiments.workspace import Workspace, write_json

FORMAT = "puma-experiment-1"

Files = Mapping[str, Mapping[int, Mapping[str, Any]]]  # by row and seed: run, plan, margins, evaluation, pools
Seeds = dict[int, Mapping[str, Any]]


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
    with locked(folder / "experiment.json"):
        values = {
            "format": FORMAT,
            "experiment": experiment.name,
            "title": experiment.title,
            "preset": setting.preset,
            "dataset": SOURCES[setting.dataset].title,
            "command": command,
            "notes": notes,
            "eps": setting.eps,
            "norm": setting.nets["main"].attack.norm,
            "pools": [_near(path, folder) for path in usual.pools],
            "test": _near(usual.test, folder),
            "provenance": {
                "commit": commit(),
                "device": setting.nets["main"].compute.device,
                "puma": version("puma-pruning"),
                "torch": version("torch"),
                "date": datetime.now(UTC).date().isoformat(),
            },
            "rows": _rows(rows, files, folder),
        }
        write_json(folder / "experiment.json", values)
    return folder


def recorded_seeds(folder: Path) -> dict[str, Seeds]:
    """Return what an earlier record has by row and seed; nothing if there is none, or it is damaged."""
    try:
        recorded = json.loads((folder / "experiment.json").read_text(encoding="utf-8"))
        return {row["row"]: {int(seed["seed"]): seed for seed in row["seeds"]} for row in recorded["rows"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _rows(rows: list[Row], files: Files, folder: Path) -> list[dict[str, Any]]:
    before = recorded_seeds(folder)
    written = []
    for row in rows:
        seeds: Seeds = dict(before.get(row.name, {}))
        for seed, made in files.get(row.name, {}).items():
            paths = {name: _near(made[name], folder) for name in ("run", "plan", "margins", "evaluation")}
            seeds[seed] = {"seed": seed, "pools": [_near(path, folder) for path in made["pools"]], **paths}
        paper = row.paper and {"clean_accuracy": row.paper.clean / 100, "robust_accuracy": row.paper.robust / 100}
        if seeds:
            ordered = [seeds[seed] for seed in sorted(seeds)]
            written.append({"row": row.name, "baseline": row.baseline, "paper": paper, "seeds": ordered})
    return written


def _near(path: Path | None, folder: Path) -> str | None:
    return None if path is None else os.path.relpath(path, folder)
