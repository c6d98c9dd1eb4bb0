"""What measuring a pool costs, before it is begun: passes, seconds, memory and disk, from a short trial."""

import time
from dataclasses import dataclass

import numpy as np
from torch import nn

from puma.margins.pool_driver import PART_SIZE, PoolTask, describe_task, prepare_task
from puma.margins.predict_features import CORE, open_reader
from puma.margins.predict_fit import MOST
from puma.pools import Pool, to_unit
from puma.processes import measure_peak_memory
from puma.progress import format_bytes, format_seconds

_SLOW_SECONDS = 5.0  # a first look at a few images that takes so long says enough
_ROW_BYTES = 34  # of a row in a margins file; compression takes off more where margins are alike
_DOUBTFUL = 0.5  # of the pool, at most: samples whose features are kept for another look
_COLUMN_BYTES = 45  # of a row of margins in memory


@dataclass(frozen=True)
class MeasuringCost:
    """The cost of measuring a pool on one device; passes are in all."""

    samples: int
    measured: int  # those that are searched; further ones follow where a plan asks for it
    forwards: float
    backwards: float
    seconds: float
    seconds_each: float  # of measuring one sample
    memory_bytes: int
    disk_bytes: int
    device: str
    full_seconds: float  # of measuring all


def estimate_measuring(task: PoolTask) -> MeasuringCost:
    """Measure a few samples of the pool and count on to all of them."""
    pool, samples = task.pool, len(task.pool)
    batch_size = task.provenance.batch_size
    places = np.sort(np.random.default_rng(0).choice(samples, min(samples, 2 * batch_size), replace=False))
    predicting = task.predicting
    batch = pool.batch(places)
    images, labels = to_unit(batch.images), batch.labels
    with prepare_task(task) as prepared:
        few = min(8, len(images))
        begun = time.perf_counter()
        trial = prepared.measure([(images[:few], labels[:few])], few, batch_size)
        seconds, count = time.perf_counter() - begun, few
        if seconds < _SLOW_SECONDS:
            begun = time.perf_counter()
            parts = [
                (images[at : at + batch_size], labels[at : at + batch_size]) for at in range(0, len(images), batch_size)
            ]
            trial = prepared.measure(parts, len(images), batch_size)
            seconds, count = time.perf_counter() - begun, len(images)
        device = prepared.device
    each = seconds / count
    forwards, backwards = float(trial.forwards.float().mean()), float(trial.backwards.float().mean())
    measured, total = samples, each * samples
    width, passes = 0, 0.0
    if predicting is not None:
        measured = int(np.ceil(predicting.measure * samples))
        with open_reader(task.model, images[:8]) as reader:
            reader.read(images[:few], labels[:few])
            begun = time.perf_counter()
            width = reader.read(images[:batch_size], labels[:batch_size]).features.shape[1]
            pass_seconds = (time.perf_counter() - begun) / min(batch_size, len(images))
        total = each * measured + pass_seconds * samples
        passes = samples + min(measured, MOST)
    doubtful = int(_DOUBTFUL * samples) if predicting is not None and predicting.refines else 0
    return MeasuringCost(
        samples=samples,
        measured=measured,
        forwards=forwards * measured + passes,
        backwards=backwards * measured,
        seconds=total,
        seconds_each=each,
        memory_bytes=measure_peak_memory(device)
        + _COLUMN_BYTES * task.provenance.part_size
        + (9 * samples + 4 * (width + len(CORE)) * min(measured, MOST) if predicting is not None else 0),
        disk_bytes=2 * _ROW_BYTES * samples + 4 * width * doubtful,  # parts and the file made of them
        device=str(device),
        full_seconds=each * samples,
    )


def estimate_pool_cost(model: nn.Module, pool: Pool, *, method: str = "deepfool", norm: str = "linf") -> str:
    """Say in lines what measuring a pool by a model costs."""
    task = describe_task(model, pool, method, norm, 128, None, PART_SIZE, None, False, "")
    return format_measuring(estimate_measuring(task), task)


def format_measuring(cost: MeasuringCost, task: PoolTask) -> str:
    """Say it in a few lines."""
    lines = [
        f"passes    {cost.forwards:.3g} forward and {cost.backwards:.3g} backward in all, "
        f"{cost.forwards / cost.samples:.2f} and {cost.backwards / cost.samples:.2f} per sample",
        f"time      about {format_seconds(cost.seconds)} on one {cost.device}, "
        f"{cost.samples / max(cost.seconds, 1e-9):,.0f} samples/s by a short trial",
        f"memory    about {format_bytes(cost.memory_bytes)} in one process; the images are read from disk as needed",
        f"disk      about {format_bytes(cost.disk_bytes)} while it runs, half of it or less afterwards",
    ]
    config = task.predicting
    if config is not None:
        share = cost.seconds / max(cost.full_seconds, 1e-9)
        lines.insert(1, f"measured  {cost.measured:,} of {cost.samples:,}; {share:.0%} of the time of measuring all")
        if config.refines:
            lines.append(
                f"further   samples are measured until the plan is as asked, each for {cost.seconds_each:.2g} s; "
                "how many is told after the predictions, before they are measured"
            )
    return "\n".join(lines)
