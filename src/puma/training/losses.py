"""TRADES with a signed strength per sample, and the two losses that people compare it with."""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from puma.attacks.validation import check_radius, to_tensors
from puma.errors import PumaError
from puma.models.prepare import BatchNormMode
from puma.training.inner_attack import InnerAttack, shares_clean_logits


@dataclass(frozen=True)
class LossResult:
    """A loss and the logits it was made of; None where there were none."""

    loss: Tensor
    clean: Tensor | None
    attacked: Tensor | None


def trades_loss(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    strength: float | Tensor,
    *,
    beta: float = 5.0,
    label_smoothing: float = 0.1,
    step_size: float | None = None,
    steps: int | Tensor = 10,
    attack_loss: str = "kl",
    negative_loss: str = "ce",
    step_ratio: float = 1.0,
    norm: str = "linf",
    bounds: tuple[float, float] = (0.0, 1.0),
    batchnorm: BatchNormMode = "eval",
    generator: Generator | None = None,
    start: Tensor | None = None,
    active_set: bool = False,
) -> Tensor:
    """Return CE(clean) + beta * KL(clean || attacked), averaged over the batch; gradients flow through both branches.

    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))  # or your own: pixels in, logits out
    >>> images, labels = torch.rand(6, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    >>> strength = puma.adaptive_strength(torch.linspace(-0.01, 0.05, 6), 8 / 255)  # (n,), from margins
    >>> loss = puma.trades_loss(model, images, labels, strength)
    >>> loss.backward()

    Where ``strength`` is positive the image is attacked, where it is negative it is helped: moved by at most
    ``|strength|`` so that ``negative_loss`` falls. With one positive strength for all this is TRADES.

    Args:
        model: maps images to logits, in training mode as a rule; its mode and ``.grad`` fields stay as they are.
        images: (n, ...) floats within ``bounds``, a tensor or a numpy array.
        labels: whole numbers (n,).
        strength: signed radius, one for all or (n,).
        beta: weight of the KL term.
        label_smoothing: of the CE term.
        step_size: length of an attack step; a quarter of the largest strength unless given.
        steps: number of attack steps, one for all or (n,).
        attack_loss: what the attack raises.
        negative_loss: what it lowers where ``strength`` is negative.
        step_ratio: caps a sample's step at this share of its own radius.
        norm: ``linf`` or ``l2``.
        bounds: smallest and largest pixel value.
        batchnorm: statistics that BN uses in the attack, see ``puma.pgd``.
        generator: source of the attack's random start.
        start: begin the attack here instead.
        active_set: leave finished samples out of later attack steps; needs ``batchnorm="eval"``.
    """
    images, labels = to_tensors(images, labels)
    check_radius(strength, "strength", norm=norm, pixels=math.prod(images.shape[1:]), bounds=bounds)
    if step_size is None:
        largest = float(torch.as_tensor(strength).detach().abs().max()) if len(images) else 0.0
        step_size = largest / 4 or 1.0  # nothing moves where every strength is 0
    attack = InnerAttack(
        step_size=step_size,
        steps=steps,
        loss=attack_loss,
        negative_loss=negative_loss,
        step_ratio=step_ratio,
        norm=norm,
        bounds=bounds,
        batchnorm=batchnorm,
        generator=generator,
        start=start,
        active_set=active_set,
    )
    return compute_trades(model, images, labels, strength, attack, beta=beta, label_smoothing=label_smoothing).loss


def compute_trades(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    strength: float | Tensor,
    attack: InnerAttack,
    *,
    beta: float,
    label_smoothing: float,
) -> LossResult:
    """Compute what ``trades_loss`` returns, and the logits with it."""
    if shares_clean_logits(model, attack.batchnorm):
        clean = to_full_precision(model(images))
        attacked_images = attack.perturb(model, images, labels, strength, clean)
    else:  # the attack comes first, so that it sees the running statistics of before this batch
        attacked_images = attack.perturb(model, images, labels, strength)
        clean = to_full_precision(model(images))
    attacked = to_full_precision(model(attacked_images))
    return combine_trades_terms(clean, attacked, labels, beta=beta, label_smoothing=label_smoothing)


def combine_trades_terms(
    clean: Tensor, attacked: Tensor, labels: Tensor, *, beta: float, label_smoothing: float
) -> LossResult:
    """CE of the clean logits plus beta times KL to the attacked ones."""
    label_term = F.cross_entropy(clean, labels, label_smoothing=label_smoothing)
    return LossResult(label_term + beta * mean_kl(clean, attacked), clean, attacked)


def compute_pgd_at(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    strength: float | Tensor,
    attack: InnerAttack,
    *,
    label_smoothing: float,
) -> LossResult:
    """CE of the attacked images (Madry et al.)."""
    attacked = to_full_precision(model(attack.perturb(model, images, labels, strength)))
    return LossResult(F.cross_entropy(attacked, labels, label_smoothing=label_smoothing), None, attacked)


def compute_standard(model: nn.Module, images: Tensor, labels: Tensor, *, label_smoothing: float) -> LossResult:
    """CE of the clean images."""
    clean = to_full_precision(model(images))
    return LossResult(F.cross_entropy(clean, labels, label_smoothing=label_smoothing), clean, None)


def mean_kl(clean: Tensor, attacked: Tensor) -> Tensor:
    """KL(clean prediction || attacked prediction), averaged over the batch."""
    return F.kl_div(F.log_softmax(attacked, dim=1), F.log_softmax(clean, dim=1), reduction="batchmean", log_target=True)


def to_full_precision(logits: Tensor) -> Tensor:
    """Return half-precision logits as float32, others as they are: losses are never taken in half precision."""
    if not isinstance(logits, Tensor):
        raise PumaError(f"the model must give its logits as one tensor, it gave {type(logits).__name__}; wrap it.")
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
