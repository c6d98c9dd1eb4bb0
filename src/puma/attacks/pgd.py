"""Projected gradient descent with a strength per sample, positive or negative; FGSM and BIM are special cases."""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from puma.attacks.losses import Loss, kl_to_clean, loss_by_name
from puma.attacks.norms import Norm, norm_by_name
from puma.attacks.validation import check_batch, check_labels_fit, strength_per_sample
from puma.errors import PumaError
from puma.models.frozen import BatchNormMode, frozen


def pgd(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    eps: float | Tensor,
    *,
    step_size: float,
    steps: int | Tensor,
    loss: str = "ce",
    random_start: bool = True,
    norm: str = "linf",
    bounds: tuple[float, float] = (0.0, 1.0),
    generator: Generator | None = None,
    negative_loss: str | None = None,
    step_ratio: float = 1.0,
    clean_logits: Tensor | None = None,
    batchnorm: BatchNormMode = "eval",
    active_set: bool = False,
) -> Tensor:
    """Return images perturbed by at most ``|eps|`` so that the loss rises, or falls where ``eps`` is negative.

    Args:
        model: anything that maps images to logits; it comes back as it was, its ``.grad`` fields untouched.
        images: floats within ``bounds``, (n, ...), on any device.
        labels: int64 (n,).
        eps: radius, one for all or (n,); where it is 0 the image comes back bit for bit.
        step_size: length of a step; a sample's own is ``min(step_size, step_ratio * |eps_i|)``.
        steps: how many, one for all or (n,).
        loss: ``ce`` to the label, ``kl`` to the clean prediction, or ``cw`` (margin of logits).
        random_start: begin at a uniformly drawn point of the ball instead of the image.
        norm: ``linf`` or ``l2``.
        bounds: smallest and largest pixel value.
        generator: source of the random start.
        negative_loss: the loss for samples with negative ``eps``; the same as ``loss`` unless given. KL to the clean
            prediction is smallest at the image itself, so TRADES training passes ``ce`` here.
        step_ratio: see ``step_size``.
        clean_logits: the clean prediction for ``kl``, if it is known already.
        batchnorm: ``eval`` uses running statistics, ``batch`` those of the batch (never updating the running ones).
        active_set: leave out samples that have no steps left or have stopped moving. The result is the same up to the
            rounding of other batch sizes, for less work; it synchronises with the device once per step.
    """
    attack = Attack(
        rule=norm_by_name(norm),
        loss=loss_by_name(loss),
        negative_loss=None if negative_loss in (None, loss) else loss_by_name(negative_loss or ""),
        bounds=bounds,
    )
    check_batch(images, labels, bounds)
    strength = strength_per_sample(eps, images)
    if not step_size > 0 or not step_ratio > 0:
        raise PumaError(f"step_size and step_ratio must be positive, got {step_size} and {step_ratio}.")
    if active_set and batchnorm == "batch":
        raise PumaError("active_set needs batchnorm='eval': with batch statistics samples depend on each other.")
    needs_clean = kl_to_clean in (attack.loss, attack.negative_loss)
    if needs_clean and not random_start:
        raise PumaError("loss 'kl' has no gradient at the image itself; use random_start=True.")

    with torch.inference_mode(False), torch.enable_grad(), frozen(model, batchnorm):
        inputs = Inputs(
            images=images.detach().clone() if images.is_inference() else images.detach(),
            labels=labels.clone() if labels.is_inference() else labels,
            clean_logits=clean_logits.detach() if clean_logits is not None else None,
            strength=strength,
            length=strength.sign() * (step_ratio * strength.abs()).clamp_max(step_size),
            steps=_steps_per_sample(steps, strength),
        )
        if needs_clean and clean_logits is None:
            with torch.no_grad():
                inputs = inputs.replace_clean_logits(model(inputs.images))
        start = inputs.images
        if random_start and len(images):
            noise = attack.rule.random_start(start, strength.abs(), generator)
            start = (start + noise).clamp_(*bounds)
        follow = _follow_active if active_set else _follow_all
        perturbed = follow(model, attack, inputs, start).detach()
    perturbed = torch.where((strength == 0).view(-1, *[1] * (images.dim() - 1)), images, perturbed)
    if not perturbed.isfinite().all():
        raise PumaError("the model's gradient is not finite (NaN or infinity); check its weights and logits.")
    return perturbed


