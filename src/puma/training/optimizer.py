"""SGD with Nesterov momentum, and which parameters decay."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

Decay = Literal["weights", "all-but-norms", "all"]

_NORMS = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


@dataclass(frozen=True)
class OptimizerConfig:
    """SGD.

    Attributes:
        lr: the highest learning rate.
        momentum: Nesterov momentum.
        weight_decay: L2 penalty.
        decay: what it falls on: ``weights`` spares norm layers and biases, ``all-but-norms`` spares norm layers only,
            ``all`` spares nothing.
        clip_norm: gradients longer than this are shortened to it; 0 never does.
    """

    lr: float = 0.2
    momentum: float = 0.9
    weight_decay: float = 5e-4
    decay: Decay = "weights"
    clip_norm: float = 0.0


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
