"""L_inf and L2, for attacks and for margins: all that differs between them, and the checks of what is given to either.

Radii are (n,), never negative.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

import numpy as np
import torch
from torch import Generator, Tensor

from puma.errors import PumaError, unknown_name

Region = tuple[Tensor, ...]  # where a sample may move, as tensors (n, ...)


class Norm(Protocol):
    """What attacks and searches need to know of a norm: vectors are rows (n, d), images (n, ...)."""

    @property
    def name(self) -> str:
        """The norm's name."""
        ...

    @property
    def longest_ray(self) -> float:
        """Radius up to which a clipped ray is followed, in multiples of the distance looked for."""
        ...

    def length(self, vectors: Tensor) -> Tensor:
        """Return the norm of every row."""
        ...

    def dual(self, vectors: Tensor) -> Tensor:
        """Return the dual norm of every row: how steep a gradient is per unit of length."""
        ...

    def steepest(self, vectors: Tensor) -> Tensor:
        """Return the unit vector that goes farthest along every row; zero for a zero row."""
        ...

    def confine(self, vectors: Tensor) -> Tensor:
        """Bring every row back to unit length."""
        ...

    def diameter(self, width: float, pixels: int) -> float:
        """Return the largest distance inside a box so wide."""
        ...

    def random_start(self, images: Tensor, radius: Tensor, generator: Generator | None) -> Tensor:
        """Draw a perturbation uniformly from the ball."""
        ...

    def step(self, gradient: Tensor, length: Tensor) -> Tensor:
        """Return the steepest step of the given length per sample (signed) along the gradient."""
        ...

    def region(self, images: Tensor, radius: Tensor, bounds: tuple[float, float]) -> Region:
        """Work out, once per attack, what ``project`` needs to know."""
        ...

    def project(self, points: Tensor, region: Region, bounds: tuple[float, float]) -> Tensor:
        """Return the points moved into the ball around the images and into the bounds."""
        ...


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """Shape (n,) values so that they broadcast over (n, ...)."""
    return values.view(-1, *[1] * (like.dim() - 1))


@dataclass(frozen=True)
class Linf:
    """The largest change of any pixel."""

    name: str = "linf"
    longest_ray: float = 1.0  # some pixel moves as far as the radius says until all are clipped

    def length(self, vectors: Tensor) -> Tensor:
        """Return the largest entry of every row."""
        return vectors.abs().amax(1)

    def dual(self, vectors: Tensor) -> Tensor:
        """Return the L1 norm of every row."""
        return vectors.abs().sum(1)

    def steepest(self, vectors: Tensor) -> Tensor:
        """Return the signs."""
        return vectors.sign()

    def confine(self, vectors: Tensor) -> Tensor:
        """Clip to [-1, 1]."""
        return vectors.clamp(-1.0, 1.0)

    def diameter(self, width: float, pixels: int) -> float:  # noqa: ARG002
        """Return the width."""
        return width

    def random_start(self, images: Tensor, radius: Tensor, generator: Generator | None) -> Tensor:
        """Draw every pixel's change uniformly from [-radius, radius]."""
        unit = torch.rand(images.shape, generator=generator, device=images.device, dtype=images.dtype)
        return unit.mul_(2).sub_(1).mul_(per_sample(radius, images))

    def step(self, gradient: Tensor, length: Tensor) -> Tensor:
        """Move every pixel by the length, in the direction of its gradient's sign."""
        return gradient.sign().mul_(per_sample(length, gradient))

    def region(self, images: Tensor, radius: Tensor, bounds: tuple[float, float]) -> Region:
        """Lowest and highest value of every pixel."""
        reach = per_sample(radius, images)
        return (images - reach).clamp_(*bounds), (images + reach).clamp_(*bounds)

    def project(self, points: Tensor, region: Region, bounds: tuple[float, float]) -> Tensor:  # noqa: ARG002
        """Clip every pixel."""
        return torch.clamp(points, region[0], region[1])


