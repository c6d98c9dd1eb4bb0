"""The steps of an attack: on the whole batch, or only on the samples that still move."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from puma.attacks.losses import Loss
from puma.attacks.norms import Norm, Region, per_sample
from puma.attacks.validation import check_clean_logits, check_labels_fit
from puma.errors import PumaError


@dataclass(frozen=True)
class Attack:
    """What is the same for every sample."""

    rule: Norm
    loss: Loss
    negative_loss: Loss
    bounds: tuple[float, float]


@dataclass(frozen=True)
class Samples:
    """What differs from sample to sample: tensors (n, ...); ``length`` is a step's, with the strength's sign."""

    labels: Tensor
    clean_logits: Tensor | None
    strength: Tensor
    length: Tensor
    steps: Tensor | int
    region: Region

    def rows(self, rows: Tensor) -> "Samples":
        """Only these samples."""
        return Samples(
            labels=self.labels[rows],
            clean_logits=None if self.clean_logits is None else self.clean_logits[rows],
            strength=self.strength[rows],
            length=self.length[rows],
            steps=self.steps if isinstance(self.steps, int) else self.steps[rows],
            region=tuple(part[rows] for part in self.region),
        )


def follow_all(model: nn.Module, attack: Attack, samples: Samples, start: Tensor) -> tuple[Tensor, Tensor]:
    """Every step on the whole batch; samples with fewer steps of their own stand still afterwards.

    Returns the last points and the sum of all gradients, which is finite if every gradient was.
    """
    current, gradient_sum = start, torch.zeros((), device=start.device)
    most = samples.steps if isinstance(samples.steps, int) else int(samples.steps.max()) if len(start) else 0
    for step in range(most):
        moved, added = _move(model, attack, samples, current, first=step == 0)
        gradient_sum = gradient_sum + added
        if not isinstance(samples.steps, int):
            moved = torch.where(per_sample(samples.steps > step, moved), moved, current)
        current = moved
    return current, gradient_sum


def follow_active(model: nn.Module, attack: Attack, samples: Samples, start: Tensor) -> tuple[Tensor, Tensor]:
    """Every step on the samples that still move; returns the same as ``follow_all``.

    A point that a step leaves in place is a fixed point: all later steps would leave it there too.
    """
    result, gradient_sum = start.clone(), torch.zeros((), device=start.device)
    own_steps = torch.as_tensor(samples.steps, device=start.device).expand(len(start))
    alive = torch.where(samples.strength != 0, own_steps, 0) > 0
    step = 0
    while bool(alive.any()):
        rows = alive.nonzero().squeeze(1)
        whole = len(rows) == len(start)
        before = result if whole else result[rows]
        moved, added = _move(model, attack, samples if whole else samples.rows(rows), before, first=step == 0)
        gradient_sum = gradient_sum + added
        still = (moved == before).flatten(1).all(dim=1)
        result = moved if whole else result.index_copy(0, rows, moved)
        step += 1
        alive = alive.index_copy(0, rows, ~still & (own_steps[rows] > step))
    return result, gradient_sum


def _move(model: nn.Module, attack: Attack, samples: Samples, current: Tensor, *, first: bool) -> tuple[Tensor, Tensor]:
    """One gradient step, projected to the ball and the pixel bounds; and the sum of the gradient."""
    point = current.detach().requires_grad_()
    logits: Tensor = model(point)
    if first:
        check_labels_fit(samples.labels, logits)
        check_clean_logits(samples.clean_logits, logits)
    value = attack.loss(logits, samples.labels, samples.clean_logits)
    if attack.negative_loss is not attack.loss:
        inward = attack.negative_loss(logits, samples.labels, samples.clean_logits)
        value = torch.where(samples.strength < 0, inward, value)
    if not value.requires_grad:
        raise PumaError("the model's output has no gradient with respect to its input; is it detached inside?")
    (gradient,) = torch.autograd.grad(value.sum(), point)
    stepped = attack.rule.step(gradient, samples.length).add_(current)
    wide = torch.promote_types(gradient.dtype, torch.float32)
    return attack.rule.project(stepped, samples.region, attack.bounds), gradient.sum(dtype=wide)
