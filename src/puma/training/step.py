"""One optimizer step: loss, gradients, update, average; alone or inside DistributedDataParallel."""

import math
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.autocast_mode import autocast
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from puma.errors import PumaError
from puma.models import copy_for_ema, update_ema
from puma.pools import to_unit
from puma.processes import ProcessGroup
from puma.training.batches import TrainBatch
from puma.training.config import TrainConfig
from puma.training.losses import (
    LossResult,
    compute_pgd_at,
    compute_standard,
    compute_trades,
    make_inner_attack,
    weight_samples,
)
from puma.training.online import OnlineState, compute_online_loss, initial_threshold
from puma.training.optimizer import make_sgd, rate_at
from puma.training.soft_pruning import LossTable, choose_samples

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class TrainState:
    """What a step works with. ``called`` is what the loss calls: the model, compiled or inside DDP if so configured."""

    model: nn.Module
    called: nn.Module
    average: nn.Module
    optimizer: torch.optim.SGD
    scaler: GradScaler | None
    processes: ProcessGroup
    online: OnlineState
    losses: LossTable | None = None


@dataclass(frozen=True)
class OnlineSummary:
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
    online: OnlineSummary | None = None
    soft_pruned_share: float | None = None


def make_train_state(
    model: nn.Module, config: TrainConfig, processes: ProcessGroup, samples: int | None = None
) -> TrainState:
    """Put a model on its device and build what training needs around it; soft pruning has to know how many samples."""
    memory = torch.channels_last if config.compute.channels_last else torch.contiguous_format
    model = model.to(processes.device, memory_format=memory).train()  # type: ignore[call-overload]
    called: nn.Module = torch.compile(model) if config.compute.compile else model  # type: ignore[assignment]
    scaler = GradScaler(processes.device.type) if config.compute.precision == "fp16" else None
    return TrainState(
        model=model,
        called=wrap_in_ddp(called, processes, sync_batchnorm=config.compute.sync_batchnorm),
        average=copy_for_ema(model),
        optimizer=make_sgd(model, config.optimizer),
        scaler=scaler,
        processes=processes,
        online=OnlineState(initial_threshold(config.online, config.attack.eps)),
        losses=LossTable(torch.full((samples,), math.inf)) if config.soft_pruning.ratio and samples else None,
    )


def train_step(state: TrainState, batch: TrainBatch, config: TrainConfig) -> StepResult:
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
    for group in state.optimizer.param_groups:
        group["lr"], group["momentum"] = lr, momentum
    if config.bn_momentum is not None:
        set_bn_momentum(state.model, 1.0 if step == 0 else config.bn_momentum)
    state.optimizer.zero_grad(set_to_none=True)
    soft = None if state.losses is None else choose_samples(batch, state.losses, config, state.processes)
    batch, weight = (batch, None) if soft is None else (soft.batch, soft.weight)
    outcomes = [
        _backward_part(state, piece, config, weight, last=last)
        for piece, last in split_batch(batch, config.compute.accumulate)
    ]
    if state.scaler is not None:
        state.scaler.unscale_(state.optimizer)
    limit = config.optimizer.clip_norm or math.inf
    norm = float(torch.nn.utils.clip_grad_norm_(state.model.parameters(), limit))
    loss = torch.stack([outcome.loss for outcome in outcomes]).sum()
    if not math.isfinite(norm) and (state.scaler is None or not bool(loss.isfinite())):
        raise PumaError(f"the gradient is not finite at step {step} (loss {float(loss) / len(outcomes):g})")
    if state.scaler is None:
        state.optimizer.step()
    else:
        state.scaler.step(state.optimizer)
        state.scaler.update()
    update_ema(state.average, state.model, step, config.average)
    samples = sum(outcome.samples for outcome in outcomes)
    return StepResult(
        samples=samples,
        loss=loss / len(outcomes) * samples,
        clean_right=_interleave([outcome.clean_right for outcome in outcomes]),
        attacked_right=_interleave([outcome.attacked_right for outcome in outcomes]),
        gradient_norm=norm,
        online=outcomes[-1].online,
        soft_pruned_share=None if soft is None else soft.pruned_share,
    )


