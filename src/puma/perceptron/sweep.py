"""Compute many points and curves on several cores, with a cache; the same numbers for any number of jobs."""

import hashlib
import json
import multiprocessing
import os
import random
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from puma.errors import PumaError
from puma.files import open_regular
from puma.perceptron.problem import Array, PerceptronTask, draw_training_set, measure_overlap
from puma.perceptron.students import Logistic, Student, StudentStatus, clean_start, student_name, train_student
from puma.perceptron.theory import CurveKey, TheoryCurve, fingerprint_code, trace_curve
from puma.progress import Advance, progress_bar

Record = dict[str, Any]
Item = TypeVar("Item")
Answer = TypeVar("Answer")

_NUMERIC = ("newton", "problem", "students", "sweep")  # the modules whose source decides the numbers of a point
_FLUSH = 32  # results between two writes of the cache


@dataclass(frozen=True)
class StudyPoint:
    """Everything that the number depends on."""

    task: PerceptronTask
    student: Student
    eps: float
    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.eps < np.inf:
            raise PumaError(f"the attack strength must be 0 or more, got {self.eps}; change --figures.")

    @property
    def key(self) -> str:
        """A text that differs whenever the number could: the configuration and the code's fingerprint."""
        described = {"student_name": student_name(self.student), **asdict(self)}
        return f"{code_fingerprint()} {json.dumps(described, sort_keys=True)}"


@dataclass(frozen=True)
class StudentOutcome:
    """What came out. ``error`` and ``angle`` are NaN when there is no student (status ``not separable``)."""

    error: float
    angle: float
    norm: float
    status: StudentStatus


def code_fingerprint() -> str:
    """Return a hash of the code behind the points."""
    return fingerprint_code(*_NUMERIC)


def group_points(points: Iterable[StudyPoint]) -> list[list[StudyPoint]]:
    """Collect the points that share their samples: they differ in ``eps`` only."""
    found: dict[tuple[object, ...], list[StudyPoint]] = {}
    for point in points:
        samples = (point.task, point.eps if point.task.pruning.filtered else None, point.seed)
        found.setdefault((*samples, point.student), []).append(point)
    return list(found.values())


def compute_points(group: Sequence[StudyPoint]) -> list[StudentOutcome]:
    """Compute points that share their samples, in order; a point's number does not depend on its company."""
    first = group[0]
    drawn = draw_training_set(first.task, first.eps, first.seed)
    start: Array | None = None
    if isinstance(first.student, Logistic):
        start = clean_start(drawn.samples, ridge=first.student.ridge)
    outcomes = []
    for point in group:
        trained = train_student(point.student, drawn.samples, point.eps, seed=point.seed, start=start)
        if trained.status == "not separable":
            outcomes.append(StudentOutcome(np.nan, np.nan, np.nan, trained.status))
            continue
        agreement = measure_overlap(trained.weights, drawn.teacher)
        norm = float(np.linalg.norm(trained.weights))
        outcomes.append(StudentOutcome(agreement.error, agreement.angle, norm, trained.status))
    return outcomes


class ResultCache:
    """An append-only file of results by key.

    A line is written whole or, when the process dies, cut off; a line that does not parse is ignored and its
    result computed again. A key holds everything that a result depends on, so old lines never mislead.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: dict[str, Record] = {}
        if path.exists():
            with open_regular(path, "the results of a study, points.jsonl") as file:
                lines = file.read().splitlines()
            for line in lines:
                try:
                    entry = json.loads(line)
                    if entry.get("sum", checked := _sum_record(entry["record"])) == checked:  # older lines have none
                        self._records[entry["key"]] = entry["record"]
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    continue

    def get(self, key: str) -> Record | None:
        """Return the record of a key, or None."""
        return self._records.get(_hash_key(key))

    def add(self, entries: dict[str, Record]) -> None:
        """Store records, in memory and on disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            json.dumps({"key": _hash_key(key), "record": record, "sum": _sum_record(record)})
            for key, record in entries.items()
        ]
        with self.path.open("ab") as file:
            # a line feed first: what stands before may have been cut off
            file.write(("\n" + "\n".join(lines)).encode() if lines else b"")
        self._records.update({_hash_key(key): record for key, record in entries.items()})


