"""The data path: what each step trains on, a pure function of the seed and the step, prepared ahead by a thread."""

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from puma.attacks.norms import find_norm, per_sample
from puma.pools import MixedSampler, Pool, shift_and_mirror

_AUGMENT, _ATTACK = 1, 2  # streams of randomness that must not repeat each other


@dataclass(frozen=True)
class AugmentConfig:
    """Random changes to training images.

    Attributes:
        padding: shift by up to so many pixels in each direction.
        flip: mirror half of the images.
    """

    padding: int = 4
    flip: bool = True


@dataclass(frozen=True)
class StepBatch:
    """One process's share of the batch of one step, images as uint8.

    ``rows`` are its places in the whole batch, which has ``whole`` of them.
    """

    step: int
    images: Tensor
    labels: Tensor
    strength: Tensor
    rows: NDArray[np.int64]
    whole: int


@dataclass(frozen=True)
class Source:
    """Everything that batches are made from."""

    pool: Pool
    strength: Tensor
    sampler: MixedSampler
    augment: AugmentConfig

    def batch(self, step: int) -> StepBatch:
        """Read and augment the batch of one step; any step, in any order."""
        positions = self.sampler.positions(step)
        rows = np.arange(self.sampler.batch_size)[self.sampler.rank :: self.sampler.ranks]
        stored = self.pool.batch(positions)
        images = augmented(
            stored.images, self.augment, self.sampler.batch_size, rows, seed=self.sampler.seed, step=step
        )
        strength = self.strength[torch.from_numpy(positions)]
        return StepBatch(step, images, stored.labels, strength, rows, self.sampler.batch_size)


def augmented(
    images: Tensor, config: AugmentConfig, batch_size: int, rows: NDArray[np.int64], *, seed: int, step: int
) -> Tensor:
    """Shift and mirror; a sample's changes depend on its row in the whole batch, not on who computes them."""
    if not config.padding and not config.flip:
        return images
    rng = np.random.default_rng((seed, step, _AUGMENT))
    shifts = torch.from_numpy(rng.integers(-config.padding, config.padding + 1, size=(2, batch_size))[:, rows])
    mirrored = torch.from_numpy(rng.integers(2, size=batch_size)[rows] == 1)
    return shift_and_mirror(images, shifts[0], shifts[1], mirrored if config.flip else None)


def attack_start(
    images: Tensor, strength: Tensor, norm: str, batch_size: int, rows: NDArray[np.int64], *, seed: int, step: int
) -> Tensor:
    """Draw a point of each sample's ball; it depends on the sample's row in the whole batch, like augmentation."""
    state = int(np.random.SeedSequence((seed, step, _ATTACK)).generate_state(1, np.uint64)[0] >> np.uint64(1))
    generator = Generator(images.device).manual_seed(state)
    whole = images.new_zeros(()).expand(batch_size, *images.shape[1:])
    noise = find_norm(norm).random_start(whole, images.new_ones(batch_size), generator)
    if len(rows) < batch_size:
        noise = noise[torch.from_numpy(rows).to(noise.device)]
    return (images + noise * per_sample(strength.abs(), images)).clamp_(0, 1)


@dataclass
class Feed:
    """Batches in order of their steps; ``waited`` is how many seconds the consumer stood still for them."""

    batches: Iterator[StepBatch]
    waited: float = field(default=0.0)

    def __iter__(self) -> Iterator[StepBatch]:
        while True:
            begun = time.perf_counter()
            batch = next(self.batches, None)
            self.waited += time.perf_counter() - begun
            if batch is None:
                return
            yield batch


@contextmanager
def ahead(source: Source, steps: range, *, depth: int = 2) -> Iterator[Feed]:
    """Prepare batches in a thread, at most ``depth`` ahead; an error in it is raised where batches are taken."""
    ready: queue.Queue[StepBatch | BaseException | None] = queue.Queue(depth)
    stop = threading.Event()

    def offer(item: StepBatch | BaseException | None) -> bool:
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

    def taken() -> Iterator[StepBatch]:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    thread = threading.Thread(target=work, name="puma-feed", daemon=True)
    thread.start()
    try:
        yield Feed(taken())
    finally:
        stop.set()
        thread.join()