def fgsm(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    eps: float | Tensor,
    *,
    loss: str = "ce",
    norm: str = "linf",
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Tensor:
    """One step of length ``|eps|`` from the image."""
    return bim(model, images, labels, eps, step_size=math.inf, steps=1, loss=loss, norm=norm, bounds=bounds)


def bim(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    eps: float | Tensor,
    *,
    step_size: float,
    steps: int,
    loss: str = "ce",
    norm: str = "linf",
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Tensor:
    """PGD that begins at the image."""
    return pgd(
        model,
        images,
        labels,
        eps,
        step_size=step_size,
        steps=steps,
        loss=loss,
        random_start=False,
        norm=norm,
        bounds=bounds,
    )


@dataclass(frozen=True)
class Attack:
    """What is the same for every sample."""

    rule: Norm
    loss: Loss
    negative_loss: Loss | None
    bounds: tuple[float, float]


@dataclass(frozen=True)
class Inputs:
    """What differs from sample to sample: all (n, ...)."""

    images: Tensor
    labels: Tensor
    clean_logits: Tensor | None
    strength: Tensor
    length: Tensor
    steps: Tensor | int

    def rows(self, rows: Tensor) -> "Inputs":
        """Only these samples."""
        clean = None if self.clean_logits is None else self.clean_logits[rows]
        steps = self.steps if isinstance(self.steps, int) else self.steps[rows]
        return Inputs(self.images[rows], self.labels[rows], clean, self.strength[rows], self.length[rows], steps)

    def replace_clean_logits(self, clean_logits: Tensor) -> "Inputs":
        """The same with the clean prediction filled in."""
        return Inputs(self.images, self.labels, clean_logits, self.strength, self.length, self.steps)


def _follow_all(model: nn.Module, attack: Attack, inputs: Inputs, start: Tensor) -> Tensor:
    """Every step on the whole batch; samples with fewer steps of their own stand still afterwards."""
    current = start
    most = inputs.steps if isinstance(inputs.steps, int) else int(inputs.steps.max()) if len(start) else 0
    for step in range(most):
        moved = _move(model, attack, inputs, current, first=step == 0)
        if not isinstance(inputs.steps, int):
            moving = (inputs.steps > step).view(-1, *[1] * (start.dim() - 1))
            moved = torch.where(moving, moved, current)
        current = moved
    return current


def _follow_active(model: nn.Module, attack: Attack, inputs: Inputs, start: Tensor) -> Tensor:
    """Every step on the samples that still move.

    An iterate that a step leaves in place is a fixed point: all later steps would leave it there too.
    """
    result = start.clone()
    own_steps = torch.as_tensor(inputs.steps, device=start.device).expand(len(start))
    alive = torch.where(inputs.strength != 0, own_steps, 0) > 0
    step = 0
    while bool(alive.any()):
        rows = alive.nonzero().squeeze(1)
        whole = len(rows) == len(start)
        before = result if whole else result[rows]
        moved = _move(model, attack, inputs if whole else inputs.rows(rows), before, first=step == 0)
        still = (moved == before).flatten(1).all(dim=1)
        result = result.index_copy(0, rows, moved)
        step += 1
        alive = alive.index_copy(0, rows, ~still & (own_steps[rows] > step))
    return result


def _move(model: nn.Module, attack: Attack, inputs: Inputs, current: Tensor, *, first: bool) -> Tensor:
    """One gradient step, projected to the ball and the pixel bounds."""
    point = current.detach().requires_grad_()
    logits: Tensor = model(point)
    if first:
        check_labels_fit(inputs.labels, logits)
    value = attack.loss(logits, inputs.labels, inputs.clean_logits)
    if attack.negative_loss is not None:
        inward = attack.negative_loss(logits, inputs.labels, inputs.clean_logits)
        value = torch.where(inputs.strength < 0, inward, value)
    if not value.requires_grad:
        raise PumaError("the model's output has no gradient with respect to its input; is it detached inside?")
    (gradient,) = torch.autograd.grad(value.sum(), point)
    offset = point.detach() + attack.rule.step(gradient, inputs.length) - inputs.images
    return (inputs.images + attack.rule.project(offset, inputs.strength.abs())).clamp_(*attack.bounds)


def _steps_per_sample(steps: int | Tensor, strength: Tensor) -> int | Tensor:
    if isinstance(steps, Tensor):
        if steps.shape != strength.shape or steps.is_floating_point() or bool((steps < 0).any()):
            raise PumaError(
                f"steps must be an int or {len(strength)} non-negative integers, "
                f"got {steps.dtype} of shape {tuple(steps.shape)}."
            )
        return steps.to(strength.device)
    if steps < 0:
        raise PumaError(f"steps must not be negative, got {steps}.")
    return steps
