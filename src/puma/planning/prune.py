"""Which samples stay: from a score to what is kept. Tensors in, tensors out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from puma.errors import PumaError, unknown_name
from puma.pools import Pool, mix_bits

Drop = Literal["high", "low", "random"]
Mask = NDArray[np.bool_]
Column = Tensor | NDArray[Any] | Sequence[float]


@dataclass(frozen=True)
class PruneRule:
    """Which samples go. Fractions are of the whole pool (or of each class or origin) before anything is dropped.

    Attributes:
        easy: share of the easiest samples to drop (PE).
        difficult: share of the most difficult samples to drop (PD).
        random: share of samples to drop at random.
        easy_threshold: drop samples easier than this score (margin above it; CD, EL2N, forgetting below it).
        difficult_threshold: drop samples as difficult as this score or more.
        within: take the shares of the whole ``pool``, or within each ``class`` or ``origin``.
        seed: tells apart samples of equal score, and draws the random ones.
        beyond: for being easy, or at random, drop only samples with a margin above so many eps; of the easy share
            those that are left, at random as many as there are.
        stratified: share to drop so that all ranges of the score stay covered (CCS, see ``prune_strata``); what
            ``difficult`` drops, the hardest, comes on top.
        strata: number of ranges.
    """

    easy: float = 0.0
    difficult: float = 0.0
    random: float = 0.0
    easy_threshold: float | None = None
    difficult_threshold: float | None = None
    within: Literal["pool", "class", "origin"] = "pool"
    seed: int = 0
    beyond: float | None = None
    stratified: float = 0.0
    strata: int = 50


def prune(
    score: Column, fraction: float, *, drop: Drop = "high", seed: int = 0, sample_id: Tensor | None = None
) -> Tensor:
    """Return which samples to keep (n,): all but ``floor(fraction * n)`` of the highest, lowest or random ones.

    Examples:
        >>> puma.prune(torch.tensor([0.3, -0.1, 0.2, 0.1]), 0.25)
        tensor([False,  True,  True,  True])

    Samples of equal score are told apart by a hash of ``seed`` and their id (their place if no ids are given), so a
    pool sorted by class does not lose one class first, and another order of the rows makes no difference. Dropping
    the highest and dropping the lowest break ties from opposite ends: the two never drop the same sample as long as
    their fractions add up to at most 1.
    """
    if drop not in ("high", "low", "random"):
        raise unknown_name("drop", drop, ["high", "low", "random"])
    if not 0 <= fraction < 1:
        raise PumaError(f"fraction must lie in [0, 1), got {fraction}.")
    score = to_column(score, "score")
    if bool(score.isnan().any()):
        raise PumaError(f"score must not be NaN, {int(score.isnan().sum())} of {len(score)} are.")
    keep = torch.ones(len(score), dtype=torch.bool, device=score.device)
    count = math.floor(fraction * len(score) + 1e-9)
    if count == 0:
        return keep
    ids = torch.arange(len(score)) if sample_id is None else sample_id.cpu()
    if drop == "random":
        return keep.index_fill_(0, _pick_by_hash(ids, count, seed, drop).to(score.device), False)
    ascending = score if drop == "low" else -score
    last = ascending.kthvalue(count).values
    beyond = ascending < last
    tied = (ascending == last).nonzero().squeeze(1)
    chosen = _pick_by_hash(ids[tied.cpu()], count - int(beyond.sum()), seed, drop)
    return (keep & ~beyond).index_fill_(0, tied[chosen.to(score.device)], False)


def prune_strata(
    score: Column, fraction: float, *, strata: int = 50, seed: int = 0, sample_id: Tensor | None = None
) -> Tensor:
    """Return which samples to keep (n,): all but ``floor(fraction * n)``, and of every range of the score some.

    Coverage-centric coreset selection (Zheng et al., ICLR 2023, Algorithm 1): the range of the score is cut into
    ``strata`` of equal width. From the stratum with the fewest samples on, each keeps at random as many as an equal
    share of what is still to be kept, or all it has.
    """
    if not 0 <= fraction < 1:
        raise PumaError(f"fraction must lie in [0, 1), got {fraction}.")
    if strata < 1:
        raise PumaError(f"strata must be positive, got {strata}.")
    score = to_column(score, "score")
    if bool(score.isnan().any()):
        raise PumaError(f"score must not be NaN, {int(score.isnan().sum())} of {len(score)} are.")
    ids = torch.arange(len(score)) if sample_id is None else sample_id.cpu()
    budget = len(score) - math.floor(fraction * len(score) + 1e-9)
    stratum = _find_strata(score.double().cpu(), strata)
    sizes = torch.bincount(stratum, minlength=strata)
    keep = torch.zeros(len(score), dtype=torch.bool)
    filled = sorted((place for place in range(strata) if sizes[place]), key=lambda place: (int(sizes[place]), place))
    for index, place in enumerate(filled):
        left = len(filled) - index
        wanted = min(int(sizes[place]), budget // left)
        if wanted:
            rows = (stratum == place).nonzero().squeeze(1)
            keep[rows[_pick_by_hash(ids[rows], wanted, seed, "random")]] = True
        budget -= wanted
    return keep.to(score.device)


def _find_strata(score: Tensor, strata: int) -> Tensor:
    """Return the stratum of each score; infinite ones go to the ends of the finite range."""
    finite = score[score.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    place = (score.clamp(low, high) - low) / ((high - low) or 1.0) * strata
    return place.long().clamp_(0, strata - 1)


def to_column(values: Column, name: str) -> Tensor:
    """Take numbers of shape (n,) from a tensor, an array or a list; anything else is told in one sentence."""
    try:
        column = values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError) as error:
        raise PumaError(f"{name} must be numbers of shape (n,), got {type(values).__name__}.") from error
    if column.dim() != 1:
        raise PumaError(f"{name} must be one number per sample, shape (n,), got shape {tuple(column.shape)}.")
    return column


def _pick_by_hash(ids: Tensor, count: int, seed: int, drop: Drop) -> Tensor:
    """Return the places of the ``count`` ids whose hash is lowest (highest, for dropping low scores)."""
    offset = mix_bits(np.array([seed], dtype=np.int64).view(np.uint64))
    hashes = mix_bits(ids.numpy().astype(np.int64).view(np.uint64) + offset)  # a bijection: no two are equal
    if drop == "low":
        hashes = ~hashes
    elif drop == "random":  # another order than that of ties
        hashes = mix_bits(hashes)
    places = np.argpartition(hashes, count - 1)[:count] if count < len(hashes) else np.arange(len(hashes))
    return torch.from_numpy(places[:count])


def keep_samples(
    pool: Pool,
    easiness: NDArray[np.float32] | None,
    rule: PruneRule,
    *,
    high_is_easy: bool,
    close: Mask | None = None,
) -> Mask:
    """Return which samples stay (n,); ``easiness`` is high for easy samples; ``close`` ones go as difficult only."""
    wants: list[tuple[Drop, float]] = [("high", rule.easy), ("low", rule.difficult), ("random", rule.random)]
    by_score = any((rule.easy, rule.difficult, rule.stratified))
    by_score |= rule.easy_threshold is not None or rule.difficult_threshold is not None
    if easiness is None:
        if by_score:
            raise PumaError("dropping easy or difficult samples needs a score; give --margins or --score FILE.")
        easiness = np.zeros(len(pool), dtype=np.float32)
    keep = np.ones(len(pool), dtype=bool)
    for rows in split_pool(pool, rule.within):
        for drop, fraction in wants:
            if drop == "random" and close is not None:
                _drop_far(keep, np.arange(len(pool))[rows], close, pool.sample_id, rule)
            elif fraction:
                ids = torch.from_numpy(pool.sample_id[rows])
                stays = prune(torch.from_numpy(easiness[rows]), fraction, drop=drop, seed=rule.seed, sample_id=ids)
                spared = close[rows] if drop == "high" and close is not None else np.False_
                keep[rows] &= stays.numpy() | spared
        if rule.stratified:
            _drop_strata(keep, np.arange(len(pool))[rows], easiness, pool.sample_id, rule)
    sign = 1 if high_is_easy else -1
    if rule.easy_threshold is not None:
        keep &= ~(easiness > sign * rule.easy_threshold)
    if rule.difficult_threshold is not None:
        keep &= ~(easiness <= sign * rule.difficult_threshold)
    return keep


def _drop_far(keep: Mask, rows: NDArray[np.int64], close: Mask, sample_id: NDArray[np.int64], rule: PruneRule) -> None:
    """Drop at random a share of these rows, but none that is close."""
    far = rows[~close[rows]]
    count = min(math.floor(rule.random * len(rows) + 1e-9), len(far))
    if count:
        keep[far[_pick_by_hash(torch.from_numpy(sample_id[far]), count, rule.seed, "random").numpy()]] = False


def _drop_strata(
    keep: Mask, rows: NDArray[np.int64], easiness: NDArray[np.float32], sample_id: NDArray[np.int64], rule: PruneRule
) -> None:
    """Drop a share of these rows, by strata of what is left of them."""
    left = rows[keep[rows]]
    share = min(rule.stratified * len(rows) / max(len(left), 1), 1.0)
    if math.floor(share * len(left) + 1e-9) >= len(left):
        keep[left] = False
        return
    ids = torch.from_numpy(sample_id[left])
    stays = prune_strata(torch.from_numpy(easiness[left]), share, strata=rule.strata, seed=rule.seed, sample_id=ids)
    keep[left] = stays.numpy()


def split_pool(pool: Pool, within: str) -> list[NDArray[np.int64] | slice]:
    """Return the rows that a share is taken of: all, or those of each class or origin."""
    if within == "pool":
        return [slice(None)]
    column = pool.labels if within == "class" else pool.origin
    order = np.argsort(column, kind="stable")
    ends = np.cumsum(np.bincount(column))
    return [rows for rows in np.split(order, ends[:-1]) if len(rows)]
