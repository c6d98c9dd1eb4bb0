"""Use a model without leaving a trace in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

BatchNormMode = Literal["eval", "batch"]


@contextmanager
def frozen(model: nn.Module, batchnorm: BatchNormMode = "eval") -> Iterator[nn.Module]:
    """Within the block: eval mode, no gradient to parameters; afterwards every flag is as it was.

    ``batchnorm="batch"`` normalises with the statistics of the batch at hand, as in training mode, but leaves the
    running statistics alone; dropout and the like stay off. The flags are the model's own, so two threads must not use
    one model this way at the same time.
    """
    modes = [(module, module.training) for module in model.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)] if batchnorm == "batch" else []
    tracking = [(norm, norm.track_running_stats) for norm in norms]
    try:
        model.eval()
        for norm in norms:
            norm.training = True
            norm.track_running_stats = False
        for parameter, _ in flags:
            parameter.requires_grad_(False)
        yield model
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
        for norm, flag in tracking:
            norm.track_running_stats = flag
        for module, mode in modes:
            module.training = mode
