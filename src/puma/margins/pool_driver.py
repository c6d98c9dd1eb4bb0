"""Margins of a whole pool: streamed, in memory or in a file that is written in parts, resumable, sharded over ranks.

Every part is measured on its own, so its bits do not depend on which parts were measured before, by which process or
rank: a run that was killed and resumed, or spread over ranks, gives the same file as an undisturbed one.
"""

import contextlib
import dataclasses
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from puma.attacks import check_count, check_label_range, find_norm
from puma.errors import PumaError
from puma.files import lock
from puma.margins.margins_file import (
    MarginProvenance,
    Margins,
    join_margins,
    read_margins,
    read_margins_footer,
    write_margins,
)
from puma.margins.measure_margins import PreparedMeasurement, check_settings, name_precision, prepare_measurement
from puma.margins.predict_select import LEAST, PredictConfig
from puma.margins.search.methods import PREDICTED, find_method
from puma.models import fingerprint_model
from puma.pools import Pool, open_pools, to_unit
from puma.processes import ProcessGroup, join_processes
from puma.progress import Advance, progress_bar

PART_SIZE = 8192  # some minutes of a small net on a processor: what an interruption costs at most
BOUNDS = (0.0, 1.0)  # pixels of a pool


def measure_pool(
    model: nn.Module,
    pool: Pool | str | Path,
    out: str | Path | None = None,
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
    model_path: str = "",
    predicting: PredictConfig | None = None,
) -> Margins:
    """Measure every sample of a pool: in memory, or into the file ``out`` (parquet) for pools of any size.

    Examples:
        >>> pool = puma.Pool.from_tensors(torch.rand(6, 1, 4, 4), [0, 1, 2, 0, 1, 2])
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
        >>> puma.measure_pool(model, pool).margin.shape
        torch.Size([6])
        >>> margins = puma.measure_pool(model, pool, out="margins.parquet")  # again: the file is found whole
        >>> margins.sample_id
        tensor([0, 1, 2, 3, 4, 5])

    Args:
        model: any module that takes images (n, channels, height, width) in [0, 1] and gives logits; left as it was.
        pool: a ``puma.Pool`` or the folder of one.
        out: where to write the margins; finished parts are kept in a folder beside it until all are there. Under
            ``torchrun`` the parts are shared among the ranks.
        method: see ``puma.measure_margins``, as for the next three.
        norm: distance that is measured.
        batch_size: samples that go through the model together.
        cap: do not look farther than this.
        part_size: samples per part.
        resume: a second call goes on after the last finished part, or finds the file whole; if pool, model or settings
            differ it raises. False starts over.
        progress: show a progress bar.
        autocast: search in this lower precision; verdicts stay in fp32.
        compiled: search with a ``torch.compile``d copy of the model.
        model_path: where the model came from, to be noted in the file.
        predicting: with the method ``predicted``, how much is measured and what for; see ``puma.PredictConfig``.

    Returns:
        The margins in the order of the pool; the same as ``puma.read_margins(out)``.
    """
    by = predicting.measured_by if predicting and method == PREDICTED else method
    by = PredictConfig.measured_by if by == PREDICTED else by
    task = describe_task(model, pool, by, norm, batch_size, cap, part_size, autocast, compiled, model_path)
    if predicting is not None or method == PREDICTED:
        task = predict_instead(task, predicting)
    if out is not None:
        return read_margins(measure_to_file(task, Path(out), resume=resume, progress=progress))
    if task.predicting is not None:
        with tempfile.TemporaryDirectory(prefix="puma-") as folder:
            return read_margins(measure_to_file(task, Path(folder) / "margins.parquet", progress=progress))
    with prepare_task(task) as prepared, _show_progress(task, range(task.parts), progress) as advance:
        parts = [_measure_part(task, prepared, part, advance) for part in range(task.parts)]
    return join_margins(parts, task.described)


