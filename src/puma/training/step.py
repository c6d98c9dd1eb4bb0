"""One optimizer step: loss, gradients, update, average."""

import math
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.amp.autocast_mode import autocast
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from puma.errors import PumaError
from puma.models.ema import copy_for_ema, update_ema
from puma.pools import to_unit
from puma.training.batch_attack import inner_attack
from puma.training.config import TrainConfig
from puma.training.distributed import Ranks, wrapped
from puma.training.feed import StepBatch
from puma.training.online import OnlineState, first_threshold
from puma.training.online_step import online_loss
from puma.training.optimizer import make_sgd
from puma.training.schedule import rate_at
from puma.training.trades import Outcome, pgd_at, standard, trades

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Parts:
    """What a step works with. ``called`` is what the loss calls: the model, compiled or inside DDP if so configured."""

    model: nn.Module
    called: nn.Module
    average: nn.Module
    optimizer: torch.optim.SGD
    scaler: GradScaler | None
    ranks: Ranks
    online: OnlineState


@dataclass(frozen=True)
class OnlineStep:
    """What the online method did in a step: share that was easy, and left out, where, and strengths trained at."""

    easy_share: float
    pruned_share: float
    threshold: float
    strength: Tensor


@dataclass(frozen=True)
class StepResult:
    """This process's share of a batch: loss summed over samples, which of them were right (None without such a pass).

    All on the device; the gradient's length is that of the whole batch.
    """

    samples: int
    loss: Tensor
    clean_right: Tensor | None
    attacked_right: Tensor | None
    gradient_norm: float
    online: OnlineStep | None = None


def make_parts(model: nn.Module, config: TrainConfig, ranks: Ranks) -> Parts:
    """Put a model on its device and build what training needs around it."""
    memory = torch.channels_last if config.compute.channels_last else torch.contiguous_format
    model = model.to(ranks.device, memory_format=memory).train()  # type: ignore[call-overload]
    called: nn.Module = torch.compile(model) if config.compute.compile else model  # type: ignore[assignment]
    scaler = GradScaler(ranks.device.type) if config.compute.precision == "fp16" else None
    return Parts(
        model=model,
        called=wrapped(called, ranks, sync_batchnorm=config.compute.sync_batchnorm),
        average=copy_for_ema(model),
        optimizer=make_sgd(model, config.optimizer),
        scaler=scaler,
        ranks=ranks,
        online=OnlineState(first_threshold(config.online, config.attack.eps)),
    )


def train_step(parts: Parts, batch: StepBatch, config: TrainConfig) -> StepResult:
    """Take the optimizer step of one batch; a gradient that is not finite raises before anything is changed."""
    step = batch.step
    lr, momentum = rate_at(
        step,
        config.steps,
        config.batch_size,
        config.schedule,
        lr=config.optimizer.lr,
        momentum=config.optimizer.momentum,
    )
    for group in parts.optimizer.param_groups:
        group["lr"], group["momentum"] = lr, momentum
    if config.bn_momentum is not None:
        set_bn_momentum(parts.model, 1.0 if step == 0 else config.bn_momentum)
    parts.optimizer.zero_grad(set_to_none=True)
    outcomes = [_backward(parts, piece, config, last=last) for piece, last in pieces(batch, config.compute.accumulate)]
    if parts.scaler is not None:
        parts.scaler.unscale_(parts.optimizer)
    limit = config.optimizer.clip_norm or math.inf
    norm = float(torch.nn.utils.clip_grad_norm_(parts.model.parameters(), limit))
    loss = torch.stack([outcome.loss for outcome in outcomes]).sum()
    if not math.isfinite(norm) and (parts.scaler is None or not bool(loss.isfinite())):
        raise PumaError(f"the gradient is not finite at step {step} (loss {float(loss) / len(outcomes):g})")
    if parts.scaler is None:
        parts.optimizer.step()
    else:
        parts.scaler.step(parts.optimizer)
        parts.scaler.update()
    update_ema(parts.average, parts.model, step, config.average)
    samples = sum(outcome.samples for outcome in outcomes)
    return StepResult(
        samples=samples,
        loss=loss / len(outcomes) * samples,
        clean_right=_joined([outcome.clean_right for outcome in outcomes]),
        attacked_right=_joined([outcome.attacked_right for outcome in outcomes]),
        gradient_norm=norm,
        online=outcomes[-1].online,
    )


def pieces(batch: StepBatch, count: int) -> list[tuple[StepBatch, bool]]:
    """Split a batch into ``count`` interleaved parts, each with whether it is the last."""
    if count == 1:
        return [(batch, True)]
    parts = [
        replace(
            batch,
            images=batch.images[index::count],
            labels=batch.labels[index::count],
            strength=batch.strength[index::count],
            rows=batch.rows[index::count],
        )
        for index in range(count)
    ]
    return [(part, index == count - 1) for index, part in enumerate(parts)]


@dataclass(frozen=True)
class _Part:
    """What one part of a batch gave: its loss, and which of its samples were right."""

    loss: Tensor
    clean_right: Tensor | None
    attacked_right: Tensor | None
    samples: int
    online: OnlineStep | None = None


def _backward(parts: Parts, piece: StepBatch, config: TrainConfig, *, last: bool) -> _Part:
    """Add one part's gradient; only the last part's backward pass is shared between processes."""
    device, compute = parts.ranks.device, config.compute
    images = to_unit(piece.images.to(device, non_blocking=True))
    if not compute.channels_last:
        images = images.contiguous()
    labels = piece.labels.to(device, non_blocking=True)
    strength = piece.strength.to(device, non_blocking=True)
    online: OnlineStep | None = None
    with ExitStack() as stack:
        if not last and isinstance(parts.called, DistributedDataParallel):
            stack.enter_context(parts.called.no_sync())
        with autocast(device.type, _DTYPES.get(compute.precision), enabled=compute.precision in _DTYPES):
            if config.online.mode == "off":
                outcome = loss_of(parts.called, images, labels, strength, piece, config)
            else:
                outcome, labels, chosen = online_loss(
                    parts.called, parts.online, parts.ranks, images, labels, piece, config
                )
                online = OnlineStep(chosen.easy_share, chosen.pruned_share, parts.online.threshold, chosen.strength)
        loss = outcome.loss / compute.accumulate
        (loss if parts.scaler is None else parts.scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
    clean, attacked = _right(outcome.clean, labels), _right(outcome.attacked, labels)
    return _Part(outcome.loss.detach(), clean, attacked, len(labels), online)


def loss_of(
    model: nn.Module, images: Tensor, labels: Tensor, strength: Tensor, piece: StepBatch, config: TrainConfig
) -> Outcome:
    """Compute the configured loss of images on their device."""
    smoothing = config.label_smoothing
    if config.loss == "standard":
        return standard(model, images, labels, label_smoothing=smoothing)
    attack = inner_attack(images, strength, piece, config)
    if config.loss == "trades":
        return trades(model, images, labels, strength, attack, beta=config.beta, label_smoothing=smoothing)
    return pgd_at(model, images, labels, strength, attack, label_smoothing=smoothing)


def set_bn_momentum(model: nn.Module, momentum: float) -> None:
    """Set how fast BN's running statistics follow the batches; 1 takes each batch's whole."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.momentum = momentum


def _right(logits: Tensor | None, labels: Tensor) -> Tensor | None:
    return None if logits is None else logits.detach().argmax(dim=1) == labels


def _joined(parts: list[Tensor | None]) -> Tensor | None:
    """Put the interleaved parts' answers back into the order of the batch."""
    present = [part for part in parts if part is not None]
    return torch.stack(present, dim=1).flatten() if present else None
