"""``experiment.json``, the record of an experiment: which rows it has, and where the files of each seed lie."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from puma.errors import PumaError
from puma.evaluation import ATTACKS
from puma.files import read_json, write_json
from puma.report.rows import ReportRow, ReportStudy, SeedFiles

RECORD_FILE = "experiment.json"
_FORMAT = "puma-experiment-1"
_FACTS = ("experiment", "preset", "dataset", "command", "eps", "norm", "pools", "test")
_KINDS = ("run", "plan", "margins", "evaluation")
_ACCURACIES = {attack.quantity: name for name, attack in ATTACKS.items()}


@dataclass(frozen=True)
class ExperimentRecord:
    """What ``experiment.json`` holds; paths are as they can be opened, in the file they are relative to its folder.

    Attributes:
        rows: the rows with the files of their seeds, and what the paper reports by attack.
        experiment: what ``puma run`` calls it.
        title: what it shows.
        preset: the size it was run at.
        dataset: its images, in words.
        command: what was typed.
        notes: sentences that a reader should know.
        eps: radius of training and evaluation.
        norm: norm of both.
        pools: training images of rows that do not name their own.
        test: test images.
        provenance: commit, device, versions and date.
    """

    rows: tuple[ReportRow, ...]
    experiment: str = ""
    title: str = ""
    preset: str = ""
    dataset: str = ""
    command: str = ""
    notes: tuple[str, ...] = ()
    eps: float | None = None
    norm: str | None = None
    pools: tuple[Path, ...] = ()
    test: Path | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)


def write_record(path: Path, record: ExperimentRecord) -> None:
    """Write a record, whole or not at all."""
    folder = path.parent
    values = {
        "format": _FORMAT,
        "experiment": record.experiment,
        "title": record.title,
        "preset": record.preset,
        "dataset": record.dataset,
        "command": record.command,
        "notes": list(record.notes),
        "eps": record.eps,
        "norm": record.norm,
        "pools": [_relative_path(pool, folder) for pool in record.pools],
        "test": _relative_path(record.test, folder),
        "provenance": dict(record.provenance),
        "rows": [_describe_row(row, folder) for row in record.rows],
    }
    write_json(path, values)


def read_record(path: Path) -> ExperimentRecord:
    """Read a record; whether the files it names are there is not looked at."""
    described = read_json(path, f"an {RECORD_FILE}")
    if described.get("format") != _FORMAT:
        raise PumaError(f"{path} has format {described.get('format')!r}, this version reads {_FORMAT!r}.")
    try:
        eps = None if described.get("eps") is None else float(described["eps"])
        norm = None if described.get("norm") is None else str(described["norm"])
        if eps is not None and not (math.isfinite(eps) and eps > 0):
            raise ValueError(f"eps must be positive, got {eps}")
        pools = tuple(path.parent / str(pool) for pool in described.get("pools") or ())
        rows = tuple(replace(_read_row(row, path.parent, pools), eps=eps, norm=norm) for row in described["rows"])
        words = {
            name: str(described.get(name) or "") for name in ("experiment", "title", "preset", "dataset", "command")
        }
        test = None if described.get("test") is None else path.parent / str(described["test"])
        notes = tuple(str(note) for note in described.get("notes") or ())
        provenance = {str(name): str(value) for name, value in dict(described.get("provenance") or {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise PumaError(f"{path} is damaged ({type(error).__name__}: {error}); write it again.") from error
    return ExperimentRecord(
        rows, notes=notes, eps=eps, norm=norm, pools=pools, test=test, provenance=provenance, **words
    )


def read_experiment(path: Path) -> ReportStudy:
    """Read a record as what a report is about; files that are missing become notes, unless nothing at all is left."""
    record = read_record(path)
    missing: list[str] = []
    rows = tuple(
        replace(row, seeds=tuple(_drop_missing(row, seed, missing) for seed in row.seeds)) for row in record.rows
    )
    if not any(seed.run or seed.plan or seed.margins or seed.evaluation for row in rows for seed in row.seeds):
        first = f"; the first that is missing: {missing[0]}" if missing else ""
        raise PumaError(f"none of the {len(rows)} rows of {path} leads to a file that is there{first}.")
    title = record.title or record.experiment or path.parent.name
    notes = (*record.notes, *(f"Missing: {name}." for name in missing))
    return ReportStudy(title, rows, _list_facts(record, path.parent), notes, path.resolve().parent.name)


def _describe_row(row: ReportRow, folder: Path) -> dict[str, Any]:
    paper = {ATTACKS[attack].quantity: value for attack, value in row.paper.items()} or None
    seeds = [
        {
            "seed": seed.seed,
            "pools": [_relative_path(pool, folder) for pool in seed.pools],
            **{kind: _relative_path(getattr(seed, kind), folder) for kind in _KINDS},
        }
        for seed in row.seeds
    ]
    return {"row": row.name, "baseline": row.baseline, "paper": paper, "seeds": seeds}


def _read_row(described: Mapping[str, Any], root: Path, pools: tuple[Path, ...]) -> ReportRow:
    name = str(described["row"])
    seeds = []
    for seed in described["seeds"]:
        places = {kind: None if seed.get(kind) is None else root / str(seed[kind]) for kind in _KINDS}
        own = tuple(root / str(pool) for pool in seed.get("pools") or ())
        seeds.append(SeedFiles(int(seed["seed"]), pools=own or pools, **places))
    paper = {_ACCURACIES[key]: float(value) for key, value in dict(described.get("paper") or {}).items()
             if key in _ACCURACIES and value is not None}  # fmt: skip
    if not all(math.isfinite(value) and 0 <= value <= 1 for value in paper.values()):
        raise ValueError(f"paper accuracies of {name!r} must be fractions in [0, 1], got {paper}")
    return ReportRow(name, tuple(seeds), bool(described.get("baseline", False)), paper)


def _drop_missing(row: ReportRow, seed: SeedFiles, missing: list[str]) -> SeedFiles:
    gone = {kind: place for kind in _KINDS if (place := getattr(seed, kind)) is not None and not place.exists()}
    missing += [f"{kind} of {row.name}, seed {seed.seed} ({place})" for kind, place in gone.items()]
    nothing: dict[str, Any] = dict.fromkeys(gone)
    return replace(seed, **nothing)


def _list_facts(record: ExperimentRecord, folder: Path) -> tuple[tuple[str, str], ...]:
    values = {name: getattr(record, name) for name in _FACTS}
    values["pools"] = ", ".join(_relative_path(pool, folder) or "" for pool in record.pools)
    values["test"] = _relative_path(record.test, folder)
    facts = {name: str(value) for name, value in values.items() if value not in (None, "")}
    return (*facts.items(), *((name, value) for name, value in record.provenance.items() if value != ""))


def _relative_path(path: Path | None, folder: Path) -> str | None:
    return None if path is None else os.path.relpath(path, folder)
