"""Real images kept out of training to watch it: chosen by sample_id, never by position."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, nn

from puma.attacks import pgd
from puma.errors import PumaError
from puma.pools import Origin, Pool, to_unit
from puma.pools.sampler import mix_bits
from puma.training.config import AttackConfig

_STEPS = 10


@dataclass(frozen=True)
class HeldOutCounts:
    """How many of the held-out images the model gets right: clean, and under attack."""

    samples: int
    clean: int
    robust: int


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


def evaluate_held_out(
    model: nn.Module, pool: Pool, attack: AttackConfig, device: torch.device, *, batch_size: int = 256
) -> HeldOutCounts:
    """Count what a model in eval mode gets right, clean and under 10 steps of PGD on the C&W loss at eps."""
    clean = robust = 0
    generator = Generator(device).manual_seed(0)
    for batch in pool.batches(batch_size):
        images, labels = to_unit(batch.images.to(device)), batch.labels.to(device)
        with torch.inference_mode():
            right = model(images).argmax(dim=1) == labels
        attacked = pgd(
            model,
            images,
            labels,
            attack.eps,
            step_size=attack.eps / 4,
            steps=_STEPS,
            loss="cw",
            norm=attack.norm,
            generator=generator,
        )
        with torch.inference_mode():
            still_right = right & (model(attacked).argmax(dim=1) == labels)
        clean += int(right.sum())
        robust += int(still_right.sum())
    return HeldOutCounts(len(pool), clean, robust)
