"""Checks of what an attack is given; each failure is one sentence."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from puma.errors import PumaError


def to_tensors(images: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """Take images and labels as tensors or numpy arrays, labels as a list too; any whole numbers become int64."""
    images = torch.from_numpy(images) if isinstance(images, np.ndarray) else images
    if not isinstance(images, Tensor):
        raise PumaError(
            f"images must be a tensor or numpy array of shape (n, ...), got {type(images).__name__}; "
            "a Dataset becomes a pool by puma.Pool.from_dataset."
        )
    if isinstance(labels, np.ndarray | list | tuple | range):
        try:
            labels = torch.from_numpy(np.asarray(labels) if len(labels) else np.zeros(0, dtype=np.int64))
        except (TypeError, ValueError) as error:
            raise PumaError(f"labels must be whole numbers, one per image, got {type(labels).__name__}.") from error
    if not isinstance(labels, Tensor):
        raise PumaError(f"labels must be a tensor, numpy array or list, got {type(labels).__name__}.")
    whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    return images, labels.to(torch.int64) if whole else labels


def check_batch(images: Tensor, labels: Tensor, bounds: tuple[float, float]) -> None:
    """Images: floats within the bounds, at least (n, d). Labels: int64 (n,)."""
    if not images.is_floating_point():
        raise PumaError(
            f"images must be floating point within {list(bounds)}, got {images.dtype}; puma.pools.to_unit converts."
        )
    if images.dim() < 2:
        raise PumaError(f"images must be a batch (n, ...), got shape {tuple(images.shape)}.")
    if labels.shape != images.shape[:1] or labels.dtype != torch.int64:
        raise PumaError(
            f"labels must be int64 of shape ({len(images)},), got {labels.dtype} of shape {tuple(labels.shape)}."
        )
    if not bounds[0] < bounds[1]:
        raise PumaError(f"bounds must be (low, high) with low < high, got {bounds}.")
    if len(images):
        low, high = (float(value) for value in images.aminmax())
        if not (bounds[0] <= low and high <= bounds[1]):
            kind = "NaN" if math.isnan(low) or math.isnan(high) else f"pixels from {low:g} to {high:g}"
            raise PumaError(f"images must lie within the bounds {list(bounds)}, got {kind}.")


def check_radius(
    eps: float | Tensor,
    name: str = "eps",
    *,
    norm: str = "linf",
    pixels: int | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> None:
    """Refuse a radius, of either sign, beyond the range of the pixels; L2 needs to know how many an image has."""
    largest = float(torch.as_tensor(eps).detach().abs().max()) if not isinstance(eps, Tensor) or len(eps) else 0.0
    reach = bounds[1] - bounds[0]
    if norm != "linf":
        reach *= math.sqrt(pixels) if pixels else math.inf
    if largest > reach * (1 + 1e-6):  # a float32 of 1 is not beyond
        hint = f"did you mean {largest:g}/255?" if largest <= 255 * reach else "give a smaller one."
        raise PumaError(
            f"{name} must be at most {reach:.4g} in {norm} for pixels in [{bounds[0]:g}, {bounds[1]:g}], "
            f"got {largest:g}; {hint}"
        )


def check_labels_fit(labels: Tensor, logits: Tensor) -> None:
    """Logits: (n, classes). Labels: each below the number of classes."""
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(labels):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise PumaError(f"the model must give logits of shape ({len(labels)}, classes), got {got}.")
    check_label_range(labels, logits.shape[1])


def check_label_range(labels: Tensor, classes: int) -> None:
    """Refuse labels that the model has no logit for."""
    if len(labels):
        low, high = (int(value) for value in labels.aminmax())
        if low < 0 or high >= classes:
            raise PumaError(
                f"labels must lie in 0..{classes - 1} for this model's {classes} classes, got {low}..{high}."
            )


def check_clean_logits(clean_logits: Tensor | None, logits: Tensor) -> None:
    """Clean logits, where given: shaped like the model's own."""
    if clean_logits is not None and clean_logits.shape != logits.shape:
        raise PumaError(f"clean_logits must have shape {tuple(logits.shape)}, got {tuple(clean_logits.shape)}.")
