"""Projected gradient descent with a strength per sample, positive or negative; FGSM and BIM are special cases.

``pgd`` is the door; ``run_pgd`` has what the training losses need besides, and the steps themselves follow below.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from puma.attacks.norms import (
    Norm,
    Region,
    check_batch,
    check_clean_logits,
    check_labels_fit,
    check_radius,
    find_norm,
    per_sample,
    tell_precision,
    to_tensors,
)
from puma.errors import PumaError, unknown_name
from puma.models import BatchNormMode, frozen

AttackLoss = Callable[[Tensor, Tensor, Tensor | None], Tensor]
Ask = Callable[[Tensor], Tensor]  # images to logits
_STEPS_PER_RADIUS = 4  # the usual step: 2/255 at a radius of 8/255


def cross_entropy(logits: Tensor, labels: Tensor, clean_logits: Tensor | None) -> Tensor:  # noqa: ARG001
    """CE to the label (n,)."""
    return F.cross_entropy(logits, labels, reduction="none")


def kl_to_clean(logits: Tensor, labels: Tensor, clean_logits: Tensor | None) -> Tensor:  # noqa: ARG001
    """KL(clean prediction || prediction) (n,), the clean one held fixed (TRADES)."""
    assert clean_logits is not None
    clean = F.log_softmax(clean_logits, dim=1)
    return F.kl_div(F.log_softmax(logits, dim=1), clean, reduction="none", log_target=True).sum(dim=1)


def logit_margin(logits: Tensor, labels: Tensor, clean_logits: Tensor | None) -> Tensor:  # noqa: ARG001
    """C&W (n,): the best other class's logit minus the label's."""
    label = labels.unsqueeze(1)
    others = logits.scatter(1, label, -torch.inf)
    return others.amax(dim=1) - logits.gather(1, label).squeeze(1)


# an attack raises them, or lowers them for a negative strength
LOSSES: dict[str, AttackLoss] = {"ce": cross_entropy, "kl": kl_to_clean, "cw": logit_margin}


def find_loss(name: str) -> AttackLoss:
    """Look a loss up; an unknown name raises."""
    if name not in LOSSES:
        raise unknown_name("attack loss", name, list(LOSSES))
    return LOSSES[name]


def pgd(
    model: nn.Module,
    images: Any,
    labels: Any,
    eps: float | Tensor,
    *,
    steps: int = 10,
    step_size: float | None = None,
    loss: str = "ce",
    random_start: bool = True,
    norm: str = "linf",
    bounds: tuple[float, float] = (0.0, 1.0),
    generator: Generator | None = None,
) -> Tensor:
    """Return images perturbed by at most ``|eps|`` so that the loss rises, or falls where ``eps`` is negative.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))  # or yours: pixels in, logits out
        >>> images, labels = torch.rand(6, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2])
        >>> attacked = puma.pgd(model, images, labels, 8 / 255)  # the usual PGD-10
        >>> attacked.shape, bool(((attacked - images).abs() <= 8 / 255 + 1e-6).all())
        (torch.Size([6, 1, 4, 4]), True)
        >>> helped = puma.pgd(model, images, labels, -torch.full((6,), 0.1))  # a signed radius for each image

    Args:
        model: anything that maps images to logits (n, classes); it comes back as it was, ``.grad`` fields untouched.
        images: (n, ...) floats within ``bounds``, a tensor on any device or a numpy array.
        labels: (n,) whole numbers.
        eps: radius, one for all or (n,); where it is 0 the image comes back bit for bit.
        steps: how many.
        step_size: length of a step, at most ``|eps|``; a quarter of each sample's ``|eps|`` unless given.
        loss: ``ce`` to the label, ``kl`` to the clean prediction, or ``cw`` (margin of logits).
        random_start: begin at a uniformly drawn point of the ball instead of the image.
        norm: ``linf`` or ``l2``.
        bounds: smallest and largest pixel value.
        generator: source of the random start.
    """
    images, labels = to_tensors(images, labels)
    pixels = math.prod(images.shape[1:])
    check_radius(eps, norm=norm, pixels=pixels, bounds=bounds)
    if step_size is not None and step_size != math.inf:
        check_radius(step_size, "step_size", norm=norm, pixels=pixels, bounds=bounds)
    with tell_precision(images):
        return run_pgd(
            model,
            images,
            labels,
            eps,
            steps=steps,
            step_size=math.inf if step_size is None else step_size,
            step_ratio=1 / _STEPS_PER_RADIUS if step_size is None else 1.0,
            loss=loss,
            random_start=random_start,
            norm=norm,
            bounds=bounds,
            generator=generator,
        )


def fgsm(
    model: nn.Module,
    images: Any,
    labels: Any,
    eps: float | Tensor,
    *,
    loss: str = "ce",
    norm: str = "linf",
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Tensor:
    """Return images after one step of length ``|eps|`` that raises the loss; arguments as of ``pgd``.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))  # or yours: pixels in, logits out
        >>> images, labels = torch.rand(6, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2])
        >>> puma.fgsm(model, images, labels, 8 / 255).shape
        torch.Size([6, 1, 4, 4])
    """
    return bim(model, images, labels, eps, step_size=math.inf, steps=1, loss=loss, norm=norm, bounds=bounds)


def bim(
    model: nn.Module,
    images: Any,
    labels: Any,
    eps: float | Tensor,
    *,
    steps: int = 10,
    step_size: float | None = None,
    loss: str = "ce",
    norm: str = "linf",
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Tensor:
    """Return images attacked by PGD that begins at the image itself; arguments as of ``pgd``.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))  # or yours: pixels in, logits out
        >>> images, labels = torch.rand(6, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2])
        >>> puma.bim(model, images, labels, 8 / 255, steps=7, step_size=2 / 255).shape
        torch.Size([6, 1, 4, 4])
    """
    return pgd(
        model,
        images,
        labels,
        eps,
        steps=steps,
        step_size=step_size,
        loss=loss,
        random_start=False,
        norm=norm,
        bounds=bounds,
    )


def run_pgd(
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
    """Do what ``pgd`` does, with what a training loss needs besides; what is not told here is as there.

    Args:
        step_size: length of a step; a sample's own is ``min(step_size, step_ratio * |eps_i|)``.
        steps: how many, one for all or (n,).
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
    rule = find_norm(norm)
    attack = _Attack(rule, find_loss(loss), find_loss(loss if negative_loss is None else negative_loss), bounds)
    check_batch(images, labels, bounds)
    strength = _spread_strength(eps, images)
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
        ask = _match_precision(model, origin)
        if needs_clean and clean_logits is None:
            with torch.no_grad():
                clean_logits = _ask_first(ask, origin)
        targets = _Targets(
            labels=labels.clone() if labels.is_inference() else labels,
            clean_logits=clean_logits.detach() if clean_logits is not None else None,
            strength=strength,
            length=torch.where(strength == 0, 0, strength.sign() * (step_ratio * strength.abs()).clamp_max(step_size)),
            steps=_spread_steps(steps, strength),
            region=rule.region(origin, strength.abs(), bounds),
        )
        first = origin
        if start is not None:
            first = rule.project(start.detach().to(origin), targets.region, bounds)
        elif random_start and len(images):
            first = rule.random_start(origin, strength.abs(), generator).add_(origin).clamp_(*bounds)
        step_on = _step_active if active_set else _step_all
        perturbed, gradient_sum = step_on(ask, attack, targets, first)
    if not gradient_sum.isfinite():
        raise PumaError("the model's gradient is not finite (NaN or infinity); check its weights and logits.")
    return torch.where(per_sample(strength == 0, images), images, perturbed)