def split_batch(batch: TrainBatch, count: int) -> list[tuple[TrainBatch, bool]]:
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
class _PartResult:
    """What one part of a batch gave: its loss, and which of its samples were right."""

    loss: Tensor
    clean_right: Tensor | None
    attacked_right: Tensor | None
    samples: int
    online: OnlineSummary | None = None


def _backward_part(
    state: TrainState, piece: TrainBatch, config: TrainConfig, weight: Tensor | None, *, last: bool
) -> _PartResult:
    """Add one part's gradient; only the last part's backward pass is shared between processes."""
    device, compute = state.processes.device, config.compute
    images = to_unit(piece.images.to(device, non_blocking=True))
    if not compute.channels_last:
        images = images.contiguous()
    labels = piece.labels.to(device, non_blocking=True)
    strength = piece.strength.to(device, non_blocking=True)
    online: OnlineSummary | None = None
    with ExitStack() as stack:
        if not last and isinstance(state.called, DistributedDataParallel):
            stack.enter_context(state.called.no_sync())
        with autocast(device.type, _DTYPES.get(compute.precision), enabled=compute.precision in _DTYPES):
            if config.online.mode == "off":
                outcome = compute_loss(state.called, images, labels, strength, piece, config)
                if weight is not None:
                    outcome = weight_samples(outcome, labels, weight.to(device), config)
            else:
                outcome, labels, chosen = compute_online_loss(
                    state.called, state.online, state.processes, images, labels, piece, config, average=state.average
                )
                online = OnlineSummary(chosen.easy_share, chosen.pruned_share, state.online.mean, chosen.strength)
        loss = outcome.loss / compute.accumulate
        (loss if state.scaler is None else state.scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
    if state.losses is not None and outcome.each is not None and piece.positions is not None:
        state.losses.update(torch.from_numpy(piece.positions), outcome.each, state.processes)
    clean, attacked = _predict_right(outcome.clean, labels), _predict_right(outcome.attacked, labels)
    return _PartResult(outcome.loss.detach(), clean, attacked, len(labels), online)


def compute_loss(
    model: nn.Module, images: Tensor, labels: Tensor, strength: Tensor, piece: TrainBatch, config: TrainConfig
) -> LossResult:
    """Compute the configured loss of images on their device."""
    smoothing = config.label_smoothing
    if config.loss == "standard":
        return compute_standard(model, images, labels, label_smoothing=smoothing)
    attack = make_inner_attack(images, strength, piece, config)
    if config.loss == "trades":
        return compute_trades(model, images, labels, strength, attack, beta=config.beta, label_smoothing=smoothing)
    return compute_pgd_at(model, images, labels, strength, attack, label_smoothing=smoothing)


def set_bn_momentum(model: nn.Module, momentum: float) -> None:
    """Set how fast BN's running statistics follow the batches; 1 takes each batch's whole."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.momentum = momentum


def _predict_right(logits: Tensor | None, labels: Tensor) -> Tensor | None:
    return None if logits is None else logits.detach().argmax(dim=1) == labels


def _interleave(parts: list[Tensor | None]) -> Tensor | None:
    """Put the interleaved parts' answers back into the order of the batch."""
    present = [part for part in parts if part is not None]
    return torch.stack(present, dim=1).flatten() if present else None


def wrap_in_ddp(model: nn.Module, processes: ProcessGroup, *, sync_batchnorm: bool) -> nn.Module:
    """Return what the loss calls: the model itself, or the model inside DDP, which averages gradients over ranks.

    BN statistics are not broadcast: TRADES passes twice before it goes back, and a broadcast in between would
    overwrite what the first pass saved. ``average_buffers`` brings them together instead.
    """
    if processes.count == 1:
        return model
    if sync_batchnorm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    devices = [processes.device.index] if processes.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices, broadcast_buffers=False)


@torch.no_grad()
def average_buffers(model: nn.Module, processes: ProcessGroup) -> None:
    """Give every rank the mean of all ranks' BN statistics, so that a checkpoint is the same whoever writes it."""
    if processes.count == 1:
        return
    for buffer in model.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer.div_(processes.count)
