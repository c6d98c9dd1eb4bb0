"""Find results in folders: runs, margins, plans and pools that belong together become rows."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from puma.errors import PumaError
from puma.report.experiment import FILE, read_experiment
from puma.report.planned import planned_eps
from puma.report.reading import measured_on, open_plan, open_pool, open_run
from puma.report.study import Row, Seed, Study, joined
from puma.training.config import to_dict
from puma.training.run_folder import Inputs

DEPTH = 4
_MOST_FOLDERS = 20_000


@dataclass
class Found:
    """What lies below the folders that were given."""

    runs: list[Path] = field(default_factory=list)
    margins: list[Path] = field(default_factory=list)
    plans: list[Path] = field(default_factory=list)
    pools: list[Path] = field(default_factory=list)
    experiments: list[Path] = field(default_factory=list)


def read_study(paths: Sequence[Path]) -> Study:
    """Read what the paths hold: run folders, folders of results, or experiment.json."""
    if not paths:
        raise PumaError("give at least one run, folder of results or experiment.json to report on.")
    found = Found()
    for path in paths:
        if path.is_file() and path.name == FILE:
            found.experiments.append(path)
        elif path.is_dir():
            _search(path, found, DEPTH)
        elif path.is_file():
            raise PumaError(f"{path} is a file; give the folder it lies in, or an {FILE}.")
        else:
            raise PumaError(f"no such file or folder: {path}.")
    studies = [read_experiment(path) for path in dict.fromkeys(found.experiments)]
    rows, notes = _rows(found)
    if rows:
        title = ", ".join(dict.fromkeys(path.resolve().name for path in paths if path.is_dir()))
        studies.append(Study(title, rows, notes=tuple(notes)))
    if not studies:
        places = ", ".join(map(str, paths))
        raise PumaError(
            f"nothing to report on in {places}: expected a run of puma train, margins*.parquet, plan*.parquet or "
            f"{FILE}, at most {DEPTH} folders deep."
        )
    return joined(studies)


def _search(folder: Path, found: Found, depth: int) -> None:
    for place in _walk(folder, depth):
        if (place / FILE).is_file():
            found.experiments.append(place / FILE)
        elif (place / "config.json").is_file() and (place == folder or _is_run(place)):
            found.runs.append(place)
        elif (place / "pool.json").is_file():
            found.pools.append(place)
        else:
            found.margins += sorted(place.glob("margins*.parquet"))
            found.plans += sorted(place.glob("plan*.parquet"))


def _is_run(folder: Path) -> bool:
    """Whether config.json is of a run: other programs have files of that name."""
    with (folder / "config.json").open("rb") as file:
        return b'"puma-run-' in file.read(1000)


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    """Yield folders from the top down; what is hidden, or inside a run, a pool or an experiment, is passed over."""
    waiting, seen = [(folder, depth)], set[Path]()
    while waiting:
        place, left = waiting.pop(0)
        if place.resolve() in seen:
            continue  # a link to where we have been
        seen.add(place.resolve())
        if len(seen) > _MOST_FOLDERS:
            raise PumaError(f"{folder} holds more than {_MOST_FOLDERS:,} folders; name the ones to report on.")
        yield place
        if left and not any((place / name).is_file() for name in (FILE, "config.json", "pool.json")):
            inner = (entry for entry in os.scandir(place) if entry.is_dir())
            names = sorted(entry.name for entry in inner if not entry.name.startswith("."))
            waiting += [(place / name, left - 1) for name in names if not name.endswith(".parts")]


def _rows(found: Found) -> tuple[tuple[Row, ...], list[str]]:
    margins = {path: measured_on(path) for path in dict.fromkeys(found.margins)}
    plans = {path: open_plan(path) for path in dict.fromkeys(found.plans)}
    notes: list[str] = []
    pools = _opened(found.pools, notes)
    rows = [_row_of_run(run, found, margins, pools, notes) for run in dict.fromkeys(found.runs)]
    used = {seed.plan for _, row in rows for seed in row.seeds} | {
        seed.margins for _, row in rows for seed in row.seeds
    }
    alone: list[Row] = []
    for path, plan in plans.items():
        if path not in used:
            match = _nearest(path, [file for file, pool in margins.items() if pool == plan.pool_fingerprint])
            used.add(match)
            place = pools.get(plan.pool_fingerprint, ())
            alone.append(Row(path.stem, (Seed(0, None, place, path, match),), eps=planned_eps(plan)))
    alone += [
        Row(path.stem, (Seed(0, None, pools.get(pool, ()), None, path),))
        for path, pool in margins.items()
        if path not in used
    ]
    return (*_grouped(rows), *alone), notes


def _opened(paths: list[Path], notes: list[str]) -> dict[str, tuple[Path, ...]]:
    """Return pools by fingerprint; those that cannot be opened become notes."""
    pools: dict[str, tuple[Path, ...]] = {}
    for path in paths:
        try:
            pools[open_pool([path]).fingerprint] = (path,)
        except (PumaError, OSError) as error:
            notes.append(f"A pool cannot be opened: {error}")
    return pools


def _row_of_run(
    path: Path, found: Found, margins: dict[Path, str], pools: dict[str, tuple[Path, ...]], notes: list[str]
) -> tuple[dict[str, Any], Row]:
    config, inputs = open_run(path)
    plan = _moved(inputs.plan, path, found.plans)
    if inputs.plan and plan is None:
        notes.append(f"The plan of run {path.name} has moved away: {inputs.plan}.")
    near = [file for file, pool in margins.items() if pool == inputs.pool_fingerprint] if plan else []
    if plan and not near:
        near = _margins_beside(plan, inputs)
    evaluations = sorted(file.parent for file in path.glob("evaluation*/metrics.json"))
    if len(evaluations) > 1:
        names = ", ".join(place.name for place in evaluations)
        notes.append(f"Run {path.name} has several evaluations ({names}); the one shown is the first.")
    evaluation = evaluations[0] if evaluations else None
    places = tuple(map(Path, inputs.pools))
    if not all(place.is_dir() for place in places):
        places = pools.get(inputs.pool_fingerprint, places)
    seed = Seed(config.seed, path, places, plan, _nearest(plan, near) if plan else None, evaluation)
    row = Row(path.resolve().name, (seed,), plan is None and config.online.mode == "off", {}, config.attack.eps,
              config.attack.norm)  # fmt: skip
    same = {**to_dict(replace(config, seed=0)), **asdict(inputs)}
    return same, row


def _moved(name: str | None, run: Path, known: list[Path]) -> Path | None:
    """Return where a run's plan is: where it was, or a file of its name near the run or among those found."""
    if name is None:
        return None
    places = [Path(name), run.parent / Path(name).name, *(path for path in known if path.name == Path(name).name)]
    return next((place for place in places if place.is_file()), None)


