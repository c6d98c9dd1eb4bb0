"""The attack that a configuration asks for, on the batch of one step."""

from torch import Tensor

from puma.training.config import TrainConfig
from puma.training.feed import StepBatch, attack_start
from puma.training.inner_attack import InnerAttack, steps_by_strength


def inner_attack(images: Tensor, strength: Tensor, piece: StepBatch, config: TrainConfig) -> InnerAttack:
    """Return the attack of one part of a batch; where it starts depends on the seed, the step and the rows alone."""
    settings = config.attack
    usual = "kl" if config.loss == "trades" else "ce"
    return InnerAttack(
        step_size=settings.step_size,
        steps=steps_by_strength(strength, settings) if settings.budget else settings.steps,
        loss=usual if settings.loss == "usual" else settings.loss,
        negative_loss=settings.negative_loss,
        step_ratio=settings.step_ratio,
        norm=settings.norm,
        batchnorm=settings.batchnorm,
        active_set=settings.budget,
        start=attack_start(images, strength, settings.norm, piece.whole, piece.rows, seed=config.seed, step=piece.step),
    )
