"""Normalisation inside the model, so that every image outside it has pixels in [0, 1]."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Normalize(nn.Module):
    """``(pixels - mean) / std`` per channel; mean and std are saved with the weights."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Normalise a batch (n, channels, height, width)."""
        return (images - self.mean) / self.std
