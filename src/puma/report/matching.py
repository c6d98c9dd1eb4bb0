"""Rows out of files that were found: runs, plans, margins, pools and evaluations are matched by their hashes.

Where a file does not say what it was made from, that is called unknown; names decide nothing.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from itertools import permutations, takewhile
from operator import add
from pathlib import Path
from typing import Any

from puma.errors import PumaError
from puma.evaluation import EVALUATION_FILE, EvaluationMetrics, find_evaluations
from puma.files import Link, hash_file, read_links
from puma.planning import Plan
from puma.pools import Pool
from puma.report.rows import (
    ReportRow,
    ReportStudy,
    SeedFiles,
    open_evaluation,
    open_plan,
    open_pool,
    open_run,
    read_margins_origin,
)
from puma.report.samples import read_made_from, read_planned_eps
from puma.report.units import format_radius
from puma.training import RunFolder, RunInputs, TrainConfig, config_to_dict

_MOST_JOINED = 3  # pools that were measured or trained on together
_MOST_POOLS = 12  # of more, the orders of three are too many to try
_MOST_NEIGHBOURS = 2000  # folders near a run that are looked at: a home folder may have any number


@dataclass
class FoundFiles:
    """Files and folders of a kind, in the order they were found; ``notes`` tell of what could not be read."""

    runs: list[Path] = field(default_factory=list)
    margins: list[Path] = field(default_factory=list)
    plans: list[Path] = field(default_factory=list)
    pools: list[Path] = field(default_factory=list)
    evaluations: list[Path] = field(default_factory=list)
    experiments: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _TestKind:
    """What an evaluation was made on; ``place`` is where the images lay and tells nothing apart."""

    pool: str
    eps: float
    norm: str
    place: str = field(default="", compare=False)

    def name_among(self, tests: Iterable["_TestKind"]) -> str:
        """Say what it is in words that tell it from others."""
        tests = list(tests)
        pools, radii = {test.pool for test in tests}, {(test.eps, test.norm) for test in tests}
        words = ["/".join(Path(self.place).parts[-2:]) or f"images {self.pool[:8] or 'unknown'}"]
        words = words if len(pools) > 1 else []
        return ", ".join([*words, *([f"eps {format_radius(self.eps, self.norm)}"] if len(radii) > 1 else [])])


@dataclass(frozen=True)
class _RunRow:
    """A run as a row of one seed, its evaluations by test, and what it shares with the runs of other seeds.

    ``origin`` tells runs with plans made alike apart: the margins behind the plan, else the plan.
    """

    row: ReportRow
    same: dict[str, Any]
    origin: str | None
    tests: dict[_TestKind, Path]

    @property
    def seed(self) -> SeedFiles:
        """The files of its seed."""
        return self.row.seeds[0]


def match_rows(found: FoundFiles, studies: list[ReportStudy]) -> tuple[tuple[ReportRow, ...], list[str]]:
    """Return the rows of what was found and is no part of a study, and notes about them."""
    matcher = _Matcher(found)
    told = _list_files(row for study in studies for row in study.rows)
    runs = [run for run in dict.fromkeys(found.runs) if run.resolve() not in told]
    trained = [matcher.match_run(run) for run in runs]
    used = told | _list_files(run.row for run in trained)
    alone: list[ReportRow] = []
    for path in dict.fromkeys(found.plans):
        if path.resolve() not in used:
            plan = open_plan(path)
            margins = matcher.find_margins(path, plan)
            used |= {margins.resolve()} if margins else set()
            pools = matcher.find_pools(plan.pool_fingerprint, plan.links)
            alone.append(ReportRow(path.stem, (SeedFiles(0, None, pools, path, margins),), eps=read_planned_eps(plan)))
    for path in dict.fromkeys(found.margins):
        if path.resolve() not in used:
            described = read_margins_origin(path)
            pools = matcher.find_pools(str(described["pool_fingerprint"]), read_links(described))
            alone.append(ReportRow(path.stem, (SeedFiles(0, None, pools, None, path),)))
    rows = (*_group_seeds(trained, matcher.notes), *alone)
    return rows, list(dict.fromkeys([*matcher.notes, *_tell_missing(trained)]))


def _tell_missing(trained: list[_RunRow]) -> list[str]:
    names = [run.row.name for run in trained if not run.tests]
    return [f"No evaluation was found for: {', '.join(names)}."] if names else []


def _list_files(rows: Iterable[ReportRow]) -> set[Path]:
    seeds = [seed for row in rows for seed in row.seeds]
    return {path.resolve() for seed in seeds for path in (seed.run, seed.plan, seed.margins) if path}


class _Matcher:
    """Files by their hashes, each hashed once and only when something asks for it; ``notes`` tell what is unknown."""

    def __init__(self, found: FoundFiles) -> None:
        self.found = found
        self.notes = found.notes
        self._hashes: dict[Path, str] = {}
        self._metrics: dict[Path, EvaluationMetrics | None] = {}
        self._pools = self._open_pools(found.pools)
        self._together: dict[str, tuple[Path, ...]] | None = None

    def match_run(self, run: Path) -> _RunRow:
        """Return a run with its plan, margins, pools and evaluations."""
        config, inputs = open_run(run)
        path = self._find_plan(run, inputs)
        plan = None if path is None else open_plan(path)
        places = tuple(map(Path, inputs.pools))
        if not all(_is_there(place, Path.is_dir) for place in places):
            places = self.find_pools(inputs.pool_fingerprint, inputs.links) or places
        tests = self._find_evaluations(run)
        margins = self.find_margins(path, plan) if path and plan else None
        seed = SeedFiles(config.seed, run, places, path, margins, next(iter(tests.values()), None))
        plain = inputs.plan is None and config.online.mode == "off"
        group = f"{inputs.pool_fingerprint} {config.attack.eps} {config.attack.norm} {config.model}"
        row = ReportRow(run.resolve().name, (seed,), plain, {}, config.attack.eps, config.attack.norm, group=group)
        link = _link_of(plan, "margins") if plan else None
        origin = link.hash if link and link.hash else inputs.plan
        return _RunRow(row, _describe_setting(config, inputs, plan), origin, tests)

    def find_margins(self, path: Path, plan: Plan) -> Path | None:
        """Return the margins that a plan was made from, if it says so and they are here."""
        link = _link_of(plan, "margins")
        if plan.links is None or (link and not link.hash):
            self.notes.append(f"Which margins {path.name} was made from is unknown: it does not say.")
        if link is None or not link.hash:
            return None
        margins = self._find_file(link.hash, _list_places(link.path, path), self.found.margins)
        if margins is None:
            self.notes.append(
                f"The margins that {path.name} was made from are not here: {link.path or link.hash[:12]}."
            )
        return margins

    def _find_plan(self, run: Path, inputs: RunInputs) -> Path | None:
        if inputs.plan is None:
            return None
        places = [place for place in _list_places(inputs.plan, run) if _is_there(place)]
        if inputs.plan_fingerprint is None and places:
            self.notes.append(f"Whether the plan of run {run.name} has changed since is unknown: it does not say.")
            return places[0]
        plan = self._find_file(inputs.plan_fingerprint or "", places, self.found.plans)
        if plan is None:
            where = f"has changed since: {places[0]}" if places else f"has moved away: {inputs.plan}"
            self.notes.append(f"The plan of run {run.name} {where}.")
        return plan

    def _find_file(self, wanted: str, first: Iterable[Path], others: Iterable[Path]) -> Path | None:
        return next((path for path in (*first, *others) if _is_there(path) and self._hash(path) == wanted), None)

    def _hash(self, path: Path) -> str:
        if path not in self._hashes:
            self._hashes[path] = hash_file(path)
        return self._hashes[path]

    def _find_evaluations(self, run: Path) -> dict[_TestKind, Path]:
        """Return the evaluations inside a run's folder, and those elsewhere that say they judged it, by test."""
        inside = find_evaluations(run)
        others = [*self.found.evaluations, *_list_neighbours(run)]
        tests: dict[_TestKind, list[tuple[EvaluationMetrics, Path]]] = {}
        for place in dict.fromkeys([*inside, *others]):
            metrics = open_evaluation(place) if place in inside else self._read_outside(place)
            judged = metrics and self._tell_judged(run, metrics)
            if metrics is None or (place not in inside and not judged):
                continue
            if judged is False:
                self.notes.append(
                    f"{place.name} of run {run.name} is left out: it judged other weights than the run's."
                )
                continue
            if judged is None:
                self.notes.append(f"Which weights {place.name} of run {run.name} judged is unknown: it does not say.")
            test = _TestKind(metrics.pool_fingerprint, metrics.eps, metrics.norm, str(metrics.more.get("pool") or ""))
            tests.setdefault(test, []).append((metrics, place))
        for found in tests.values():
            found.sort(key=lambda pair: -max((count.total for count in pair[0].counts.values()), default=0))
            if len(found) > 1:
                names = ", ".join(place.name for _, place in found)
                self.notes.append(f"Run {run.name} has several evaluations on the same test ({names}); "
                                  f"shown is {found[0][1].name}, the one with the most images.")  # fmt: skip
        return {test: found[0][1] for test, found in tests.items()}

    def _read_outside(self, place: Path) -> EvaluationMetrics | None:
        """Read an evaluation that may be of any run; one that cannot be read is of none."""
        if place not in self._metrics:
            try:
                self._metrics[place] = open_evaluation(place)
            except PumaError:
                self._metrics[place] = None
        return self._metrics[place]

    def _tell_judged(self, run: Path, metrics: EvaluationMetrics) -> bool | None:
        """Tell whether an evaluation is of a run's weights; None where it does not say or there are none to compare."""
        folder = RunFolder(run)
        own = {self._hash(path) for path in (folder.model, folder.best) if path.is_file()}
        links = [link for link in read_links(metrics.more) or () if link.kind == "weights" and link.hash]
        if links:
            return any(link.hash in own for link in links) if own else None
        model = metrics.more.get("model")  # without a hash, the name of the run that the file itself gives
        return True if isinstance(model, str) and Path(model).name == run.resolve().name else None

    def find_pools(self, fingerprint: str, links: tuple[Link, ...] | None) -> tuple[Path, ...]:
        """Return the folders of the pool with this fingerprint, also of several put together; empty if not here."""
        for path, pool in self._pools.items():
            if pool.fingerprint == fingerprint:
                return (path,)
        for link in links or ():
            places = _split_places(link.path) if link.kind == "pool" and link.hash == fingerprint else ()
            try:
                if places and open_pool(places).fingerprint == fingerprint:
                    return places
            except (PumaError, OSError):
                continue
        if self._together is None:
            self._together = self._join_pools()
        return self._together.get(fingerprint, ())

    def _open_pools(self, paths: list[Path]) -> dict[Path, Pool]:
        opened = {}
        for path in dict.fromkeys(paths):
            try:
                opened[path] = open_pool([path])
            except (PumaError, OSError) as error:
                self.notes.append(f"A pool cannot be opened: {error}")
        return opened

    def _join_pools(self) -> dict[str, tuple[Path, ...]]:
        """Return every few pools put together, in every order, by fingerprint."""
        pools: dict[str, tuple[Path, ...]] = {}
        counts = range(2, _MOST_JOINED + 1) if len(self._pools) <= _MOST_POOLS else ()
        for places in (places for count in counts for places in permutations(self._pools, count)):
            with suppress(PumaError):  # images of another size or other classes
                pools.setdefault(reduce(add, (self._pools[place] for place in places)).fingerprint, places)
        return pools


