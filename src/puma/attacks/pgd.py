"""Projected gradient descent with a strength per sample, positive or negative; FGSM and BIM are special cases."""

import math

import torch
from torch import Generator, Tensor, nn

from puma.attacks.iterate import Attack, Samples, follow_active, follow_all
from puma.attacks.losses import kl_to_clean, loss_by_name
from puma.attacks.norms import norm_by_name, per_sample
from puma.attacks.validation import check_batch, strength_per_sample
from puma.errors import PumaError, unknown_name
from puma.models.prepare import BatchNormMode, frozen


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
    start: Tensor | None = None,
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
        start: where to begin, shaped like ``images``, instead of a random start; it is brought into the ball first.
    """
    images = images.detach()
    rule = norm_by_name(norm)
    attack = Attack(rule, loss_by_name(loss), loss_by_name(loss if negative_loss is None else negative_loss), bounds)
    check_batch(images, labels, bounds)
    strength = strength_per_sample(eps, images)
    if not step_size > 0 or not step_ratio > 0:
        raise PumaError(f"step_size and step_ratio must be positive, got {step_size} and {step_ratio}.")
    if batchnorm not in ("eval", "batch"):
        raise unknown_name("batchnorm", batchnorm, ["eval", "batch"])
    if active_set and batchnorm == "batch":
        raise PumaError("active_set needs batchnorm='eval': with batch statistics samples depend on each other.")
    needs_clean = kl_to_clean in (attack.loss, attack.negative_loss)
    if start is not None and start.shape != images.shape:
        raise PumaError(f"start must have the images' shape {tuple(images.shape)}, got {tuple(start.shape)}.")
    if needs_clean and not random_start and start is None:
        raise PumaError("loss 'kl' has no gradient at the image itself; use random_start=True.")

    with torch.inference_mode(False), torch.enable_grad(), frozen(model, batchnorm):
        origin = images.clone() if images.is_inference() else images
        if needs_clean and clean_logits is None:
            with torch.no_grad():
                clean_logits = model(origin)
        samples = Samples(
            labels=labels.clone() if labels.is_inference() else labels,
            clean_logits=clean_logits.detach() if clean_logits is not None else None,
            strength=strength,
            length=torch.where(strength == 0, 0, strength.sign() * (step_ratio * strength.abs()).clamp_max(step_size)),
            steps=_steps_per_sample(steps, strength),
            region=rule.region(origin, strength.abs(), bounds),
        )
        first = origin
        if start is not None:
            first = rule.project(start.detach().to(origin), samples.region, bounds)
        elif random_start and len(images):
            first = rule.random_start(origin, strength.abs(), generator).add_(origin).clamp_(*bounds)
        follow = follow_active if active_set else follow_all
        perturbed, gradient_sum = follow(model, attack, samples, first)
    if not gradient_sum.isfinite():
        raise PumaError("the model's gradient is not finite (NaN or infinity); check its weights and logits.")
    return torch.where(per_sample(strength == 0, images), images, perturbed)


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


def _steps_per_sample(steps: int | Tensor, strength: Tensor) -> int | Tensor:
    if isinstance(steps, Tensor):
        if steps.shape != strength.shape or steps.is_floating_point() or bool((steps < 0).any()):
            raise PumaError(
                f"steps must be an int or {len(strength)} non-negative integers, "
                f"got {steps.dtype} of shape {tuple(steps.shape)}."
            )
        return steps.to(strength.device)
    if not isinstance(steps, int) or steps < 0:
        raise PumaError(f"steps must be a whole number and not negative, got {steps}.")
    return steps
