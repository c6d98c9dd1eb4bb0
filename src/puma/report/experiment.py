"""``experiment.json``: which rows an experiment has, and where the files of each seed lie."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from puma.errors import PumaError
from puma.report.study import Row, Seed, Study

FILE = "experiment.json"
FORMAT = "puma-experiment-1"
_MOST_BYTES = 64 << 20  # of a file of settings or counts; such a file has some thousand
_FACTS = ("experiment", "preset", "dataset", "command", "eps", "norm", "pools", "test")
_ACCURACIES = {"clean_accuracy": "clean", "robust_accuracy": "cw", "autoattack_accuracy": "autoattack"}


def read_experiment(path: Path) -> Study:
    """Read the file; files it names that are missing become notes, unless nothing at all is left."""
    described = read_object(path)
    if described.get("format") != FORMAT:
        raise PumaError(f"{path} has format {described.get('format')!r}, this version reads {FORMAT!r}.")
    missing: list[str] = []
    try:
        eps = None if described.get("eps") is None else float(described["eps"])
        norm = None if described.get("norm") is None else str(described["norm"])
        if eps is not None and not (math.isfinite(eps) and eps > 0):
            raise ValueError(f"eps must be positive, got {eps}")
        pools = [str(pool) for pool in described.get("pools") or ()]
        rows = tuple(replace(_row(row, path.parent, pools, missing), eps=eps, norm=norm) for row in described["rows"])
        notes = [str(note) for note in described.get("notes") or ()]
        facts = [(name, _words(described[name])) for name in _FACTS if described.get(name) not in (None, [])]
        facts += [
            (str(name), _words(value)) for name, value in dict(described.get("provenance") or {}).items() if value != ""
        ]
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise PumaError(f"{path} is damaged ({type(error).__name__}: {error}); write it again.") from error
    if not any(seed.run or seed.plan or seed.margins or seed.evaluation for row in rows for seed in row.seeds):
        first = f"; the first that is missing: {missing[0]}" if missing else ""
        raise PumaError(f"none of the {len(rows)} rows of {path} leads to a file that is there{first}.")
    title = str(described.get("title") or described.get("experiment") or path.parent.name)
    return Study(title, rows, tuple(facts), tuple(notes + [f"Missing: {name}." for name in missing]),
                 path.resolve().parent.name)  # fmt: skip


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object; anything else raises."""
    try:
        if path.exists() and not path.is_file():
            raise OSError("not a regular file")
        if path.stat().st_size > _MOST_BYTES:
            raise OSError(f"larger than {_MOST_BYTES:,} bytes")
        described = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise PumaError(f"{path} is missing or damaged ({error}); expected a JSON object.") from error
    if not isinstance(described, dict):
        raise PumaError(f"{path} should hold a JSON object, it holds a {type(described).__name__}.")
    return described


def _row(described: Mapping[str, Any], root: Path, pools: list[str], missing: list[str]) -> Row:
    name = str(described["row"])
    seeds = []
    for seed in described["seeds"]:
        found: dict[str, Path | None] = {}
        for kind in ("run", "plan", "margins", "evaluation"):
            place = None if seed.get(kind) is None else root / str(seed[kind])
            if place is not None and not place.exists():
                missing.append(f"{kind} of {name}, seed {seed['seed']} ({place})")
                place = None
            found[kind] = place
        places = tuple(root / str(pool) for pool in seed.get("pools") or pools)
        seeds.append(Seed(int(seed["seed"]), pools=places, **found))
    paper = {_ACCURACIES[key]: float(value) for key, value in dict(described.get("paper") or {}).items()
             if key in _ACCURACIES and value is not None}  # fmt: skip
    if not all(math.isfinite(value) and 0 <= value <= 1 for value in paper.values()):
        raise ValueError(f"paper accuracies of {name!r} must be fractions in [0, 1], got {paper}")
    return Row(name, tuple(seeds), bool(described.get("baseline", False)), paper)


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