def _margins_beside(plan: Path, inputs: Inputs) -> list[Path]:
    files = sorted(plan.parent.glob("margins*.parquet"))
    return [file for file in files if measured_on(file) == inputs.pool_fingerprint]


def _nearest(plan: Path | None, files: list[Path]) -> Path | None:
    """Return the margins file that goes with a plan: plan-X and margins-X, then the same folder, then the first."""
    if plan is None or not files:
        return None
    ending = plan.stem.removeprefix("plan")
    return min(files, key=lambda file: (file.stem.removeprefix("margins") != ending, file.parent != plan.parent))


def _grouped(rows: list[tuple[dict[str, Any], Row]]) -> list[Row]:
    """Runs that differ in nothing but the seed become one row; the first row without a plan is the baseline."""
    groups: list[tuple[dict[str, Any], list[Row]]] = []
    for same, row in rows:
        for known, members in groups:
            if known == same and row.seeds[0].seed not in {member.seeds[0].seed for member in members}:
                members.append(row)
                break
        else:
            groups.append((same, [row]))
    merged = [
        replace(members[0], name=_common([row.name for row in members]), seeds=tuple(row.seeds[0] for row in members))
        for _, members in groups
    ]
    merged.sort(key=lambda row: not row.baseline)
    first = next((row for row in merged if row.baseline), None)
    return [replace(row, baseline=row is first) for row in merged]


def _common(names: list[str]) -> str:
    """Return the name that runs share once their seed's number is taken off its end."""
    bare = {re.sub(r"[-_. ]*(seed)?[-_. ]*\d+$", "", name) for name in names}
    return bare.pop() or names[0] if len(names) > 1 and len(bare) == 1 else names[0]
