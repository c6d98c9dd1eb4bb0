"""What is evaluated: a model and where its images come from."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from puma.attacks.validation import check_batch
from puma.errors import PumaError
from puma.pools import Pool, to_unit

Read = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Subject:
    """A model in eval mode and ``count`` samples; ``read(positions)`` gives images in [0, 1] and labels on a device."""

    model: nn.Module
    count: int
    read: Read
    batch_size: int

    def batches(self, positions: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Read samples in batches of positions, images and labels."""
        for start in range(0, len(positions), self.batch_size):
            part = positions[start : start + self.batch_size]
            yield part, *self.read(part)

    def everything(self) -> Tensor:
        """All positions."""
        return torch.arange(self.count)


def subject_of_tensors(model: nn.Module, images: Tensor, labels: Tensor, batch_size: int) -> Subject:
    """Evaluate on tensors."""
    check_batch(images, labels, (0.0, 1.0))
    return Subject(
        model=model,
        count=len(images),
        read=lambda positions: (images[positions.to(images.device)], labels[positions.to(labels.device)]),
        batch_size=batch_size,
    )


def subject_of_pool(
    model: nn.Module, pool: Pool, rows: NDArray[np.int64], device: torch.device, batch_size: int
) -> Subject:
    """Evaluate on some rows of a pool; images are read when they are needed."""

    def read(positions: Tensor) -> tuple[Tensor, Tensor]:
        batch = pool.batch(rows[positions.numpy()])
        return to_unit(batch.images.to(device)).contiguous(), batch.labels.to(device)

    return Subject(model, len(rows), read, batch_size)


def chosen_rows(pool: Pool, max_samples: int, *, first: bool = False) -> NDArray[np.int64]:
    """Return the positions to evaluate: all, or ``max_samples`` drawn at random, the same ones every time.

    A pool sorted by class would bias the first ones, which ``first`` takes nevertheless.
    """
    if not len(pool):
        raise PumaError("the pool has no samples to evaluate.")
    if not max_samples or max_samples >= len(pool):
        return np.arange(len(pool))
    if first:
        return np.arange(max_samples)
    return np.sort(np.random.default_rng(0).permutation(len(pool))[:max_samples])
