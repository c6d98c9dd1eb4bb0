"""EMA: the moving average of a model's weights over training, a model of its own with its own BN statistics."""

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class EmaConfig:
    """How the averaged model follows the trained one.

    Attributes:
        decay: share of the old average that a step keeps, at most.
        copy_steps: for so many steps the average is a plain copy; the warm-up (1 + t) / (10 + t) begins after them.
        buffers: average treats BN statistics like weights; copy takes those of the trained model.
    """

    decay: float = 0.995
    copy_steps: int = 0
    buffers: Literal["average", "copy"] = "average"


def ema_decay(step: int, config: EmaConfig) -> float:
    """Return the share of the old average that step ``step`` (from 0) keeps: min(decay, (1 + t) / (10 + t))."""
    since = step - config.copy_steps
    return 0.0 if since < 0 else min(config.decay, (1 + since) / (10 + since))


def copy_for_ema(model: nn.Module) -> nn.Module:
    """Return a copy to hold the average: eval mode, no gradients, nothing shared with the model."""
    return copy.deepcopy(model).eval().requires_grad_(False)


@torch.no_grad()
def update_ema(average: nn.Module, model: nn.Module, step: int, config: EmaConfig) -> None:
    """Move the average towards the model by one step; counters are copied."""
    decay = ema_decay(step, config)
    old: list[Tensor] = list(average.parameters())
    new: list[Tensor] = list(model.parameters())
    for mine, its in zip(average.buffers(), model.buffers(), strict=True):
        if config.buffers == "average" and mine.is_floating_point():
            old.append(mine)
            new.append(its)
        else:
            mine.copy_(its)
    _lerp_tensors(old, new, 1 - decay)


def _lerp_tensors(old: list[Tensor], new: list[Tensor], weight: float) -> None:
    """Move every tensor of ``old`` towards its partner, all in one launch; weight 1 copies exactly."""
    if weight == 1:
        torch._foreach_copy_(old, new)
    elif old:
        torch._foreach_lerp_(old, new, weight)
