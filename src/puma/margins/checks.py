"""What is looked at before a measurement: each problem is one sentence, or a warning if measuring still makes sense."""

import warnings

import torch
from torch import Tensor, nn

from puma.errors import PumaError

_ANY_FAILURE = (RuntimeError, ValueError, TypeError, IndexError, AssertionError, AttributeError)


def examine(model: nn.Module, examples: Tensor) -> int:
    """Run a few images through the model, warn of what spoils margins, and return the number of classes."""
    shape = tuple(examples.shape[1:])
    points = examples.detach().clone().requires_grad_()
    try:
        logits = model(points)
    except _ANY_FAILURE as error:
        raise PumaError(
            f"the model cannot take images of shape {shape} (channels, height, width): {first_line(error)}."
        ) from error
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(examples):
        got = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise PumaError(f"the model must give logits of shape ({len(examples)}, classes), got {got}.")
    if logits.shape[1] < 2:
        raise PumaError(f"a margin needs at least 2 classes, the model gives {logits.shape[1]} logit.")
    if not logits.requires_grad:
        raise PumaError(
            "the model's logits have no gradient to the pixels; does forward use no_grad, detach, numpy or rounding?"
        )
    _warn(model, logits.detach(), examples)
    return logits.shape[1]


@torch.no_grad()
def _warn(model: nn.Module, logits: Tensor, examples: Tensor) -> None:
    total = logits.sum(1)
    if bool(((logits >= 0) & (logits <= 1)).all()) and bool(((total - 1).abs() < 1e-3).all()):
        warnings.warn(
            "the model's outputs look like probabilities; margins need logits, remove the final softmax.",
            stacklevel=4,
        )
    again = model(examples)
    if bool(((again - logits).abs() > 1e-3 * logits.abs().amax()).any()):
        warnings.warn(
            "the model is random in eval mode: the same images gave other logits; margins will be unreliable.",
            stacklevel=4,
        )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, without a full stop."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")


def check_settings(batch_size: int, cap: float | None, bounds: tuple[float, float]) -> None:
    """Refuse numbers that make no sense."""
    if batch_size < 1:
        raise PumaError(f"batch_size must be at least 1, got {batch_size}.")
    if cap is not None and not 0 < cap < float("inf"):
        raise PumaError(f"cap must be a positive number, got {cap}.")
    if not bounds[0] < bounds[1]:
        raise PumaError(f"bounds must be (low, high) with low < high, got {bounds}.")
