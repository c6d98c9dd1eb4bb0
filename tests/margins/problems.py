"""Small models with known geometry, and images for them."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

METHODS = ("deepfool", "tight", "fast", "deepfool-classic")
ENGINE = ("deepfool", "tight")
NORMS = ("linf", "l2")


@dataclass(frozen=True)
class Affine:
    """An affine classifier with its images and labels, and the same numbers in float64."""

    model: nn.Module
    images: Tensor
    labels: Tensor
    weight: NDArray[np.float64]
    bias: NDArray[np.float64]

    def pixels(self, index: int) -> NDArray[np.float64]:
        return self.images[index].flatten().double().numpy()


def affine(
    classes: int,
    *,
    shape: tuple[int, ...] = (3, 4, 4),
    count: int = 40,
    seed: int = 0,
    spread: float = 1.0,
    uneven: bool = True,
    edge: bool = False,
) -> Affine:
    """Random weights, each class at its own scale; ``edge`` puts many pixels on or near the bounds."""
    random = torch.Generator().manual_seed(seed)
    size = int(np.prod(shape))
    weight = torch.randn(classes, size, generator=random)
    if uneven:
        weight *= torch.logspace(-0.5, 0.5, classes)[torch.randperm(classes, generator=random)][:, None]
    weight *= torch.linspace(0.2, 2.0, size)
    images = torch.rand(count, *shape, generator=random)
    images = (3 * images - 1).clamp(0, 1) if edge else 0.5 + spread * (images - 0.5)
    bias = -(weight @ images.flatten(1).T).mean(1)
    linear = nn.Linear(size, classes)
    with torch.no_grad():
        linear.weight.copy_(weight)
        linear.bias.copy_(bias)
    model = nn.Sequential(nn.Flatten(), linear)
    with torch.no_grad():
        ranked = model(images).argsort(1, descending=True)
    return Affine(model, images, ranked[:, 0], weight.double().numpy(), bias.double().numpy())


def many_twins(classes: int, *, count: int = 40, seed: int = 0) -> Affine:
    """Many classes that are ten with small changes, of very uneven size: the smallest gap is seldom the nearest.

    A class that is changed more is less likely, so near and far twins compete. In float64, as gaps are small.
    """
    random = torch.Generator().manual_seed(seed)
    pixels = 3 * 4 * 4
    change = torch.logspace(-2, 0, classes)[torch.randperm(classes, generator=random)]
    weight = torch.randn(10, pixels, generator=random)[torch.arange(classes) % 10]
    weight = weight + change[:, None] * torch.randn(classes, pixels, generator=random)
    images = 0.5 + 0.02 * (torch.rand(count, 3, 4, 4, generator=random) - 0.5)
    bias = -(weight @ images.flatten(1).T).mean(1) - 0.3 * change * (1 + torch.rand(classes, generator=random))
    weight, bias, images = weight.double(), bias.double(), images.double()
    linear = nn.Linear(pixels, classes, dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(weight)
        linear.bias.copy_(bias)
    model = nn.Sequential(nn.Flatten(), linear)
    with torch.no_grad():
        labels = model(images).argmax(1)
    return Affine(model, images, labels, weight.numpy(), bias.numpy())


def relabel(problem: Affine, rank: int) -> Affine:
    """Label every image with its class of this rank: a wrong sample for rank >= 1."""
    with torch.no_grad():
        ranked = problem.model(problem.images).argsort(1, descending=True)
    return Affine(problem.model, problem.images, ranked[:, rank], problem.weight, problem.bias)


def smooth_net(seed: int = 0, classes: int = 5, channels: int = 3) -> nn.Module:
    """A small convolutional net with BN (statistics not trivial) and dropout."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Conv2d(channels, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.SiLU(),
            nn.Conv2d(8, 12, 3, stride=2, padding=1),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(48, classes),
        )
        model.train()
        for _ in range(20):
            model(torch.rand(64, channels, 8, 8))
    return model


def net_images(count: int = 48, seed: int = 1, channels: int = 3) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.rand(count, channels, 8, 8, generator=random)
