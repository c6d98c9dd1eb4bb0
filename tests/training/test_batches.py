import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from puma import PumaError
from puma.pools import MixedSampler, Pool, to_unit
from puma.training.batches import BatchSource, augment_images, prefetch_batches
from puma.training.config import AugmentConfig
from puma.training.losses import draw_attack_start


def source(pool: Pool, rank: int = 0, ranks: int = 1) -> BatchSource:
    sampler = MixedSampler(np.arange(len(pool)), np.arange(0), 12, 0.0, 120, seed=3, rank=rank, ranks=ranks)
    return BatchSource(pool, torch.linspace(-0.1, 0.1, len(pool)), sampler, AugmentConfig(padding=2))


def test_a_batch_depends_on_its_step_alone(pool: Pool) -> None:
    here = source(pool)
    later, first, again = here.batch(7), here.batch(0), here.batch(7)
    assert torch.equal(later.images, again.images)
    assert torch.equal(later.strength, again.strength)
    assert not torch.equal(first.images, later.images)


def test_strength_follows_its_sample(pool: Pool) -> None:
    here = source(pool)
    here = replace(here, augment=AugmentConfig(padding=0, flip=False))
    batch = here.batch(2)
    positions = here.sampler.positions(2)
    assert torch.equal(batch.strength, here.strength[torch.from_numpy(positions)])
    assert torch.equal(batch.images, pool.batch(positions).images)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_together_make_the_batch_of_one(pool: Pool, ranks: int) -> None:
    whole = source(pool).batch(4)
    start = draw_attack_start(to_unit(whole.images), whole.strength, "linf", 12, whole.rows, seed=3, step=4)
    for rank in range(ranks):
        part = source(pool, rank, ranks).batch(4)
        assert torch.equal(part.images, whole.images[rank::ranks])
        assert torch.equal(part.labels, whole.labels[rank::ranks])
        own = draw_attack_start(to_unit(part.images), part.strength, "linf", 12, part.rows, seed=3, step=4)
        assert torch.equal(own, start[rank::ranks])


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_starts_lie_in_the_ball_and_change_with_the_step(norm: str) -> None:
    images = torch.full((6, 1, 8, 8), 0.5)
    strength = torch.tensor([0.0, 0.1, -0.1, 0.2, -0.2, 0.3])
    rows = np.arange(6)
    start = draw_attack_start(images, strength, norm, 6, rows, seed=0, step=0)
    length = (start - images).flatten(1).norm(p=float("inf") if norm == "linf" else 2, dim=1)
    assert bool((length <= strength.abs() + 1e-6).all())
    assert bool((length[1:] > 0).all())
    assert not torch.equal(start, draw_attack_start(images, strength, norm, 6, rows, seed=0, step=1))
    assert not torch.equal(start, draw_attack_start(images, strength, norm, 6, rows, seed=1, step=0))


def test_augmentation_shifts_by_at_most_the_padding() -> None:
    images = torch.zeros(200, 1, 9, 9, dtype=torch.uint8)
    images[:, :, 4, 4] = 255
    moved = augment_images(images, AugmentConfig(padding=2, flip=False), 200, np.arange(200), seed=0, step=0)
    places = moved.flatten(1).argmax(1)
    shifts = torch.stack([places // 9 - 4, places % 9 - 4])
    assert {tuple(pair) for pair in shifts.T.tolist()} == {(a, b) for a in range(-2, 3) for b in range(-2, 3)}


def test_batches_come_in_order_and_the_thread_ends(pool: Pool) -> None:
    before = threading.active_count()
    here = source(pool)
    with prefetch_batches(here, range(3, 9)) as feed:
        batches = list(feed)
    assert [batch.step for batch in batches] == list(range(3, 9))
    assert all(torch.equal(batch.images, here.batch(batch.step).images) for batch in batches)
    with prefetch_batches(here, range(1000)) as feed:
        assert next(iter(feed)).step == 0
    assert threading.active_count() == before


def test_an_error_in_the_thread_is_raised_where_batches_are_taken(pool: Pool) -> None:
    broken = replace(source(pool), strength=torch.zeros(3))
    with prefetch_batches(broken, range(5)) as feed, pytest.raises(IndexError):
        list(feed)
    other = replace(source(pool), sampler=replace(source(pool).sampler, real=np.array([10**9])))
    with prefetch_batches(other, range(5)) as feed, pytest.raises(PumaError, match="positions must lie"):
        list(feed)
