from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from puma.pools import Pool
from puma.pools.writer import PoolPart, new_folder, write_pool
from puma.training import TrainConfig
from puma.training.config import AttackConfig, AugmentConfig

WritePool = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> WritePool:
    """Return a function that writes a pool of blurry random 8 px images, ten classes, and returns its folder."""

    def make(name: str = "pool", count: int = 96, *, origin: int = 0, seed: int = 0) -> Path:
        rng = np.random.default_rng(seed)
        labels = np.arange(count) % 10
        prototypes = np.random.default_rng(99).integers(256, size=(10, 8, 8, 1))
        images = (0.5 * prototypes[labels] + 0.5 * rng.integers(256, size=(count, 8, 8, 1))).astype(np.uint8)
        part = PoolPart([(images, labels)], [str(digit) for digit in range(10)], count, origin)
        with new_folder(tmp_path / name, force=False) as folder:
            write_pool(folder, part)
        return tmp_path / name

    return make


@pytest.fixture
def pool_folder(write: WritePool) -> Path:
    return write()


@pytest.fixture
def pool(pool_folder: Path) -> Pool:
    return Pool.open(pool_folder)


@pytest.fixture
def config() -> TrainConfig:
    """Eight steps of sixteen samples, a checkpoint after every second."""
    return TrainConfig(
        model="small-8px",
        samples_seen=128,
        batch_size=16,
        checkpoint_every=32,
        log_every=1,
        attack=AttackConfig(eps=0.1, step_size=0.05, steps=2),
        augment=AugmentConfig(padding=1, flip=True),
    )


@pytest.fixture
def mixed_config(config: TrainConfig) -> TrainConfig:
    return replace(config, generated_fraction=0.5)
