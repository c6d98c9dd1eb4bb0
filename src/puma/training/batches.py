"""What each step trains on: samples of the pools, batches by seed and step alone, prefetched by a thread."""

import math
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from puma.attacks import check_radius
from puma.errors import PumaError
from puma.files import Link, hash_file, link_to_file
from puma.models import ARCHITECTURES
from puma.planning import Plan, find_lost_classes
from puma.pools import MixedSampler, Origin, Pool, is_pool, list_pools, mix_bits, shift_and_mirror
from puma.processes import ProcessGroup
from puma.training.config import AugmentConfig, TrainConfig
from puma.training.run_folder import RunInputs

USUAL_FRACTION = 0.7  # of generated images in a batch, as in Wang et al. (2023) and the paper
_AUGMENT_STREAM = 1  # randomness that must not repeat that of the attack's start (2) or of online candidates (3)


@dataclass(frozen=True)
class TrainSamples:
    """The samples to train on with their strengths, those to evaluate on, and what the user should be told.

    ``trained`` says which of the ``whole`` are trained on, ``unplanned`` which are before the plan takes effect.
    """

    whole: Pool
    trained: NDArray[np.bool_]
    train: Pool
    strength: Tensor
    held_out: Pool
    inputs: RunInputs
    warnings: tuple[str, ...]
    unplanned: NDArray[np.bool_] | None = None


def load_samples(config: TrainConfig, pools: Sequence[Pool | str | Path], plan: str | Path | None) -> TrainSamples:
    """Open the pools, apply the plan, and set the held-out images apart; everything that does not fit raises."""
    if config.plan_from and plan is None:
        raise PumaError(f"plan_from {config.plan_from:g} is about a plan; give one with --plan, or leave it out.")
    parts = list_pools(pools)
    whole = reduce(add, parts)
    pixels = math.prod(whole.image_shape)
    check_radius(config.attack.eps, "attack.eps", norm=config.attack.norm, pixels=pixels)
    links = tuple(link for part in parts for link in _link_pool(part))
    keep, strength = torch.ones(len(whole), dtype=torch.bool), torch.full((len(whole),), config.attack.eps)
    warnings: tuple[str, ...] = ()
    if plan is not None:
        opened = Plan.open(plan)
        keep, strength = opened.of(whole)
        _check_plan_norm(opened, config)
        check_radius(strength[keep], "the plan's strength", norm=config.attack.norm, pixels=pixels)
        lost = find_lost_classes(whole, keep)
        warnings = (f"the plan leaves no sample of {', '.join(lost)}",) if lost else ()
        warnings += _compare_eps(opened, keep, config.attack.eps)
        if config.online.mode != "off":
            warnings += ("online training finds strengths itself: of the plan only what it keeps is used",)
    net = ARCHITECTURES.get(config.model)
    if net is not None and net.image_size not in whole.image_shape[:2]:
        size = f"{whole.image_shape[0]} x {whole.image_shape[1]}"
        warnings += (f"model {config.model} is made for images of {net.image_size} px, these have {size}",)
    apart = choose_held_out(whole, config.held_out)
    trained = keep.numpy() & ~apart
    if plan is not None:
        links += (link_to_file("plan", "plan", Path(plan).resolve()),)
    inputs = RunInputs(
        pools=tuple(link.path for link in links if link.role == "pool") if all(link.path for link in links) else (),
        plan=None if plan is None else str(Path(plan).resolve()),
        pool_fingerprint=whole.fingerprint,
        plan_fingerprint=None if plan is None else hash_file(plan),
        num_classes=whole.num_classes,
        channels=whole.image_shape[2],
        image_size=whole.image_shape[:2],
        links=links,
    )
    return TrainSamples(
        whole=whole,
        trained=trained,
        train=whole.subset(trained) if not trained.all() else whole,
        strength=strength[torch.from_numpy(np.ascontiguousarray(trained))],
        held_out=whole.subset(apart),
        inputs=inputs,
        warnings=warnings,
        unplanned=~apart if config.plan_step else None,
    )


def _check_plan_norm(plan: Plan, config: TrainConfig) -> None:
    """Raise if strengths that are margins were measured in another norm than they are to be used in."""
    measured = plan.made_from.get("margins.norm", config.attack.norm)
    if measured != config.attack.norm and "margin" in plan.made_from.get("strength.rule", "margin"):
        raise PumaError(
            f"the plan's strengths are margins in {measured}, attack.norm is {config.attack.norm}; "
            f"give --attack.norm {measured}, or a plan from margins in {config.attack.norm}."
        )