def _sum_record(record: Record) -> int:
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())


def _hash_key(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def run_points(
    points: Sequence[StudyPoint], cache: ResultCache, *, jobs: int = 1, progress: bool = True
) -> dict[StudyPoint, StudentOutcome]:
    """Return the outcome of every point; those that the cache has are not computed again."""
    wanted = list(dict.fromkeys(points))
    missing = [point for point in wanted if cache.get(point.key) is None]
    work = shuffle_work(group_points(missing))
    with progress_bar("students", len(wanted), unit="points", enabled=progress) as advance:
        advance(len(wanted) - len(missing))
        _fill_cache(cache, work, compute_points, _point_records, jobs, advance)
    return {point: StudentOutcome(**_require_record(cache.get(point.key))) for point in wanted}


def run_curves(
    keys: Sequence[CurveKey], cache: ResultCache, *, jobs: int = 1, progress: bool = True
) -> dict[CurveKey, TheoryCurve]:
    """Return the theory curve of every key, from the cache where it is known."""
    wanted = list(dict.fromkeys(keys))
    missing = [key for key in wanted if cache.get(key.key) is None]
    with progress_bar("theory", len(wanted), unit="curves", enabled=progress) as advance:
        advance(len(wanted) - len(missing))
        _fill_cache(cache, shuffle_work(missing), trace_curve, _curve_records, jobs, advance)
    return {key: TheoryCurve.from_record(_require_record(cache.get(key.key))) for key in wanted}


def shuffle_work(items: Sequence[Item]) -> list[Item]:
    """Return the items in a fixed random order, dear ones among cheap ones, for a fair estimate of time."""
    return random.Random(0).sample(list(items), len(items))


def _fill_cache(
    cache: ResultCache,
    work: Sequence[Item],
    function: Callable[[Item], Answer],
    records: Callable[[Item, Answer], dict[str, Record]],
    jobs: int,
    advance: Advance,
) -> None:
    waiting: dict[str, Record] = {}
    with stream_answers(function, work, jobs) as stream:
        try:
            for item, answer in stream:
                found = records(item, answer)
                waiting.update(found)
                advance(len(found))
                if len(waiting) >= _FLUSH:
                    cache.add(waiting)
                    waiting = {}
        finally:
            cache.add(waiting)


@contextmanager
def stream_answers(
    function: Callable[[Item], Answer], work: Sequence[Item], jobs: int
) -> Iterator[Iterator[tuple[Item, Answer]]]:
    """Yield a stream of (item, function(item)) in any order.

    Linear algebra runs on one thread everywhere, because its rounding depends on the number of threads.
    """
    if jobs < 1:
        raise PumaError(f"the number of jobs must be at least 1, got {jobs}; change --jobs.")
    if jobs == 1 or len(work) <= 1:
        with threadpool_limits(limits=1):
            yield ((item, function(item)) for item in work)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(work)), context, initializer=_begin_worker) as pool:
        futures = {pool.submit(function, item): item for item in work}
        try:
            yield ((futures[done], done.result()) for done in as_completed(futures))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin_worker() -> None:
    threadpool_limits(limits=1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Leave no worker behind when the parent is killed and cannot say goodbye."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _point_records(group: list[StudyPoint], outcomes: list[StudentOutcome]) -> dict[str, Record]:
    return {point.key: asdict(outcome) for point, outcome in zip(group, outcomes, strict=True)}


def _curve_records(key: CurveKey, curve: TheoryCurve) -> dict[str, Record]:
    return {key.key: curve.record()}


def _require_record(record: Record | None) -> Record:
    assert record is not None, "every wanted result has just been computed"
    return record
