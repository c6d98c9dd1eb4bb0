"""Margins of a whole pool: streamed, written in parts, resumable, sharded over ranks.

Every part is measured on its own, so its bits do not depend on which parts were measured before, by which process or
rank: a run that was killed and resumed, or spread over ranks, gives the same file as an undisturbed one.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from puma.attacks.norms import find_norm
from puma.errors import PumaError
from puma.margins.api import check_labels
from puma.margins.checks import check_settings
from puma.margins.job import Job
from puma.margins.meter import Meter, ready
from puma.margins.methods import method_named
from puma.margins.parts import Parts
from puma.margins.ranks import Ranks, ranks
from puma.margins.table import to_arrow, write_whole
from puma.models import fingerprint_model
from puma.pools import Pool, to_unit
from puma.progress import Advance, progress_bar

PART_SIZE = 8192
_BOUNDS = (0.0, 1.0)  # pixels of a pool


def measure_pool(
    model: nn.Module,
    pool: Pool,
    out: str | Path,
    *,
    method: str = "deepfool",
    norm: str = "linf",
    batch_size: int = 128,
    cap: float | None = None,
    part_size: int = PART_SIZE,
    resume: bool = True,
    progress: bool = False,
    autocast: torch.dtype | None = None,
    compiled: bool = False,
) -> Path:
    """Measure every sample of a pool and write ``out`` (parquet); returns its path.

    Finished parts are kept in a folder beside ``out`` until all are there. With ``resume`` a second call goes on after
    the last finished part; if pool, model or settings differ it raises. Under ``torchrun`` the parts are shared among
    the ranks.
    """
    check_settings(batch_size, cap, _BOUNDS)
    if part_size < 1:
        raise PumaError(f"part_size must be at least 1, got {part_size}.")
    if not len(pool):
        raise PumaError("the pool is empty: there is nothing to measure.")
    job = Job(
        pool=pool.fingerprint,
        pool_size=len(pool),
        model=fingerprint_model(model, pool.image_shape),
        method=method,
        config=dataclasses.asdict(method_named(method).config),
        norm=find_norm(norm).name,
        cap=cap,
        batch_size=batch_size,
        part_size=part_size,
        precision=str(autocast or torch.float32).removeprefix("torch.") + (" compiled" if compiled else ""),
    )
    parts = Parts(Path(out), job)
    with ranks() as group:
        if _prepare(parts, resume, group):
            return parts.out
        with contextlib.nullcontext() if group.rank else parts.locked():
            group.wait()
            missing = parts.missing(range(group.rank, job.parts, group.count))
            if missing:
                with ready(
                    model,
                    to_unit(pool.batch(np.arange(min(8, len(pool)))).images),
                    method=method,
                    norm=norm,
                    bounds=_BOUNDS,
                    cap=cap,
                    autocast=autocast,
                    compiled=compiled,
                ) as meter:
                    _measure_parts(meter, pool, parts, missing, progress and group.rank == 0, group)
            group.wait()
            if group.rank == 0:
                parts.merge()
            group.wait()
    return parts.out


def _prepare(parts: Parts, resume: bool, group: Ranks) -> bool:
    """Clear what is not to be resumed; say whether the result is there already."""
    if not resume and group.rank == 0:
        parts.start_over()
    group.wait()
    finished = parts.finished()
    group.wait()
    if finished and group.rank == 0:
        parts.clear()
    return finished


def _measure_parts(meter: Meter, pool: Pool, parts: Parts, missing: list[int], progress: bool, group: Ranks) -> None:
    spans = [parts.job.span(part) for part in missing]
    title = "margins" if group.count == 1 else f"margins (rank 0 of {group.count})"
    with progress_bar(title, sum(stop - start for start, stop in spans), enabled=progress) as advance:
        for part, span in zip(missing, spans, strict=True):
            _measure_part(meter, pool, parts, part, span, advance)


def _measure_part(meter: Meter, pool: Pool, parts: Parts, part: int, span: tuple[int, int], advance: Advance) -> None:
    start, stop = span
    batches = _batches(pool, start, stop, parts.job.batch_size, meter.setting.classes)
    margins = meter.measure(batches, stop - start, parts.job.batch_size, advance=advance)
    sample_id = pool.sample_id[start:stop]
    footer = parts.job.footer()
    write_whole(parts.path(part), [to_arrow(sample_id, margins, footer)], footer)


def _batches(pool: Pool, start: int, stop: int, batch_size: int, classes: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Read batches, the next one while the last is measured."""

    def read(begin: int) -> tuple[Tensor, Tensor]:
        batch = pool.batch(np.arange(begin, min(begin + batch_size, stop)))
        check_labels(batch.labels, classes)
        return to_unit(batch.images), batch.labels

    begins = range(start, stop, batch_size)
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(read, begins[0])
        for following in begins[1:]:
            ready_now, coming = coming.result(), reader.submit(read, following)
            yield ready_now
        yield coming.result()