@dataclass(frozen=True)
class _Attack:
    """What is the same for every sample."""

    rule: Norm
    loss: AttackLoss
    negative_loss: AttackLoss
    bounds: tuple[float, float]


@dataclass(frozen=True)
class _Targets:
    """What differs from sample to sample: tensors (n, ...); ``length`` is a step's, with the strength's sign."""

    labels: Tensor
    clean_logits: Tensor | None
    strength: Tensor
    length: Tensor
    steps: Tensor | int
    region: Region

    def take_rows(self, rows: Tensor) -> "_Targets":
        """Only these samples."""
        return _Targets(
            labels=self.labels[rows],
            clean_logits=None if self.clean_logits is None else self.clean_logits[rows],
            strength=self.strength[rows],
            length=self.length[rows],
            steps=self.steps if isinstance(self.steps, int) else self.steps[rows],
            region=tuple(part[rows] for part in self.region),
        )


def _step_all(model: Ask, attack: _Attack, targets: _Targets, start: Tensor) -> tuple[Tensor, Tensor]:
    """Every step on the whole batch; samples with fewer steps of their own stand still afterwards.

    Returns the last points and the sum of all gradients, which is finite if every gradient was.
    """
    current, gradient_sum = start, torch.zeros((), device=start.device)
    most = targets.steps if isinstance(targets.steps, int) else int(targets.steps.max()) if len(start) else 0
    for step in range(most):
        moved, added = _take_step(model, attack, targets, current, first=step == 0)
        gradient_sum = gradient_sum + added
        if not isinstance(targets.steps, int):
            moved = torch.where(per_sample(targets.steps > step, moved), moved, current)
        current = moved
    return current, gradient_sum