@dataclass(frozen=True)
class L2:
    """The Euclidean length of the change."""

    name: str = "l2"
    longest_ray: float = 1024.0  # where large pixels are clipped early, small ones have far to go for a short distance

    def length(self, vectors: Tensor) -> Tensor:
        """Return the length of every row, scaled by its largest entry so that no square vanishes or overflows."""
        scale = vectors.abs().amax(1).clamp_min(torch.finfo(vectors.dtype).tiny)
        return (vectors / scale[:, None]).square().sum(1).sqrt() * scale

    def dual(self, vectors: Tensor) -> Tensor:
        """Return the length: L2 is its own dual."""
        return self.length(vectors)

    def steepest(self, vectors: Tensor) -> Tensor:
        """Return the rows at unit length."""
        return vectors / self.length(vectors).clamp_min(torch.finfo(vectors.dtype).tiny)[:, None]

    def confine(self, vectors: Tensor) -> Tensor:
        """Return the rows at unit length."""
        return self.steepest(vectors)

    def diameter(self, width: float, pixels: int) -> float:
        """Return the diagonal."""
        return width * math.sqrt(pixels)

    def random_start(self, images: Tensor, radius: Tensor, generator: Generator | None) -> Tensor:
        """Draw uniformly from the ball: a random direction, the length by its volume."""
        direction = torch.randn(images.shape, generator=generator, device=images.device, dtype=images.dtype)
        share = torch.rand(len(images), generator=generator, device=images.device, dtype=images.dtype)
        dimensions = max(images[0].numel(), 1)
        return self.step(direction, radius * share ** (1 / dimensions))

    def step(self, gradient: Tensor, length: Tensor) -> Tensor:
        """Move by the length along the gradient; a zero gradient does not move."""
        largest = gradient.flatten(1).abs().amax(dim=1)  # first, so that squares neither vanish nor overflow
        direction = gradient / per_sample(torch.where(largest == 0, 1, largest), gradient)
        norm = _plain_length(direction)
        scale = torch.where(norm == 0, 0, length / norm)
        return direction.mul_(per_sample(scale, gradient))

    def region(self, images: Tensor, radius: Tensor, bounds: tuple[float, float]) -> Region:  # noqa: ARG002
        """The ball's middle and its radius."""
        return images, radius

    def project(self, points: Tensor, region: Region, bounds: tuple[float, float]) -> Tensor:
        """Shorten what is longer than the radius, then clip; the images lie within the bounds, so both hold."""
        images, radius = region
        change = points - images
        norm = _plain_length(change)
        scale = torch.where(norm <= radius, 1, radius / norm)
        return change.mul_(per_sample(scale, change)).add_(images).clamp_(*bounds)


def _plain_length(perturbation: Tensor) -> Tensor:
    """Length (n,) of what is about as large as pixels are, so that squares need no care."""
    length: Tensor = torch.linalg.vector_norm(perturbation.flatten(1), dim=1)
    return length


NORMS: dict[str, Norm] = {"linf": Linf(), "l2": L2()}


def find_norm(name: str) -> Norm:
    """Look a norm up; an unknown name raises."""
    if name not in NORMS:
        raise unknown_name("norm", name, list(NORMS))
    return NORMS[name]


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


@contextmanager
def tell_precision(images: Tensor) -> Iterator[None]:
    """Within the block a model that computes in another precision than the images have is told in one sentence."""
    try:
        yield
    except RuntimeError as error:
        if "dtype" not in str(error) and "same type" not in str(error) and "scalar type" not in str(error):
            raise
        kind = str(images.dtype).removeprefix("torch.")
        raise PumaError(
            f"the model computes in another precision than the images, which are {kind}: give model.to(images.dtype), "
            f"or images in the model's own ({str(error).splitlines()[0].rstrip('.')})."
        ) from error


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


def check_number(value: Any, name: str) -> None:
    """Refuse what cannot be compared with a number, such as a word or None."""
    if not isinstance(value, Real):
        raise PumaError(f"{name} must be a number, got {value!r}.")


def check_count(value: Any, name: str) -> int:
    """Return a whole number of at least 1, such as 512 or 1e6; anything else raises."""
    check_number(value, name)
    if value < 1:
        raise PumaError(f"{name} must be at least 1, got {value}.")
    if not float(value).is_integer():
        raise PumaError(f"{name} must be a whole number, got {value}.")
    return int(value)


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
