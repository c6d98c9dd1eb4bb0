"""Which samples make up the batch of a given step: a pure function of the seed and the step; and augmentation.

Nothing is remembered between steps, so a run resumes exactly at any of them and every rank can tell its own share.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from puma.errors import PumaError

Positions = NDArray[np.int64]

_ROUNDS = 6  # of the Feistel network: four make a good permutation, two are to spare
_DRAWS, _PASSES = 0, 1  # kinds of randomness that must not repeat each other


@dataclass(frozen=True)
class MixedSampler:
    """Batches with a fixed share of generated samples, as in Wang et al. (2023): 512 = 154 real + 358 generated.

    Real samples come from endless reshuffled passes, generated ones are drawn with replacement. Without one kind the
    other fills the whole batch, in passes.

    Args:
        real: positions of the real samples in the pool.
        generated: positions of the generated samples.
        batch_size: over all ranks together.
        generated_fraction: share of each batch, rounded down to whole samples.
        samples_seen: length of training; the last batch is always full.
        seed: other seeds give other batches.
        rank: which of the ``ranks`` processes this is; it gets every ``ranks``-th sample of each batch.
        ranks: number of processes.
    """

    real: Positions
    generated: Positions
    batch_size: int
    generated_fraction: float
    samples_seen: int
    seed: int = 0
    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.generated_fraction <= 1:
            raise PumaError(f"generated_fraction must lie in [0, 1], got {self.generated_fraction}.")
        if self.batch_size < 1 or self.samples_seen < 1:
            raise PumaError(
                f"batch_size and samples_seen must be positive, got {self.batch_size}, {self.samples_seen}."
            )
        if not 0 <= self.seed < 1 << 63:
            raise PumaError(f"seed must lie in 0..2**63 - 1, got {self.seed}.")
        if not 0 <= self.rank < self.ranks or self.batch_size % self.ranks:
            share = f"{self.batch_size} for rank {self.rank} of {self.ranks}"
            raise PumaError(f"batch_size must divide evenly over the ranks, got {share}.")
        if self.real_per_batch and not len(self.real):
            raise PumaError("the pool has no real samples; set generated_fraction to 1.")
        if self.generated_per_batch and not len(self.generated):
            raise PumaError("the pool has no generated samples; set generated_fraction to 0.")

    @property
    def generated_per_batch(self) -> int:
        """Generated samples in a batch."""
        return int(self.generated_fraction * self.batch_size + 1e-9)

    @property
    def real_per_batch(self) -> int:
        """Real samples in a batch."""
        return self.batch_size - self.generated_per_batch

    def __len__(self) -> int:
        """Number of steps."""
        return -(-self.samples_seen // self.batch_size)

    def positions(self, step: int) -> Positions:
        """Pool positions of this rank's share of the batch of one step: real ones first."""
        if step < 0:
            raise PumaError(f"steps are counted from 0, got {step}.")
        real = self.real[draw_passes(len(self.real), self.real_per_batch, step, self.seed)]
        if self.real_per_batch:
            rng = _make_stream(self.seed, step, _DRAWS)
            generated = self.generated[rng.integers(len(self.generated) or 1, size=self.generated_per_batch)]
        else:
            generated = self.generated[draw_passes(len(self.generated), self.batch_size, step, self.seed)]
        return np.concatenate([real, generated])[self.rank :: self.ranks]

    def __iter__(self) -> Iterator[Positions]:
        return (self.positions(step) for step in range(len(self)))


def draw_passes(count: int, per_batch: int, step: int, seed: int) -> Positions:
    """Places in 0..count-1 of one batch of an endless stream that visits every place once per pass."""
    if per_batch == 0:
        return np.empty(0, dtype=np.int64)
    stream = np.arange(step * per_batch, (step + 1) * per_batch, dtype=np.int64)
    passes = stream // count
    places = np.empty(per_batch, dtype=np.int64)
    for index in np.unique(passes):
        mine = passes == index
        places[mine] = permute_places(stream[mine] % count, count, seed, int(index))
    return places


def permute_places(places: Positions, count: int, seed: int, salt: int) -> Positions:
    """Where a pseudo-random permutation of 0..count-1 sends these places, without building the permutation.

    A Feistel network permutes the smallest power of four that holds ``count``; places it sends outside are sent on
    until they land inside. Memory stays flat for any pool, and any step can be looked up alone.
    """
    half_bits = max(1, (max(count - 1, 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half_bits) - 1)
    keys = _make_stream(seed, salt, _PASSES).integers(1 << 63, size=_ROUNDS, dtype=np.uint64)
    result = np.asarray(places, dtype=np.uint64).copy()
    outside = np.ones(len(result), dtype=bool)
    while outside.any():
        left, right = result[outside] >> np.uint64(half_bits), result[outside] & mask
        for key in keys:
            left, right = right, left ^ (mix_bits(right + key) & mask)
        result[outside] = (left << np.uint64(half_bits)) | right
        outside = result >= count
    return result.astype(np.int64)


def _make_stream(seed: int, number: int, kind: int) -> np.random.Generator:
    """Return random numbers that depend on these three and on nothing else."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, 2 * number + kind], dtype=np.uint64)))


def mix_bits(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: a bijection whose results look random."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def crop_and_flip(images: Tensor, *, padding: int = 4, flip: bool = True, generator: Generator | None = None) -> Tensor:
    """Shift each image by up to ``padding`` pixels in each direction, black coming in, and mirror half of them.

    Takes (n, channels, height, width) of any dtype and returns the same; stays in channels_last memory if it was.
    """
    count, device = len(images), images.device

    def draw(choices: int) -> Tensor:
        return torch.randint(choices, (count,), generator=generator, device=device)

    down, right = draw(2 * padding + 1) - padding, draw(2 * padding + 1) - padding
    return shift_and_mirror(images, down, right, draw(2).bool() if flip else None)


def shift_and_mirror(images: Tensor, down: Tensor, right: Tensor, mirrored: Tensor | None = None) -> Tensor:
    """Let each image's window move by its ``down`` and ``right`` pixels, and mirror those that say so: all (n,)."""
    count, _, height, width = images.shape
    device = images.device
    rows = torch.arange(height, device=device) + down[:, None]
    columns = torch.arange(width, device=device) + right[:, None]
    if mirrored is not None:
        columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    sample = torch.arange(count, device=device)[:, None, None]
    source = images.permute(0, 2, 3, 1)
    picked = source[sample, rows.clamp(0, height - 1)[:, :, None], columns.clamp(0, width - 1)[:, None, :]]
    return (picked * inside[..., None].to(images.dtype)).permute(0, 3, 1, 2)
