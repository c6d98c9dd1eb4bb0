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
from puma.models import frozen
from puma.models.frozen import BatchNormMode

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
    """

    mode: Literal["off", "paper", "ours"] = "off"
    prune_at: float = 26 / 255
    prune_fraction: float = 0.2
    warmup: float = 0.2
    search_steps: int = 6

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


@dataclass(frozen=True)
class OnlineBatch:
    """What is trained on: rows of the candidates, their points on the segment, their strengths; share pruned."""

    rows: Tensor
    points: Tensor
    strength: Tensor
    easy_share: float
    pruned_share: float


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


def still_right(
    model: nn.Module, images: Tensor, labels: Tensor, attacked: Tensor, strength: Tensor, eps: float, distance: float
) -> Tensor:
    """Tell which samples the model gets right at a distance, which may lie beyond the attack (n,)."""
    if distance <= eps:
        return strength >= distance
    verdict = strength >= images.new_tensor(eps)
    rows = verdict.nonzero().squeeze(1)
    if len(rows):
        points = segment_point(images[rows], attacked[rows], images.new_full((len(rows),), distance), eps)
        verdict[rows] = model(points).argmax(dim=1) == labels[rows]
    return verdict


def choose(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    attacked: Tensor,
    clean_right: Tensor,
    *,
    eps: float,
    config: OnlineConfig,
    batchnorm: BatchNormMode,
    threshold: float,
    wanted: int,
    pruning: bool,
) -> OnlineBatch:
    """Find strengths, prune, and pick ``wanted`` samples; candidates come in random order, so the first are taken.

    In the mode ``paper`` what is pruned is not replaced. In ``ours`` a batch with too few samples left is filled with
    pruned ones.
    """
    with frozen(model, batchnorm), torch.inference_mode():
        compact, steps = batchnorm == "eval", config.search_steps
        strength = segment_strength(model, images, labels, attacked, clean_right, eps, steps=steps, compact=compact)
        easy = torch.zeros(len(images), dtype=torch.bool, device=images.device)
        if config.replaces or (config.mode == "paper" and config.prune_at > 0):
            easy = still_right(model, images, labels, attacked, strength, eps, threshold)
        pruned = easy if pruning else torch.zeros_like(easy)
        rows = torch.argsort(pruned.to(torch.int8), stable=True)
        kept = len(images) - int(pruned.sum())
        rows = rows[: min(wanted, kept) if config.mode == "paper" else wanted]
        points = segment_point(images[rows], attacked[rows], strength[rows], eps)
    return OnlineBatch(
        rows=rows.clone(),
        points=points.clone(),
        strength=strength[rows].clone(),
        easy_share=float(easy.double().mean()),
        pruned_share=float(pruned.double().mean()),
    )


def followed(threshold: float, easy_share: float, eps: float, config: OnlineConfig) -> float:
    """Move m_P towards the distance at which the asked share of samples is still right (a running quantile)."""
    if not config.replaces:
        return threshold
    moved = threshold * math.exp(_FOLLOW * (easy_share - config.prune_fraction))
    return min(max(moved, _LOWEST * eps), _HIGHEST * eps)