def _link_of(plan: Plan, kind: str) -> Link | None:
    return next((link for link in plan.links or () if link.kind == kind), None)


def _split_places(path: str) -> tuple[Path, ...]:
    """Return the folders that a hint names: one, or several put together."""
    for sign in (None, os.pathsep, " + "):
        places = tuple(Path(part) for part in (path.split(sign) if sign else [path]))
        if path and all(_is_there(place, Path.is_dir) for place in places):
            return places
    return ()


def _is_there(path: Path, is_kind: Callable[[Path], bool] = Path.is_file) -> bool:
    """Tell whether a file is there; a name out of a file may be no path at all, such as one of 9,000 letters."""
    try:
        return is_kind(path)
    except (OSError, ValueError):
        return False


def _list_places(name: str, user: Path) -> list[Path]:
    """Return where a file may be that ``user`` was made from: where it was, or under its name nearby."""
    if not name:
        return []
    near = [user.resolve().parent, *_list_folders(user.resolve().parent.parent)]
    return list(dict.fromkeys([Path(name), *(folder / Path(name).name for folder in near)]))


def _list_neighbours(run: Path) -> list[Path]:
    """Return folders beside the folder of a run that hold an evaluation."""
    folders = [place for folder in _list_folders(run.resolve().parent.parent) for place in _list_folders(folder)]
    return [place for place in folders[:_MOST_NEIGHBOURS] if (place / EVALUATION_FILE).is_file()]


