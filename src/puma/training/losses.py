"""TRADES with a signed strength per sample, the two losses that people compare it with, and the attack inside them."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parallel import DistributedDataParallel

from puma.attacks import check_radius, find_norm, per_sample, run_pgd, tell_precision, to_tensors
from puma.errors import PumaError
from puma.models import BatchNormMode, fold_batchnorm, frozen
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
    fold: bool = False

    def perturb(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        strength: float | Tensor,
        clean_logits: Tensor | None = None,
    ) -> Tensor:
        """Attack the images, or help those of negative strength; the model is left as it was."""
        attacked = unwrap_ddp(model)
        return run_pgd(
            fold_for_attack(attacked) if self.fold else attacked,
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
        fold=config.compute.fold_batchnorm,
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


def fold_for_attack(model: nn.Module) -> nn.Module:
    """Return a copy of a model in which BN layers are folded into the convolutions before them, for one attack."""
    with frozen(model):
        try:
            return fold_batchnorm(model)
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:  # what torch.fx raises
            raise PumaError(
                f"compute.fold_batchnorm: the model cannot be traced ({str(error).splitlines()[0]}); leave it out."
            ) from error


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


@dataclass(frozen=True)
class LossResult:
    """A loss and the logits it was made of; None where there were none."""

    loss: Tensor
    clean: Tensor | None
    attacked: Tensor | None
    each: Tensor | None = None  # of every sample (n,), where samples are weighted


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

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))  # or yours: pixels in, logits out
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
    with tell_precision(images):
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


def weight_samples(outcome: LossResult, labels: Tensor, weight: Tensor, config: TrainConfig) -> LossResult:
    """Return the loss with a weight per sample (n,): the mean of weight times loss; ``each`` is without the weight."""
    judged = outcome.attacked if config.loss == "pgd-at" else outcome.clean
    assert judged is not None
    each = F.cross_entropy(judged, labels, label_smoothing=config.label_smoothing, reduction="none")
    if config.loss == "trades" and outcome.attacked is not None:
        clean, attacked = F.log_softmax(judged, dim=1), F.log_softmax(outcome.attacked, dim=1)
        each = each + config.beta * F.kl_div(attacked, clean, reduction="none", log_target=True).sum(dim=1)
    return replace(outcome, loss=(weight * each).mean(), each=each.detach())


def mean_kl(clean: Tensor, attacked: Tensor) -> Tensor:
    """KL(clean prediction || attacked prediction), averaged over the batch."""
    return F.kl_div(F.log_softmax(attacked, dim=1), F.log_softmax(clean, dim=1), reduction="batchmean", log_target=True)


def to_full_precision(logits: Tensor) -> Tensor:
    """Return half-precision logits as float32, others as they are: losses are never taken in half precision."""
    if not isinstance(logits, Tensor):
        raise PumaError(f"the model must give its logits as one tensor, it gave {type(logits).__name__}; wrap it.")
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
