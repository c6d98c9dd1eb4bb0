"""The two rules of the method: from a score to what is kept, from a margin to a strength. Tensors in, tensors out."""

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from puma.errors import PumaError, unknown_name
from puma.pools.sampler import mix_bits

Drop = Literal["high", "low", "random"]


def prune(
    score: Tensor, fraction: float, *, drop: Drop = "high", seed: int = 0, sample_id: Tensor | None = None
) -> Tensor:
    """Return which samples to keep (n,): all but ``floor(fraction * n)`` of the highest, lowest or random ones.

    Samples of equal score are told apart by a hash of ``seed`` and their id (their place if no ids are given), so a
    pool sorted by class does not lose one class first, and another order of the rows makes no difference. Dropping
    the highest and dropping the lowest break ties from opposite ends: the two never drop the same sample as long as
    their fractions add up to at most 1.
    """
    if drop not in ("high", "low", "random"):
        raise unknown_name("drop", drop, ["high", "low", "random"])
    if not 0 <= fraction < 1:
        raise PumaError(f"fraction must lie in [0, 1), got {fraction}.")
    if score.dim() != 1:
        raise PumaError(f"score must be one number per sample, shape (n,), got shape {tuple(score.shape)}.")
    if bool(score.isnan().any()):
        raise PumaError(f"score must not be NaN, {int(score.isnan().sum())} of {len(score)} are.")
    keep = torch.ones(len(score), dtype=torch.bool, device=score.device)
    count = math.floor(fraction * len(score) + 1e-9)
    if count == 0:
        return keep
    ids = torch.arange(len(score)) if sample_id is None else sample_id.cpu()
    if drop == "random":
        return keep.index_fill_(0, _first_by_hash(ids, count, seed, drop).to(score.device), False)
    ascending = score if drop == "low" else -score
    last = ascending.kthvalue(count).values
    beyond = ascending < last
    tied = (ascending == last).nonzero().squeeze(1)
    chosen = _first_by_hash(ids[tied.cpu()], count - int(beyond.sum()), seed, drop)
    return (keep & ~beyond).index_fill_(0, tied[chosen.to(score.device)], False)


def _first_by_hash(ids: Tensor, count: int, seed: int, drop: Drop) -> Tensor:
    """Return the places of the ``count`` ids whose hash is lowest (highest, for dropping low scores)."""
    offset = mix_bits(np.array([seed], dtype=np.int64).view(np.uint64))
    hashes = mix_bits(ids.numpy().astype(np.int64).view(np.uint64) + offset)  # a bijection: no two are equal
    if drop == "low":
        hashes = ~hashes
    elif drop == "random":  # another order than that of ties
        hashes = mix_bits(hashes)
    places = np.argpartition(hashes, count - 1)[:count] if count < len(hashes) else np.arange(len(hashes))
    return torch.from_numpy(places[:count])


def adaptive_strength(margin: Tensor, eps: float, *, gap: float = 0.0) -> Tensor:
    """Return each sample's training radius: margin less gap, clipped to [-eps, eps] (Eq. 2, with a gap Eq. 3)."""
    if not (math.isfinite(eps) and eps > 0):
        raise PumaError(f"eps must be positive, got {eps}.")
    if not (math.isfinite(gap) and gap >= 0):
        raise PumaError(f"gap must not be negative, got {gap}.")
    if bool(margin.isnan().any()):
        raise PumaError(f"margin must not be NaN, {int(margin.isnan().sum())} of {len(margin)} are.")
    return (margin - gap).clamp(-eps, eps)
