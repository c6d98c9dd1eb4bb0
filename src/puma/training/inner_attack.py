"""The attack inside the training loss: where it starts, how many steps each sample gets, which passes it shares."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parallel import DistributedDataParallel

from puma.attacks.norms import find_norm, per_sample
from puma.attacks.pgd import run_pgd
from puma.models.prepare import BatchNormMode
from puma.training.batches import TrainBatch
from puma.training.config import AttackConfig, TrainConfig

_ATTACK_STREAM = 2  # randomness that must not repeat that of the augmentation (1) or of online candidates (3)


def count_steps(strength: Tensor, config: AttackConfig) -> Tensor:
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
            unwrap_ddp(model),
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


def make_inner_attack(images: Tensor, strength: Tensor, batch: TrainBatch, config: TrainConfig) -> InnerAttack:
    """Return the attack on one part of a batch; where it starts depends on the seed, the step and the rows alone."""
    settings = config.attack
    usual = "kl" if config.loss == "trades" else "ce"
    return InnerAttack(
        step_size=settings.step_size,
        steps=count_steps(strength, settings) if settings.budget else settings.steps,
        loss=usual if settings.loss == "usual" else settings.loss,
        negative_loss=settings.negative_loss,
        step_ratio=settings.step_ratio,
        norm=settings.norm,
        batchnorm=settings.batchnorm,
        active_set=settings.budget,
        start=draw_attack_start(
            images, strength, settings.norm, batch.whole, batch.rows, seed=config.seed, step=batch.step
        ),
    )


def draw_attack_start(
    images: Tensor, strength: Tensor, norm: str, batch_size: int, rows: NDArray[np.int64], *, seed: int, step: int
) -> Tensor:
    """Draw a point of each sample's ball; it depends on the sample's row in the whole batch, like augmentation."""
    state = int(np.random.SeedSequence((seed, step, _ATTACK_STREAM)).generate_state(1, np.uint64)[0] >> np.uint64(1))
    generator = Generator(images.device).manual_seed(state)
    whole = images.new_zeros(()).expand(batch_size, *images.shape[1:])
    noise = find_norm(norm).random_start(whole, images.new_ones(batch_size), generator)
    if len(rows) < batch_size:
        noise = noise[torch.from_numpy(rows).to(noise.device)]
    return (images + noise * per_sample(strength.abs(), images)).clamp_(0, 1)


def unwrap_ddp(model: nn.Module) -> nn.Module:
    """Return the module inside DistributedDataParallel: an attack must not start collectives."""
    inner: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
    return inner


def shares_clean_logits(model: nn.Module, batchnorm: BatchNormMode) -> bool:
    """Tell whether the loss's clean logits are also those the attack compares with, so that one pass serves both."""
    training = [module for module in model.modules() if module.training]
    if any(isinstance(module, _DropoutNd) for module in training):
        return False
    if batchnorm == "batch":
        return all(module.training for module in model.modules() if isinstance(module, _BatchNorm))
    return not any(isinstance(module, _BatchNorm) for module in training)
