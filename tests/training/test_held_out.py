from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from puma import PumaError
from puma.pools import Origin, Pool
from puma.training.batches import choose_held_out
from puma.training.config import AttackConfig
from puma.training.loop import evaluate_held_out

from .conftest import WritePool


def test_exactly_so_many_real_samples_are_held_out(write: WritePool) -> None:
    pool = Pool.open(write("real", 60)) + Pool.open(write("generated", 40, origin=1))
    mask = choose_held_out(pool, 17)
    assert mask.sum() == 17
    assert set(pool.origin[mask]) == {Origin.REAL}
    assert choose_held_out(pool, 0).sum() == 0


def test_the_choice_depends_on_ids_and_not_on_position(write: WritePool) -> None:
    pool = Pool.open(write("real", 90))
    chosen = set(pool.sample_id[choose_held_out(pool, 20)])
    mixed = Pool(pool.stores, np.random.default_rng(0).permutation(90))
    assert set(mixed.sample_id[choose_held_out(mixed, 20)]) == chosen
    assert set(pool.sample_id[choose_held_out(pool, 30)]) > chosen
    assert chosen != set(range(20))


def test_not_every_real_sample_can_be_held_out(pool_folder: Path) -> None:
    with pytest.raises(PumaError, match="held_out must be below the number of real samples, 96, got 96"):
        choose_held_out(Pool.open(pool_folder), 96)


def test_counts_are_exact(pool_folder: Path) -> None:
    pool = Pool.open(pool_folder)

    class ByMean(nn.Module):
        """Class 1 where the mean is above a half; its margin is known exactly."""

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            mean = images.mean(dim=(1, 2, 3))
            return torch.stack([torch.full_like(mean, 0.5), mean], 1)

    images = pool.batch(range(96)).images.float() / 255
    mean = images.mean(dim=(1, 2, 3))
    keep = torch.from_numpy(pool.labels) < 2
    small = pool.subset(keep)
    labels, mean = torch.from_numpy(small.labels), mean[keep]
    right = (mean > 0.5).long() == labels
    attacked = torch.where(
        labels == 1,
        (images[keep] - 0.02).clamp_min(0).mean(dim=(1, 2, 3)) > 0.5,
        (images[keep] + 0.02).clamp_max(1).mean(dim=(1, 2, 3)) <= 0.5,
    )
    counts = evaluate_held_out(ByMean(), small, AttackConfig(eps=0.02), torch.device("cpu"), batch_size=7)
    assert (counts.samples, counts.clean, counts.robust) == (
        len(small),
        int(right.sum()),
        int((right & attacked).sum()),
    )
    assert counts.robust < counts.clean
