"""What L_inf and L2 attacks do differently: start, step, projection. Radii are (n,), never negative."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor

from puma.errors import unknown_name


class Norm(Protocol):
    """Three functions on perturbations (n, ...) and radii (n,)."""

    def random_start(self, images: Tensor, radius: Tensor, generator: Generator | None) -> Tensor:
        """Draw a perturbation uniformly from the ball."""
        ...

    def step(self, gradient: Tensor, length: Tensor) -> Tensor:
        """Return the steepest step of the given length per sample (signed) along the gradient."""
        ...

    def project(self, perturbation: Tensor, radius: Tensor) -> Tensor:
        """Return the nearest perturbation inside the ball."""
        ...


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """Shape (n,) values so that they broadcast over (n, ...)."""
    return values.view(-1, *[1] * (like.dim() - 1))


@dataclass(frozen=True)
class Linf:
    """The largest change of any pixel."""

    def random_start(self, images: Tensor, radius: Tensor, generator: Generator | None) -> Tensor:
        """Draw every pixel's change uniformly from [-radius, radius]."""
        unit = torch.rand(images.shape, generator=generator, device=images.device, dtype=images.dtype)
        return unit.mul_(2).sub_(1).mul_(per_sample(radius, images))

    def step(self, gradient: Tensor, length: Tensor) -> Tensor:
        """Move every pixel by the length, in the direction of its gradient's sign."""
        return gradient.sign().mul_(per_sample(length, gradient))

    def project(self, perturbation: Tensor, radius: Tensor) -> Tensor:
        """Clip every pixel's change."""
        limit = per_sample(radius, perturbation)
        return torch.minimum(torch.maximum(perturbation, -limit), limit)


@dataclass(frozen=True)
class L2:
    """The Euclidean length of the change."""

    def random_start(self, images: Tensor, radius: Tensor, generator: Generator | None) -> Tensor:
        """Draw uniformly from the ball: a random direction, the length by its volume."""
        direction = torch.randn(images.shape, generator=generator, device=images.device, dtype=images.dtype)
        share = torch.rand(len(images), generator=generator, device=images.device, dtype=images.dtype)
        dimensions = max(images[0].numel(), 1)
        return self.step(direction, radius * share ** (1 / dimensions))

    def step(self, gradient: Tensor, length: Tensor) -> Tensor:
        """Move by the length along the gradient; a zero gradient does not move."""
        norm = _length(gradient)
        scale = torch.where(norm > 0, length / norm.clamp_min(torch.finfo(norm.dtype).tiny), 0)
        return gradient * per_sample(scale, gradient)

    def project(self, perturbation: Tensor, radius: Tensor) -> Tensor:
        """Shorten what is longer than the radius."""
        norm = _length(perturbation)
        scale = torch.where(norm > radius, radius / norm.clamp_min(torch.finfo(norm.dtype).tiny), 1)
        return perturbation * per_sample(scale, perturbation)


def _length(perturbation: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(perturbation.flatten(1), dim=1)
    return length


NORMS: dict[str, Norm] = {"linf": Linf(), "l2": L2()}


def norm_by_name(name: str) -> Norm:
    """Look a norm up; an unknown name raises."""
    if name not in NORMS:
        raise unknown_name("norm", name, list(NORMS))
    return NORMS[name]
