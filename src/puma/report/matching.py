"""Rows out of files that were found: which runs, plans, margins and pools belong together."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from puma.errors import PumaError
from puma.evaluation import EVALUATION_FILE, find_evaluations
from puma.report.rows import ReportRow, ReportStudy, SeedFiles, open_plan, open_pool, open_run, read_pool_fingerprint
from puma.report.samples import read_made_from, read_planned_eps
from puma.training.config import TrainConfig, config_to_dict
from puma.training.run_folder import RunInputs


@dataclass
class FoundFiles:
    """What lies below the folders that were given."""

    runs: list[Path] = field(default_factory=list)
    margins: list[Path] = field(default_factory=list)
    plans: list[Path] = field(default_factory=list)
    pools: list[Path] = field(default_factory=list)
    experiments: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class _RunRow:
    """A run as a row of one seed, and what it shares with the runs of other seeds."""

    row: ReportRow
    same: dict[str, Any]
    plan: str | None


def match_rows(found: FoundFiles, studies: list[ReportStudy]) -> tuple[tuple[ReportRow, ...], list[str]]:
    """Return the rows of what was found and is no part of a study, and notes about them."""
    told = _files(row for study in studies for row in study.rows)
    margins = {path: read_pool_fingerprint(path) for path in dict.fromkeys(found.margins)}
    notes: list[str] = []
    pools = _opened(found.pools, notes)
    runs = [run for run in dict.fromkeys(found.runs) if run.resolve() not in told]
    trained = [_trained(run, found, margins, pools, notes) for run in runs]
    used = told | _files(run.row for run in trained)
    alone: list[ReportRow] = []
    for path in dict.fromkeys(found.plans):
        if path.resolve() not in used:
            plan = open_plan(path)
            fitting = [file for file, pool in margins.items() if pool == plan.pool_fingerprint]
            match = _nearest(path, fitting, notes)
            used |= {match.resolve()} if match else set()
            place = pools.get(plan.pool_fingerprint, ())
            alone.append(ReportRow(path.stem, (SeedFiles(0, None, place, path, match),), eps=read_planned_eps(plan)))
    alone += [
        ReportRow(path.stem, (SeedFiles(0, None, pools.get(pool, ()), None, path),))
        for path, pool in margins.items()
        if path.resolve() not in used
    ]
    rows = (*_grouped(trained, notes), *alone)
    return rows, list(dict.fromkeys([*notes, *_not_found(trained)]))


def _not_found(trained: list[_RunRow]) -> list[str]:
    seeds = [(run.row.name, run.row.seeds[0]) for run in trained]
    kinds = {
        "No evaluation was found for": [name for name, seed in seeds if seed.evaluation is None],
        "No margins were found for what these runs pruned, only the plan":
            [name for name, seed in seeds if seed.plan and seed.margins is None],
    }  # fmt: skip
    return [f"{words}: {', '.join(names)}." for words, names in kinds.items() if names]


def _files(rows: Iterable[ReportRow]) -> set[Path]:
    seeds = [seed for row in rows for seed in row.seeds]
    return {path.resolve() for seed in seeds for path in (seed.run, seed.plan, seed.margins) if path}


def _opened(paths: list[Path], notes: list[str]) -> dict[str, tuple[Path, ...]]:
    """Return pools by fingerprint; those that cannot be opened become notes."""
    pools: dict[str, tuple[Path, ...]] = {}
    for path in paths:
        try:
            pools[open_pool([path]).fingerprint] = (path,)
        except (PumaError, OSError) as error:
            notes.append(f"A pool cannot be opened: {error}")
    return pools


def _trained(
    path: Path, found: FoundFiles, margins: dict[Path, str], pools: dict[str, tuple[Path, ...]], notes: list[str]
) -> _RunRow:
    config, inputs = open_run(path)
    plan = _moved(inputs.plan, path, found.plans)
    if inputs.plan and plan is None:
        notes.append(f"The plan of run {path.name} has moved away: {inputs.plan}.")
    near = [file for file, pool in margins.items() if pool == inputs.pool_fingerprint] if plan else []
    if plan and not near:
        near = _margins_beside(plan, inputs)
    places = tuple(map(Path, inputs.pools))
    if not all(place.is_dir() for place in places):
        places = pools.get(inputs.pool_fingerprint, places)
    seed = SeedFiles(config.seed, path, places, plan, _nearest(plan, near, notes) if plan else None,
                _evaluation(path, notes))  # fmt: skip
    plain = plan is None and inputs.plan is None and config.online.mode == "off"
    group = f"{inputs.pool_fingerprint} {config.attack.eps} {config.attack.norm} {config.model}"
    row = ReportRow(path.resolve().name, (seed,), plain, {}, config.attack.eps, config.attack.norm, group=group)
    return _RunRow(row, _same(config, inputs, plan), inputs.plan)


def _same(config: TrainConfig, inputs: RunInputs, plan: Path | None) -> dict[str, Any]:
    """Return what runs that differ only in their seed share: each seed has a plan of its own, made alike."""
    made_alike = {name: value for name, value in read_made_from(open_plan(plan)).items()
                  if name not in ("pruning.seed", "unscored")} if plan else None  # fmt: skip
    shared = {**asdict(inputs), "plan": made_alike or inputs.plan, "plan_fingerprint": None}
    return {**config_to_dict(replace(config, seed=0)), **shared}


def _evaluation(run: Path, notes: list[str]) -> Path | None:
    """Return the evaluation in the run's folder, or the one that ``puma run`` put beside the folder of runs."""
    inside = find_evaluations(run)
    beside = run.resolve().parent.parent / "evaluations"
    pattern = re.compile(rf"{re.escape(run.resolve().name)}-[0-9a-f]{{10}}")
    outside = sorted(place for place in beside.glob("*") if pattern.fullmatch(place.name)) if not inside else []
    evaluations = inside or [place for place in outside if (place / EVALUATION_FILE).is_file()]
    if len(evaluations) > 1:
        names = ", ".join(place.name for place in evaluations)
        notes.append(f"Run {run.name} has several evaluations ({names}); the one shown is the first.")
    return evaluations[0] if evaluations else None


