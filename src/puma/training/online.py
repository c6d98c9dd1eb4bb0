"""Online PUMA: strength and pruning from the attack of the batch at hand, without margins measured beforehand.

After the usual attack, the segment from the image to the attacked image is searched for the largest signed distance m
at which the model is still right; m is the sample's strength. A sample that is still right far out, at m_P, is easy
and pruned. With a fixed m_P (``paper``) a young model may find every sample easy or none; ``ours`` prunes nothing while
it warms up and lets m_P follow the quantile of the margins, so that the share that is pruned is the one asked for.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from puma.attacks.norms import per_sample

_FOLLOW = 0.5  # how fast m_P follows, in units of its logarithm per unit of share
_LOWEST, _HIGHEST = 1e-3, 30.0  # bounds of m_P in multiples of eps


@dataclass(frozen=True)
class OnlineConfig:
    """Strengths and pruning decided batch by batch; needs the loss trades.

    Attributes:
        mode: ``off``; ``paper`` prunes at a fixed distance from the first step on; ``ours`` prunes a fixed share after
            a warm-up and replaces what it prunes, so that batches stay full.
        prune_at: paper: a sample that is still right this far out is pruned; 0 prunes nothing.
        prune_fraction: ours: share of samples to prune.
        warmup: ours: share of the training before pruning begins.
        search_steps: halvings of the segment.
        probe_steps: ours: after so many steps of the attack it is decided what is pruned; the rest go on alone.
    """

    mode: Literal["off", "paper", "ours"] = "off"
    prune_at: float = 26 / 255
    prune_fraction: float = 0.2
    warmup: float = 0.2
    search_steps: int = 6
    probe_steps: int = 3

    @property
    def replaces(self) -> bool:
        """Whether batches need candidates to replace pruned samples."""
        return self.mode == "ours" and self.prune_fraction > 0

    def candidates(self, batch_size: int, ranks: int) -> int:
        """Return how many samples to draw so that about ``batch_size`` are left; a multiple of the ranks."""
        if not self.replaces:
            return batch_size
        return math.ceil(batch_size / (1 - self.prune_fraction) / ranks) * ranks


@dataclass
class OnlineState:
    """What one step hands to the next: the distance m_P."""

    threshold: float


def first_threshold(config: OnlineConfig, eps: float) -> float:
    """Return m_P before the first step."""
    return config.prune_at if config.mode == "paper" else 2 * eps


def segment_point(images: Tensor, attacked: Tensor, distance: Tensor, eps: float) -> Tensor:
    """Return image + distance / eps * (attacked - image), within the pixel bounds; negative goes the other way."""
    return (images + per_sample(distance / eps, images) * (attacked - images)).clamp(0, 1)


def segment_strength(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    attacked: Tensor,
    clean_right: Tensor,
    eps: float,
    *,
    steps: int,
    compact: bool = True,
) -> Tensor:
    """Return the largest m in [-eps, eps] (n,) at which the model is right on the segment, by bisection.

    Being right at the image, or not, tells which half to search. Where the model is wrong even at -eps, m is -eps;
    where it is right at +eps, m is eps. The model is used as it is; unless ``compact`` is False, as a model that
    normalises by its batch needs it, only undecided samples are evaluated.
    """

    def right(rows: Tensor, distance: Tensor) -> Tensor:
        points = segment_point(images[rows], attacked[rows], distance, eps)
        verdict: Tensor = model(points).argmax(dim=1) == labels[rows]
        return verdict

    radius = images.new_tensor(eps)
    strength = torch.where(clean_right, radius, -radius)
    rows = torch.arange(len(images), device=images.device)
    undecided = right(rows, strength) != clean_right
    low = torch.where(undecided, torch.where(clean_right, 0 * radius, -radius), strength)  # right here
    high = torch.where(undecided, low + radius, strength)  # wrong here; the decided stand still
    if compact:
        rows = undecided.nonzero().squeeze(1)
        low, high = low[rows], high[rows]
    for _ in range(steps if len(rows) else 0):
        middle = (low + high) / 2
        verdict = right(rows, middle)
        low, high = torch.where(verdict, middle, low), torch.where(verdict, high, middle)
    return strength.index_copy(0, rows, low)


def right_at(model: nn.Module, images: Tensor, labels: Tensor, attacked: Tensor, eps: float, distance: float) -> Tensor:
    """Tell which samples the model gets right at a distance, which may lie beyond the attack (n,)."""
    points = segment_point(images, attacked, images.new_full((len(images),), distance), eps)
    verdict: Tensor = model(points).argmax(dim=1) == labels
    return verdict


def pick(pruned: Tensor, wanted: int, *, fill: bool) -> Tensor:
    """Return the first ``wanted`` rows that are not pruned; where there are fewer, ``fill`` up with pruned ones."""
    rows = torch.argsort(pruned.to(torch.int8), stable=True)
    return rows[: wanted if fill else min(wanted, len(pruned) - int(pruned.sum()))]


def followed(threshold: float, easy_share: float, eps: float, config: OnlineConfig) -> float:
    """Move m_P towards the distance at which the asked share of samples is still right (a running quantile)."""
    if not config.replaces:
        return threshold
    moved = threshold * math.exp(_FOLLOW * (easy_share - config.prune_fraction))
    return min(max(moved, _LOWEST * eps), _HIGHEST * eps)
