"""Compute many results on several cores, with a cache; the same numbers for any number of jobs."""

import multiprocessing
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict
from typing import TypeVar

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from puma.errors import PumaError
from puma.perceptron.cache import Cache, Record
from puma.perceptron.curves import Curve, CurveKey, trace
from puma.perceptron.points import Outcome, Point, compute, groups
from puma.progress import Advance, progress_bar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_FLUSH = 32  # results between two writes of the cache


def run_points(points: Sequence[Point], cache: Cache, *, jobs: int = 1, progress: bool = True) -> dict[Point, Outcome]:
    """Return the outcome of every point; those that the cache has are not computed again."""
    wanted = list(dict.fromkeys(points))
    missing = [point for point in wanted if cache.get(point.key) is None]
    work = shuffled(groups(missing))
    with progress_bar("students", len(wanted), unit="points", enabled=progress) as advance:
        advance(len(wanted) - len(missing))
        _fill(cache, work, compute, _point_records, jobs, advance)
    return {point: _outcome(cache.get(point.key)) for point in wanted}


def run_curves(
    keys: Sequence[CurveKey], cache: Cache, *, jobs: int = 1, progress: bool = True
) -> dict[CurveKey, Curve]:
    """Return the theory curve of every key, from the cache where it is known."""
    wanted = list(dict.fromkeys(keys))
    missing = [key for key in wanted if cache.get(key.key) is None]
    with progress_bar("theory", len(wanted), unit="curves", enabled=progress) as advance:
        advance(len(wanted) - len(missing))
        _fill(cache, shuffled(missing), trace, _curve_records, jobs, advance)
    return {key: Curve.from_record(_known(cache.get(key.key))) for key in wanted}


def shuffled(items: Sequence[Item]) -> list[Item]:
    """Return the items in a fixed random order, dear ones among cheap ones, for a fair estimate of time."""
    return random.Random(0).sample(list(items), len(items))


def _fill(
    cache: Cache,
    work: Sequence[Item],
    function: Callable[[Item], Answer],
    records: Callable[[Item, Answer], dict[str, Record]],
    jobs: int,
    advance: Advance,
) -> None:
    waiting: dict[str, Record] = {}
    with answers(function, work, jobs) as stream:
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
def answers(
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


def _point_records(group: list[Point], outcomes: list[Outcome]) -> dict[str, Record]:
    return {point.key: asdict(outcome) for point, outcome in zip(group, outcomes, strict=True)}


def _curve_records(key: CurveKey, curve: Curve) -> dict[str, Record]:
    return {key.key: curve.record()}


def _outcome(record: Record | None) -> Outcome:
    return Outcome(**_known(record))


def _known(record: Record | None) -> Record:
    assert record is not None, "every wanted result has just been computed"
    return record