@dataclass(frozen=True)
class PoolTask:
    """A pool to measure, a model to measure it by, and how."""

    model: nn.Module
    pool: Pool
    provenance: MarginProvenance
    described: dict[str, object]  # the footer
    autocast: torch.dtype | None
    compiled: bool
    predicting: PredictConfig | None = None  # then provenance is of the prediction

    @property
    def parts(self) -> int:
        """Number of parts the pool is cut into."""
        return -(-self.provenance.pool_size // self.provenance.part_size)

    def span(self, part: int) -> tuple[int, int]:
        """Positions in the pool, from and up to, of one part."""
        start = part * self.provenance.part_size
        return start, min(start + self.provenance.part_size, self.provenance.pool_size)


def describe_task(
    model: nn.Module,
    pool: Pool | str | Path,
    method: str,
    norm: str,
    batch_size: int,
    cap: float | None,
    part_size: int,
    autocast: torch.dtype | None,
    compiled: bool,
    model_path: str,
) -> PoolTask:
    """Check everything about a measurement of a pool, and say what it is."""
    check_settings(model, batch_size, cap, BOUNDS, norm)
    batch_size, part_size = check_count(batch_size, "batch_size"), check_count(part_size, "part_size")
    pool = open_pools(pool)
    if not len(pool):
        raise PumaError("the pool is empty: there is nothing to measure.")
    provenance = MarginProvenance(
        pool=pool.fingerprint,
        pool_size=len(pool),
        model=fingerprint_model(model, pool.image_shape),
        method=method,
        config=dataclasses.asdict(find_method(method).config),
        norm=find_norm(norm).name,
        cap=cap,
        batch_size=batch_size,
        part_size=part_size,
        precision=name_precision(autocast, compiled),
    )
    described = provenance.describe(
        os.pathsep.join(str(store.folder) for store in pool.stores if store.folder), model_path
    )
    return PoolTask(model, pool, provenance, described, autocast, compiled)


def measure_to_file(task: PoolTask, out: Path, *, resume: bool = True, progress: bool = False) -> Path:
    """Do what a task describes, part by part, so that memory does not grow with the pool; return ``out``."""
    if task.predicting is not None:
        from puma.margins.predict_pool import predict_to_file

        return predict_to_file(task, out, resume=resume, progress=progress)
    files = PartFiles(out, task)
    with join_processes(patient=True) as group:
        if find_finished(files, resume, group):
            return out
        with files.locked() if group.writes else contextlib.nullcontext():
            group.barrier()
            missing = files.find_missing(range(group.rank, task.parts, group.count))
            if missing:
                with (
                    prepare_task(task) as prepared,
                    _show_progress(task, missing, progress and group.writes, group.count) as advance,
                ):
                    for part in missing:
                        write_margins(files.path(part), [_measure_part(task, prepared, part, advance)], task.described)
            group.barrier()
            if group.writes:
                files.merge()
            group.barrier()
    return out


def predict_instead(task: PoolTask, predicting: PredictConfig | None = None) -> PoolTask:
    """Return a task that measures only some samples as this one does, and predicts the others."""
    config = dataclasses.replace(predicting or PredictConfig(), measured_by=task.provenance.method)
    if task.provenance.cap is not None:
        raise PumaError("margins up to a cap cannot be predicted; leave --cap away, or --measure.")
    size = task.provenance.pool_size
    if (few := math.ceil(config.measure * size)) < LEAST:
        enough = f"give --measure {math.ceil(100 * LEAST / size) / 100:g} or more" if size > LEAST else "measure all"
        raise PumaError(
            f"predicting margins needs at least {LEAST} measured ones; "
            f"{config.measure:g} of {size:,} samples is {few}, {enough}."
        )
    provenance = dataclasses.replace(task.provenance, method=PREDICTED, config=dataclasses.asdict(config))
    described = {**task.described, **dataclasses.asdict(provenance)}
    return dataclasses.replace(task, provenance=provenance, described=described, predicting=config)


def measure_samples(task: PoolTask, positions: NDArray[np.int64], out: Path, *, progress: bool) -> Path:
    """Measure some samples of a task's pool, by the method that its prediction goes by."""
    assert task.predicting is not None
    method = task.predicting.measured_by
    pool = task.pool.subset(positions)
    provenance = dataclasses.replace(
        task.provenance,
        pool=pool.fingerprint,
        pool_size=len(pool),
        method=method,
        config=dataclasses.asdict(find_method(method).config),
    )
    described = {**task.described, **dataclasses.asdict(provenance)}
    some = dataclasses.replace(task, pool=pool, provenance=provenance, described=described, predicting=None)
    return measure_to_file(some, out, progress=progress)


def find_finished(files: "PartFiles", resume: bool, group: ProcessGroup) -> bool:
    """Clear what is not to be resumed; say whether the result is there already."""
    if not resume and group.writes:
        files.start_over()
    group.barrier()
    finished = files.is_finished()
    group.barrier()
    if finished and group.writes:
        files.clear()
    return finished


def prepare_task(task: PoolTask) -> contextlib.AbstractContextManager[PreparedMeasurement]:
    """Assemble the search of a task; of one that predicts, that of the samples it measures."""
    by = task.predicting.measured_by if task.predicting is not None else task.provenance.method
    return prepare_measurement(
        task.model,
        to_unit(task.pool.batch(np.arange(min(8, len(task.pool)))).images),
        method=by,
        norm=task.provenance.norm,
        bounds=BOUNDS,
        cap=task.provenance.cap,
        autocast=task.autocast,
        compiled=task.compiled,
        pool_classes=task.pool.num_classes,
    )


def _show_progress(
    task: PoolTask, parts: range | list[int], enabled: bool, ranks: int = 1
) -> contextlib.AbstractContextManager[Advance]:
    title = "margins" if ranks == 1 else f"margins (rank 0 of {ranks})"
    return progress_bar(title, sum(stop - start for start, stop in map(task.span, parts)), enabled=enabled)


def _measure_part(task: PoolTask, prepared: PreparedMeasurement, part: int, advance: Advance) -> Margins:
    start, stop = task.span(part)
    batches = read_batches(task.pool, start, stop, task.provenance.batch_size, prepared.setting.classes)
    margins = prepared.measure(batches, stop - start, task.provenance.batch_size, advance=advance)
    sample_id = torch.from_numpy(task.pool.number_rows(start, stop))
    return dataclasses.replace(margins, sample_id=sample_id, made_from=task.described)


def read_batches(pool: Pool, start: int, stop: int, batch_size: int, classes: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Read batches, the next one while the last is measured."""

    def read(begin: int) -> tuple[Tensor, Tensor]:
        batch = pool.batch(np.arange(begin, min(begin + batch_size, stop)))
        check_label_range(batch.labels, classes)
        return to_unit(batch.images), batch.labels

    begins = range(start, stop, batch_size)
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(read, begins[0])
        for following in begins[1:]:
            batch, coming = coming.result(), reader.submit(read, following)
            yield batch
        yield coming.result()


@dataclass(frozen=True)
class PartFiles:
    """The folder beside the final file in which finished parts wait: what is there, and how they become one file."""

    out: Path
    task: PoolTask

    @property
    def folder(self) -> Path:
        """Where the parts are."""
        return self.out.with_name(f"{self.out.name}.parts")

    def path(self, part: int) -> Path:
        """File of one part."""
        return self.folder / f"part-{part:06d}.parquet"

    def is_finished(self) -> bool:
        """Is the final file there; one made from something else raises."""
        if not self.out.exists():
            return False
        self._refuse_others(self.out)
        return True

    def find_missing(self, wanted: range) -> list[int]:
        """Which of these parts have to be measured; parts made from something else raise, broken ones go."""
        return [part for part in wanted if not self._is_whole(part)]

    def _is_whole(self, part: int) -> bool:
        path = self.path(part)
        if not path.exists():
            return False
        start, stop = self.task.span(part)
        try:
            found = read_margins(path).sample_id.numpy()
        except PumaError:  # cut short or damaged: measured again
            path.unlink()
            return False
        self._refuse_others(path)
        return np.array_equal(found, self.task.pool.number_rows(start, stop))  # another part's copy is no part of this

    def _refuse_others(self, path: Path) -> None:
        differences = self.task.provenance.tell_differences(read_margins_footer(path))
        if differences:
            raise PumaError(
                f"{path} was made from something else ({'; '.join(differences)}); "
                "give another --out, or --no-resume to start over."
            )

    def merge(self) -> None:
        """Write the final file from all parts, then remove them."""
        parts = (read_margins(self.path(part)) for part in range(self.task.parts))
        write_margins(self.out, parts, self.task.described)
        self.clear()

    def start_over(self) -> None:
        """Remove an earlier result and its parts; a file that is not of margins, or a run under way, raises."""
        if self.out.exists():
            read_margins_footer(self.out)
        if self.folder.is_dir():
            with self.locked():
                self.clear()
        self.out.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove the parts, and their folder if nothing else is in it."""
        for pattern in ("part-*", ".part-*", "predict-*", ".predict-*", "lock", ".lock.lock"):  # "lock" is older
            for path in self.folder.glob(pattern):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process from writing the same parts; the lock dies with its process."""
        busy = f"another process is writing {self.out}; wait for it, or give another --out."
        with lock(self.folder / "lock", busy=busy):
            yield
