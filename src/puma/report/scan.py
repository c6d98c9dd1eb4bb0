"""Find results below folders: runs, margins, plans and pools, and experiments that say which belong together."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from puma.errors import PumaError
from puma.evaluation import EVALUATION_FILE
from puma.margins import is_margins
from puma.planning import is_plan
from puma.pools import is_pool
from puma.report.experiment_record import RECORD_FILE, read_experiment
from puma.report.matching import FoundFiles, match_rows
from puma.report.rows import ReportStudy, join_studies
from puma.tables import read_head
from puma.training import RunFolder

DEPTH = 4  # folders: deep enough for experiments in a folder of experiments, not for a disk
_MOST_FOLDERS = 20_000  # a home folder given by mistake


def read_study(paths: Sequence[Path]) -> ReportStudy:
    """Read what the paths hold: run folders, folders of results, margins and plans, or experiment.json.

    What an experiment names is not listed a second time.
    """
    if not paths:
        raise PumaError("give at least one run, folder of results or experiment.json to report on.")
    found = FoundFiles()
    for path in paths:
        if path.is_file() and path.name == RECORD_FILE:
            found.experiments.append(path)
        elif path.is_dir():
            _search(path, found, DEPTH)
        elif path.suffix == ".parquet" and path.is_file():
            named = len(found.margins) + len(found.plans)
            _sort_table(path, found)
            if len(found.margins) + len(found.plans) == named:
                why = found.notes.pop().removeprefix("A table cannot be read: ") if found.notes else ""
                raise PumaError(why or f"{path} is neither margins nor a plan; give one of those, or a folder of them.")
        elif path.is_file():
            raise PumaError(f"{path} is a file; give margins, a plan, an {RECORD_FILE} or the folder it lies in.")
        else:
            raise PumaError(f"no such file or folder: {path}.")
    studies = [read_experiment(path) for path in {path.resolve(): path for path in found.experiments}.values()]
    rows, notes = match_rows(found, studies)
    if rows:
        names = [path.resolve().name if path.is_dir() else path.stem for path in paths if path.name != RECORD_FILE]
        title = ", ".join(dict.fromkeys(names))
        studies.append(ReportStudy(title, rows, notes=tuple(notes), place=title))
    if not studies:
        places = ", ".join(map(str, paths))
        damaged = f" {found.notes[0]}" if found.notes else ""
        raise PumaError(
            f"nothing to report on in {places}: expected a run of puma train, margins, a plan or {RECORD_FILE}, at "
            f"most {DEPTH} folders deep.{damaged}"
        )
    return join_studies(studies)


def _search(folder: Path, found: FoundFiles, depth: int) -> None:
    for place in _walk(folder, depth):
        if (place / RECORD_FILE).is_file():
            found.experiments.append(place / RECORD_FILE)
        elif RunFolder(place).has_config and (place == folder or RunFolder(place).is_run()):
            found.runs.append(place)
        elif is_pool(place):
            found.pools.append(place)
        elif (place / EVALUATION_FILE).is_file():
            found.evaluations.append(place)
        else:
            for path in sorted(place.glob("*.parquet")):
                _sort_table(path, found)


def _sort_table(path: Path, found: FoundFiles) -> None:
    """Put a table where it belongs by what it says of itself; what is neither margins nor a plan is passed over."""
    try:
        head = read_head(path, "margins or a plan")
    except (PumaError, OSError) as error:
        found.notes.append(f"A table cannot be read: {error}")
        return
    if is_margins(head):
        found.margins.append(path)
    elif is_plan(head):
        found.plans.append(path)


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
        if left and not (is_pool(place) or (place / RECORD_FILE).is_file() or RunFolder(place).has_config):
            inner = (entry for entry in os.scandir(place) if entry.is_dir())
            names = sorted(entry.name for entry in inner if not entry.name.startswith("."))
            waiting += [(place / name, left - 1) for name in names if not name.endswith(".parts")]
