"""SGD with Nesterov momentum, which parameters decay, and the one-cycle schedule: a pure function of the step."""

import math

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from puma.training.config import Decay, OptimizerConfig, ScheduleConfig

_NORMS = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def decay_groups(model: nn.Module, decay: Decay) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the parameters that decay and those that do not; a layer is known by its type, never by its name."""
    decayed: list[nn.Parameter] = []
    spared: list[nn.Parameter] = []
    seen: set[nn.Parameter] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter in seen:
                continue
            seen.add(parameter)
            is_norm = isinstance(module, _NORMS)
            spare = decay != "all" and (is_norm or (decay == "weights" and name.endswith("bias")))
            (spared if spare else decayed).append(parameter)
    return decayed, spared


def make_sgd(model: nn.Module, config: OptimizerConfig) -> torch.optim.SGD:
    """Build the optimizer; its update is one fused kernel where the device has one."""
    decayed, spared = decay_groups(model, config.decay)
    fused = next(model.parameters()).device.type in ("cpu", "cuda")
    return torch.optim.SGD(
        [
            {"params": decayed, "weight_decay": config.weight_decay},
            {"params": spared, "weight_decay": 0.0},
        ],
        lr=config.lr,
        momentum=config.momentum,
        nesterov=config.momentum > 0,
        fused=fused,
    )


def momentum_buffers(optimizer: torch.optim.SGD, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer's memory by parameter name; empty before the first step."""
    states = {name: optimizer.state.get(parameter, {}) for name, parameter in model.named_parameters()}
    buffers = {name: state.get("momentum_buffer") for name, state in states.items()}
    return {name: buffer for name, buffer in buffers.items() if buffer is not None}


def restore_momentum(optimizer: torch.optim.SGD, model: nn.Module, buffers: dict[str, Tensor]) -> None:
    """Put back what ``momentum_buffers`` gave."""
    for name, parameter in model.named_parameters():
        if name in buffers:
            buffer = torch.empty_like(parameter).copy_(buffers[name])
            optimizer.state[parameter]["momentum_buffer"] = buffer


def one_cycle(step: int, steps: int, config: ScheduleConfig, *, lr: float, momentum: float) -> tuple[float, float]:
    """Return the learning rate and momentum of step ``step`` (from 0) of ``steps``: two halves of cosines."""
    top = config.warmup * steps - 1
    low_momentum = momentum if config.low_momentum is None else config.low_momentum
    high_momentum = momentum if config.high_momentum is None else config.high_momentum
    first = lr / config.start_divisor
    if step <= top:
        share = step / top if top > 0 else 1.0
        return cosine(first, lr, share), cosine(high_momentum, low_momentum, share)
    share = (step - top) / (steps - 1 - top) if steps - 1 > top else 1.0
    return cosine(lr, first / config.final_divisor, share), cosine(low_momentum, high_momentum, share)


def rate_at(
    step: int, steps: int, batch_size: int, config: ScheduleConfig, *, lr: float, momentum: float
) -> tuple[float, float]:
    """Return learning rate and momentum of a training step, which change every ``config.every`` samples."""
    if not config.every:
        return one_cycle(step, steps, config, lr=lr, momentum=momentum)
    periods = math.ceil(steps * batch_size / config.every)
    period = min(step * batch_size // config.every, periods - 1)
    return one_cycle(period, periods, config, lr=lr, momentum=momentum)


def cosine(begin: float, end: float, share: float) -> float:
    """Return the point at ``share`` (0 to 1) of a half cosine from ``begin`` to ``end``."""
    return end + (begin - end) / 2 * (1 + math.cos(math.pi * share))