def choose_held_out(pool: Pool, count: int) -> NDArray[np.bool_]:
    """Choose ``count`` real samples, those whose sample_id hashes lowest: the same ones however the pool is pruned."""
    real = pool.positions_of(Origin.REAL)
    if count >= len(real) and count:
        raise PumaError(f"held_out must be below the number of real samples, {len(real)}, got {count}.")
    mask = np.zeros(len(pool), dtype=bool)
    mask[real[np.argsort(hash_ids(pool.sample_id[real]), kind="stable")[:count]]] = True
    return mask


def hash_ids(sample_id: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Scatter ids over all 64-bit numbers, one to one."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    return mix_bits(sample_id.astype(np.uint64) * golden + golden)


def _compare_eps(plan: Plan, keep: Tensor, eps: float) -> tuple[str, ...]:
    """Say so where a plan was made for another eps than the one that is trained and evaluated at."""
    told = str(plan.made_from.get("strength.eps", ""))
    made_for = float(told) if told.replace(".", "").replace("e-", "").isdigit() else 0.0
    largest = float(plan.strength[plan.keep].abs().max()) if bool(keep.any()) else 0.0
    made_for = max(made_for, largest) if largest > 1.001 * eps else made_for
    if not made_for or abs(made_for - eps) <= 1e-3 * eps:
        return ()
    return (f"the plan was made for eps {made_for:.4g}, attack.eps is {eps:.4g}: held-out images are attacked at that",)


def _link_pool(pool: Pool) -> tuple[Link, ...]:
    """Return a link to each folder of a pool, or one without a place if it is not exactly what lies in folders."""
    if pool.rows is not None or not all(store.folder and is_pool(store.folder) for store in pool.stores):
        return (Link("pool", "pool", pool.fingerprint),)
    return tuple(Link("pool", "pool", store.fingerprint, str(store.path.resolve())) for store in pool.stores)


@dataclass(frozen=True)
class TrainBatch:
    """One process's share of the batch of one step, images as uint8.

    ``rows`` are its places in the whole batch, which has ``whole`` of them, ``positions`` those in the pool.
    """

    step: int
    images: Tensor
    labels: Tensor
    strength: Tensor
    rows: NDArray[np.int64]
    whole: int
    positions: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class BatchSource:
    """Everything that batches are made from; steps before ``begins`` are those of ``first``."""

    pool: Pool
    strength: Tensor
    sampler: MixedSampler
    augment: AugmentConfig
    first: "BatchSource | None" = None
    begins: int = 0

    def batch(self, step: int) -> TrainBatch:
        """Read and augment the batch of one step; any step, in any order."""
        if self.first is not None and step < self.begins:
            return self.first.batch(step)
        positions = self.sampler.positions(step)
        rows = np.arange(self.sampler.batch_size)[self.sampler.rank :: self.sampler.ranks]
        stored = self.pool.batch(positions)
        images = augment_images(
            stored.images, self.augment, self.sampler.batch_size, rows, seed=self.sampler.seed, step=step
        )
        strength = self.strength[torch.from_numpy(positions)]
        return TrainBatch(step, images, stored.labels, strength, rows, self.sampler.batch_size, positions)


def make_batch_source(config: TrainConfig, samples: TrainSamples, processes: ProcessGroup) -> BatchSource:
    """Build the data path of one process."""
    share = config.batch_size // processes.count
    if share % config.compute.accumulate:
        raise PumaError(f"compute.accumulate must divide a process's share of the batch, {share}.")
    planned = BatchSource(
        samples.train, samples.strength, _make_sampler(config, samples.train, processes), config.augment
    )
    if samples.unplanned is None:
        return planned
    pool = samples.whole.subset(samples.unplanned)
    strength = torch.full((len(pool),), config.attack.eps)
    first = BatchSource(pool, strength, _make_sampler(config, pool, processes), config.augment)
    return replace(planned, first=first, begins=config.plan_step)


def _make_sampler(config: TrainConfig, pool: Pool, processes: ProcessGroup) -> MixedSampler:
    drawn = config.candidates(processes.count)
    real, generated = pool.positions_of(Origin.REAL), pool.positions_of(Origin.GENERATED)
    return MixedSampler(
        real=real,
        generated=generated,
        batch_size=drawn,
        generated_fraction=choose_fraction(config, len(real), len(generated)),
        samples_seen=config.steps * drawn,
        seed=config.seed,
        rank=processes.rank,
        ranks=processes.count,
    )


def iterate_visits(config: TrainConfig, samples: TrainSamples, steps: range) -> Iterator[NDArray[np.int64]]:
    """Yield for each step which samples of the whole pool its batch holds, in the order of the batch."""
    source = make_batch_source(config, samples, ProcessGroup())
    planned = np.flatnonzero(samples.trained)
    first = planned if samples.unplanned is None else np.flatnonzero(samples.unplanned)
    for step in steps:
        if source.first is not None and step < source.begins:
            yield first[source.first.sampler.positions(step)]
        else:
            yield planned[source.sampler.positions(step)]


def choose_fraction(config: TrainConfig, real: int, generated: int) -> float:
    """Return the share of generated images in a batch: the one asked for, or else by what there is to train on."""
    if config.generated_fraction is not None:
        return config.generated_fraction
    return USUAL_FRACTION if real and generated else float(generated > 0)


def check_drawn(sampler: MixedSampler, held_out: Pool) -> None:
    """Raise if samples were given that no batch would ever draw."""
    if len(sampler.generated) and not sampler.generated_per_batch:
        kind, cure = f"{len(sampler.generated):,} generated", "--generated-fraction such as 0.7"
    elif len(sampler.real) and not sampler.real_per_batch and not len(held_out):
        kind, cure = f"{len(sampler.real):,} real", "a smaller --generated-fraction"
    else:
        return
    raise PumaError(f"the pools have {kind} samples that are never drawn; leave their pool out, or give {cure}.")


def describe_batch(sampler: MixedSampler) -> str:
    """Say what a batch is made of."""
    words = [f"{sampler.real_per_batch:,} of {len(sampler.real):,} real images"] if sampler.real_per_batch else []
    if sampler.generated_per_batch:
        words.append(f"{sampler.generated_per_batch:,} of {len(sampler.generated):,} generated images")
    if len(words) == 1:
        return f"batches of {words[0]}"
    return f"a batch of {sampler.batch_size:,} is {' and '.join(words)}"


def describe_start(config: TrainConfig) -> str:
    """Say when the plan takes effect."""
    return f"the plan takes effect at step {config.plan_step:,} of {config.steps:,}; before it all is trained on at eps"


def describe_helped(strength: Tensor, config: TrainConfig) -> str:
    """Say why accuracy on attacked batches may lie above clean accuracy; nothing where no strength is negative."""
    helped = int((strength < 0).sum()) if config.online.mode == "off" else 0
    if not helped:
        return ""
    return (
        f"{helped:,} of {len(strength):,} samples are moved towards their label (negative strength), so that attacked "
        "may read above clean below; held-out images are attacked at full eps"
    )


def augment_images(
    images: Tensor, config: AugmentConfig, batch_size: int, rows: NDArray[np.int64], *, seed: int, step: int
) -> Tensor:
    """Shift and mirror; a sample's changes depend on its row in the whole batch, not on who computes them."""
    if not config.padding and not config.flip:
        return images
    rng = np.random.default_rng((seed, step, _AUGMENT_STREAM))
    shifts = torch.from_numpy(rng.integers(-config.padding, config.padding + 1, size=(2, batch_size))[:, rows])
    mirrored = torch.from_numpy(rng.integers(2, size=batch_size)[rows] == 1)
    return shift_and_mirror(images, shifts[0], shifts[1], mirrored if config.flip else None)


@dataclass
class PrefetchedBatches:
    """Batches in order of their steps; ``waited`` is how many seconds the consumer stood still for them."""

    batches: Iterator[TrainBatch]
    waited: float = field(default=0.0)

    def __iter__(self) -> Iterator[TrainBatch]:
        while True:
            begun = time.perf_counter()
            batch = next(self.batches, None)
            self.waited += time.perf_counter() - begun
            if batch is None:
                return
            yield batch


@contextmanager
def prefetch_batches(source: BatchSource, steps: range, *, depth: int = 2) -> Iterator[PrefetchedBatches]:
    """Prepare batches in a thread, at most ``depth`` ahead; an error in it is raised where batches are taken."""
    ready: queue.Queue[TrainBatch | BaseException | None] = queue.Queue(depth)
    stop = threading.Event()

    def offer(item: TrainBatch | BaseException | None) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for step in steps:
                if not offer(source.batch(step)):
                    return
            offer(None)
        except BaseException as error:  # handed over to the thread that trains
            offer(error)

    def take() -> Iterator[TrainBatch]:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    thread = threading.Thread(target=work, name="puma-prefetch", daemon=True)
    thread.start()
    try:
        yield PrefetchedBatches(take())
    finally:
        stop.set()
        thread.join()
