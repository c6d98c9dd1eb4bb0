"""The attack inside the training loss: how it is configured, and how many steps each sample gets."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parallel import DistributedDataParallel

from puma.attacks.pgd import run_pgd
from puma.models.prepare import BatchNormMode


@dataclass(frozen=True)
class AttackConfig:
    """The inner attack.

    Attributes:
        eps: strength of every sample, unless a plan gives each its own.
        step_size: length of a step; a sample's own is ``min(step_size, step_ratio * |strength|)``.
        steps: how many.
        step_ratio: see ``step_size``.
        norm: ``linf`` or ``l2``.
        loss: what it raises: ``kl`` to the clean prediction, ``ce`` to the label or ``cw``; ``usual`` is ``kl`` for
            TRADES and ``ce`` for PGD-AT.
        negative_loss: what it lowers where the strength is negative. KL to the clean prediction is smallest where the
            sample is, so the label's ``ce`` is lowered instead.
        batchnorm: statistics that BN uses in the attack: ``eval`` the running ones, ``batch`` those of the batch; the
            running ones are not touched by either.
        budget: give a sample only ``ceil(steps * |strength| / eps)`` steps and leave it out of the later ones.
    """

    eps: float = 8 / 255
    step_size: float = 2 / 255
    steps: int = 10
    step_ratio: float = 1.0
    norm: Literal["linf", "l2"] = "linf"
    loss: Literal["usual", "kl", "ce", "cw"] = "usual"
    negative_loss: Literal["kl", "ce", "cw"] = "ce"
    batchnorm: BatchNormMode = "eval"
    budget: bool = False


def steps_by_strength(strength: Tensor, config: AttackConfig) -> Tensor:
    """Return the steps each radius needs (n,): ``steps`` at ``eps``, in proportion below, never more than ``steps``."""
    share = (strength.abs() / config.eps).clamp_max(1)
    return torch.ceil(config.steps * share - 1e-4).long()  # the small term keeps rounding from adding a step


@dataclass(frozen=True)
class InnerAttack:
    """The arguments of the attack that a training loss passes on."""

    step_size: float
    steps: int | Tensor
    loss: str = "kl"
    negative_loss: str = "ce"
    step_ratio: float = 1.0
    norm: str = "linf"
    bounds: tuple[float, float] = (0.0, 1.0)
    batchnorm: BatchNormMode = "eval"
    generator: Generator | None = None
    start: Tensor | None = None
    active_set: bool = False

    def perturb(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        strength: float | Tensor,
        clean_logits: Tensor | None = None,
    ) -> Tensor:
        """Attack the images, or help those of negative strength; the model is left as it was."""
        return run_pgd(
            unwrapped(model),
            images,
            labels,
            strength,
            step_size=self.step_size,
            steps=self.steps,
            loss=self.loss,
            negative_loss=self.negative_loss,
            step_ratio=self.step_ratio,
            norm=self.norm,
            bounds=self.bounds,
            batchnorm=self.batchnorm,
            generator=self.generator,
            start=self.start,
            active_set=self.active_set,
            clean_logits=clean_logits,
        )


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside DistributedDataParallel: an attack must not start collectives."""
    inner: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
    return inner


def same_clean_logits(model: nn.Module, batchnorm: BatchNormMode) -> bool:
    """Tell whether the loss's clean logits are also those the attack compares with, so that one pass serves both."""
    training = [module for module in model.modules() if module.training]
    if any(isinstance(module, _DropoutNd) for module in training):
        return False
    if batchnorm == "batch":
        return all(module.training for module in model.modules() if isinstance(module, _BatchNorm))
    return not any(isinstance(module, _BatchNorm) for module in training)