def _list_folders(folder: Path) -> list[Path]:
    try:
        entries = [entry for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return []
    return sorted(Path(entry) for entry in entries[:_MOST_NEIGHBOURS])


def _describe_setting(config: TrainConfig, inputs: RunInputs, plan: Plan | None) -> dict[str, Any]:
    """Return what runs that differ only in their seed share: each seed has a plan of its own, made alike."""
    told = {} if plan is None else read_made_from(plan)
    made_alike = {name: value for name, value in told.items() if name not in ("pruning.seed", "unscored")}
    untold = dict.fromkeys(("plan_fingerprint", "links", "image_size"))
    shared = {**asdict(inputs), **untold, "plan": made_alike or inputs.plan}
    return {**config_to_dict(replace(config, seed=0)), **shared}


def _group_seeds(trained: list[_RunRow], notes: list[str]) -> list[ReportRow]:
    """Runs that differ in nothing but the seed become one row; the first of a group without a plan is its baseline.

    A row that was tested on several kinds of images, or at several radii, is there once for each.
    """
    rows: list[list[ReportRow]] = []
    for members in _list_alike(trained, notes):
        members = sorted(members, key=lambda run: run.seed.seed)
        row = replace(members[0].row, name=_name_in_common([run.row.name for run in members]))
        tests = list(dict.fromkeys(test for run in members for test in run.tests))
        whole = tuple(replace(run.seed, evaluation=run.tests.get(tests[0]) if tests else None) for run in members)
        more = [
            replace(row, name=f"{row.name} ({test.name_among(tests)})",
                    seeds=tuple(replace(run.seed, run=None, margins=None, evaluation=run.tests[test])
                                for run in members if test in run.tests))
            for test in tests[1:]
        ]  # fmt: skip
        name = f"{row.name} ({tests[0].name_among(tests)})" if more else row.name
        rows.append([replace(row, name=name, seeds=whole), *more])
    groups = list(dict.fromkeys(row.group for row, *_ in rows))
    rows.sort(key=lambda row: (groups.index(row[0].group), not row[0].baseline))
    first = {row[0].group: row for row in reversed(rows) if row[0].baseline}
    return [replace(one, baseline=row is first.get(one.group)) for row in rows for one in row]


def _list_alike(trained: list[_RunRow], notes: list[str]) -> list[list[_RunRow]]:
    """Put the seeds of a setting together; where a seed comes more than once, those whose plans have one origin.

    Plans made alike may have been made from margins of different models, so that two settings look like one.
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
        twice = max(Counter(run.seed.seed for run in kind).values()) > 1
        apart = twice and len({run.origin for run in kind}) > 1
        own: list[list[_RunRow]] = []
        for run in kind:
            fitting = (group for group in own if run.seed.seed not in {member.seed.seed for member in group}
                       and not (apart and group[0].origin != run.origin))  # fmt: skip
            group = next(fitting, None)
            if group is None:
                own.append([run])
            else:
                group.append(run)
        if apart and len(own) == len(kind):
            names = ", ".join(run.row.name for run in kind)
            notes.append(f"Which of these runs are seeds of one setting is unknown, so each has a row: {names}.")
        groups += own
    return groups


def _name_in_common(names: list[str]) -> str:
    """Return the name that runs share, without their seed at its end; the first one's where they share no words."""
    if len(names) == 1:
        return names[0]
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    common = re.sub(r"[-_. ]*(seed)?[-_. ]*\d*$", "", "".join(letters[0] for letters in alike))
    whole = all(re.match(r"[-_. \d]|seed|$", name[len(common) :]) for name in names)
    return common if common and whole else names[0]