def _moved(name: str | None, run: Path, known: list[Path]) -> Path | None:
    """Return where a run's plan is: where it was, or a file of its name near the run or among those found."""
    if name is None:
        return None
    near = [run.parent / Path(name).name, run.resolve().parent.parent / "plans" / Path(name).name]
    places = [Path(name), *near, *(path for path in known if path.name == Path(name).name)]
    return next((place for place in places if place.is_file()), None)


def _margins_beside(plan: Path, inputs: RunInputs) -> list[Path]:
    files = sorted(plan.parent.glob("margins*.parquet"))
    return [file for file in files if read_pool_fingerprint(file) == inputs.pool_fingerprint]


def _nearest(plan: Path, files: list[Path], notes: list[str]) -> Path | None:
    """Return the margins file that goes with a plan: plan-X and margins-X, then the same folder, then the first."""
    if not files:
        return None
    ending = plan.stem.removeprefix("plan")
    by_rank = sorted(files, key=lambda file: _rank(file, plan, ending))
    alike = [file for file in by_rank if _rank(file, plan, ending) == _rank(by_rank[0], plan, ending)]
    if len(alike) > 1:
        names = ", ".join(file.name for file in alike)
        notes.append(
            f"Which margins {plan.name} was made from is not known: {names} fit its pool, {by_rank[0].name} is shown."
        )
    return by_rank[0]


def _rank(file: Path, plan: Path, ending: str) -> tuple[bool, bool]:
    return file.stem.removeprefix("margins") != ending, file.parent != plan.parent


def _grouped(trained: list[_RunRow], notes: list[str]) -> list[ReportRow]:
    """Runs that differ in nothing but the seed become one row; the first of a group without a plan is its baseline."""
    rows: list[ReportRow] = []
    for members in _alike(trained, notes):
        names = [run.row.name for run in members]
        seeds = sorted((run.row.seeds[0] for run in members), key=lambda seed: seed.seed)
        rows.append(replace(members[0].row, name=_common(names), seeds=tuple(seeds)))
    groups = list(dict.fromkeys(row.group for row in rows))
    rows.sort(key=lambda row: (groups.index(row.group), not row.baseline))
    first = {row.group: row for row in reversed(rows) if row.baseline}
    return [replace(row, baseline=row is first.get(row.group)) for row in rows]


def _alike(trained: list[_RunRow], notes: list[str]) -> list[list[_RunRow]]:
    """Put the seeds of a setting together; where plans made alike come more than once a seed, only those of one file.

    A plan does not say which margins it was made from, so that two settings may look like one.
    """
    kinds: list[list[_RunRow]] = []
    for run in trained:
        kind = next((kind for kind in kinds if kind[0].same == run.same), None)
        if kind is None:
            kinds.append([run])
        else:
            kind.append(run)
    groups: list[list[_RunRow]] = []
    for kind in kinds:
        twice = max(Counter(run.row.seeds[0].seed for run in kind).values()) > 1
        apart = twice and len({run.plan for run in kind}) > 1
        if apart:
            names = ", ".join(run.row.name for run in kind)
            notes.append(f"Which of these runs are seeds of one setting is not known, so each has a row: {names}.")
        own: list[list[_RunRow]] = []
        for run in kind:
            seed = run.row.seeds[0].seed
            fitting = (
                group
                for group in own
                if seed not in {member.row.seeds[0].seed for member in group}
                and not (apart and group[0].plan != run.plan)
            )
            group = next(fitting, None)
            if group is None:
                own.append([run])
            else:
                group.append(run)
        groups += own
    return groups


def _common(names: list[str]) -> str:
    """Return the name that runs share once their seed, and what ``puma run`` puts behind it, is taken off its end."""
    if len(names) == 1:
        return names[0]
    numbered = re.compile(r"[-_. ]*seed[-_. ]*\d+(-[0-9a-f]{10})?$")
    bare = {numbered.sub("", name) if numbered.search(name) else re.sub(r"[-_. ]*\d+$", "", name) for name in names}
    return bare.pop() or names[0] if len(bare) == 1 else names[0]