def _step_active(model: Ask, attack: _Attack, targets: _Targets, start: Tensor) -> tuple[Tensor, Tensor]:
    """Every step on the samples that still move; returns the same as ``_step_all``.

    A point that a step leaves in place is a fixed point: all later steps would leave it there too.
    """
    result, gradient_sum = start.clone(), torch.zeros((), device=start.device)
    own_steps = torch.as_tensor(targets.steps, device=start.device).expand(len(start))
    alive = torch.where(targets.strength != 0, own_steps, 0) > 0
    step = 0
    while bool(alive.any()):
        rows = alive.nonzero().squeeze(1)
        whole = len(rows) == len(start)
        before = result if whole else result[rows]
        some = targets if whole else targets.take_rows(rows)
        moved, added = _take_step(model, attack, some, before, first=step == 0)
        gradient_sum = gradient_sum + added
        still = (moved == before).flatten(1).all(dim=1)
        result = moved if whole else result.index_copy(0, rows, moved)
        step += 1
        alive = alive.index_copy(0, rows, ~still & (own_steps[rows] > step))
    return result, gradient_sum


def _take_step(
    model: Ask, attack: _Attack, targets: _Targets, current: Tensor, *, first: bool
) -> tuple[Tensor, Tensor]:
    """One gradient step, projected to the ball and the pixel bounds; and the sum of the gradient."""
    point = current.detach().requires_grad_()
    logits = _ask_first(model, point) if first else model(point)
    if first:
        check_labels_fit(targets.labels, logits)
        check_clean_logits(targets.clean_logits, logits)
    value = attack.loss(logits, targets.labels, targets.clean_logits)
    if attack.negative_loss is not attack.loss:
        inward = attack.negative_loss(logits, targets.labels, targets.clean_logits)
        value = torch.where(targets.strength < 0, inward, value)
    if not value.requires_grad:
        raise PumaError("the model's output has no gradient with respect to its input; is it detached inside?")
    (gradient,) = torch.autograd.grad(value.sum(), point)
    stepped = attack.rule.step(gradient, targets.length).add_(current)
    wide = torch.promote_types(gradient.dtype, torch.float32)
    return attack.rule.project(stepped, targets.region, attack.bounds), gradient.sum(dtype=wide)


def _match_precision(model: nn.Module, images: Tensor) -> Ask:
    """Return what asks the model in the precision of its weights, if they are all of another than the images."""
    kinds = {weight.dtype for weight in model.parameters() if weight.is_floating_point()}
    if len(kinds) != 1 or images.dtype in kinds:
        return model
    (kind,) = kinds

    def ask(points: Tensor) -> Tensor:
        logits = model(points.to(kind))
        return logits.to(points.dtype) if isinstance(logits, Tensor) else logits

    return ask


def _ask_first(model: Ask, images: Tensor) -> Tensor:
    """Ask a model that was never asked before; what it cannot do is one sentence."""
    try:
        return model(images)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, AssertionError) as error:
        if isinstance(error, PumaError):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise PumaError(
            f"the model cannot take {images.dtype} images of shape {tuple(images.shape[1:])}: {reason}."
        ) from error


def _spread_strength(eps: float | Tensor, images: Tensor) -> Tensor:
    """Spread a scalar over the batch; refuse other shapes and values that are not finite."""
    strength = torch.as_tensor(eps, dtype=images.dtype, device=images.device)
    if strength.dim() == 0:
        strength = strength.expand(len(images))
    if strength.shape != images.shape[:1]:
        raise PumaError(f"eps must be a number or have shape ({len(images)},), got shape {tuple(strength.shape)}.")
    if not bool(strength.isfinite().all()):
        raise PumaError("eps must be finite, got NaN or infinity.")
    return strength.detach()


def _spread_steps(steps: int | Tensor, strength: Tensor) -> int | Tensor:
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
