"""Exact counts and what they allow to say."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_Z95 = 1.959963984540054


@dataclass(frozen=True)
class Count:
    """So many right of so many, with Wilson's 95 % interval."""

    right: int
    total: int

    @property
    def accuracy(self) -> float:
        """Share that is right; NaN of nothing."""
        return self.right / self.total if self.total else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval: honest near 0 and 1 and for few samples."""
        return wilson(self.right, self.total)


def wilson(right: int, total: int, z: float = _Z95) -> tuple[float, float]:
    """Return Wilson's score interval of a share; (0, 1) of nothing."""
    if total == 0:
        return 0.0, 1.0
    share, spread = right / total, z * z / total
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    return max(0.0, middle - half), min(1.0, middle + half)


def count(right: Tensor) -> Count:
    """Count the true among booleans (n,)."""
    return Count(int(right.sum()), len(right))


def count_by_class(right: Tensor, labels: Tensor, class_names: Sequence[str]) -> dict[str, Count]:
    """Count per class; a class without samples has a total of 0."""
    totals = torch.bincount(labels, minlength=len(class_names)).tolist()
    rights = torch.bincount(labels[right], minlength=len(class_names)).tolist()
    return {name: Count(rights[label], totals[label]) for label, name in enumerate(class_names)}
