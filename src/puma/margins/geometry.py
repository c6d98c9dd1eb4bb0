"""Rays in the pixel box.

Images are rows of a matrix (n, d). A *pattern* is a direction of unit norm; the point at radius ``r`` on its
ray is ``clip(origin + r * pattern)``. For an affine gap this clipped ray passes through the nearest point of
the boundary inside the box, for both norms, when the pattern is the steepest descent of the gap.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Box:
    """The values a pixel may take."""

    low: float
    high: float

    def ray(self, origin: Tensor, pattern: Tensor, radius: Tensor) -> Tensor:
        """Return the points at ``radius`` (n,) on the clipped rays."""
        return torch.addcmul(origin, pattern, radius[:, None]).clamp_(self.low, self.high)


def newton_on_ray(
    box: Box, origin: Tensor, pattern: Tensor, radius: Tensor, points: Tensor, gap: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    """Take one Newton step towards where the gap, linearised at ``points``, closes on the ray.

    Returns the new radius and the slope at the old one (how fast the gap falls with the radius). The linearised gap
    is convex and falling along a descending ray, so steps from its left never overshoot. Where the ray does not
    descend, inside the box, the radius is infinite.
    """
    free = torch.addcmul(origin, pattern, radius[:, None])
    at = free.clamp(box.low, box.high)
    left = gap + (gradient * (at - points)).sum(1)
    # a pixel at the bound counts as free if the ray leads inwards; where it is clipped it no longer moves
    slope = -(gradient * pattern * (at == free)).sum(1)
    return torch.where(slope > 0, radius + left / slope, torch.inf), slope
