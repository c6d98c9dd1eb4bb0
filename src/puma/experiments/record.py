"""``experiment.json``: which run, plan, margins and evaluation belong to which row and seed; a report reads it."""

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from puma.experiments.images import SOURCES
from puma.experiments.results import commit
from puma.experiments.spec import Experiment, Row
from puma.experiments.workspace import Workspace, write_json

FORMAT = "puma-experiment-1"

Files = Mapping[str, Mapping[int, Mapping[str, Any]]]  # by row and seed: run, plan, margins, evaluation, pools


def record_folder(experiment: Experiment, workspace: Workspace) -> Path:
    """Return where the record of an experiment is kept."""
    setting = workspace.setting
    name = "-".join([experiment.name, setting.preset, setting.dataset, *setting.changed.replace(",", "").split()])
    return workspace.path / "experiments" / name


def recorded_rows(folder: Path) -> dict[str, Any]:
    """Return the rows of an earlier record by name; none if there is no such file, or it is damaged."""
    try:
        recorded = json.loads((folder / "experiment.json").read_text(encoding="utf-8"))
        return {row["row"]: row for row in recorded["rows"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def write_record(
    experiment: Experiment, rows: list[Row], workspace: Workspace, files: Files, *, command: str, left_out: list[str]
) -> Path:
    """Write experiment.json: which files belong to which row and seed, for ``puma report``.

    Rows that have no files in this run keep those of an earlier one.
    """
    folder = record_folder(experiment, workspace)
    setting = workspace.setting

    def near(path: Path | None) -> str | None:
        return None if path is None else os.path.relpath(path, folder)

    usual = workspace.library.images("usual")
    notes = [*usual.notes, *([f"Changed from the preset: {setting.changed}."] if setting.changed else [])]
    notes += [f"Left out, since this preset has no such net: {', '.join(left_out)}."] if left_out else []
    before = recorded_rows(folder)
    written = []
    for row in rows:
        paper = row.paper and {"clean_accuracy": row.paper.clean / 100, "robust_accuracy": row.paper.robust / 100}
        seeds = [
            {"seed": seed, "pools": [near(path) for path in made["pools"]]}
            | {name: near(made[name]) for name in ("run", "plan", "margins", "evaluation")}
            for seed, made in files.get(row.name, {}).items()
        ]
        if not seeds and row.name in before:
            written.append(before[row.name])
        elif seeds:
            written.append({"row": row.name, "baseline": row.baseline, "paper": paper, "seeds": seeds})
    values = {
        "format": FORMAT,
        "experiment": experiment.name,
        "title": experiment.title,
        "preset": setting.preset,
        "dataset": SOURCES[setting.dataset].title,
        "command": command,
        "notes": [*notes, *([f"The paper: {experiment.expect}"] if experiment.expect else [])],
        "eps": setting.eps,
        "norm": setting.nets["main"].attack.norm,
        "pools": [near(path) for path in usual.pools],
        "test": near(usual.test),
        "provenance": {
            "commit": commit(),
            "device": setting.nets["main"].compute.device,
            "puma": version("puma-pruning"),
            "torch": version("torch"),
            "date": datetime.now(UTC).date().isoformat(),
        },
        "rows": written,
    }
    write_json(folder / "experiment.json", values)
    return folder
