"""Rays in the pixel box: where L_inf and L2 differ, and everything else where they do not.

Images are rows of a matrix (n, d). A *pattern* is a direction of unit norm; the point at radius ``r`` on its
ray is ``clip(origin + r * pattern)``. For an affine gap this clipped ray passes through the nearest point of
the boundary inside the box, for both norms, when the pattern is the steepest descent of the gap.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from puma.errors import unknown_name


@dataclass(frozen=True)
class Norm:
    """One norm of the pixel space: all that the searches need to know of it."""

    name: str
    length: Callable[[Tensor], Tensor]
    dual: Callable[[Tensor], Tensor]
    steepest: Callable[[Tensor], Tensor]
    confine: Callable[[Tensor], Tensor]
    diameter: Callable[[float, int], float]
    longest_ray: float  # radius up to which a clipped ray is followed, in multiples of the distance looked for


@dataclass(frozen=True)
class Box:
    """The values a pixel may take."""

    low: float
    high: float

    def ray(self, origin: Tensor, pattern: Tensor, radius: Tensor) -> Tensor:
        """Return the points at ``radius`` (n,) on the clipped rays."""
        return torch.addcmul(origin, pattern, radius[:, None]).clamp_(self.low, self.high)


def _unit_l2(vectors: Tensor) -> Tensor:
    return vectors / _l2(vectors).clamp_min(torch.finfo(vectors.dtype).tiny)[:, None]


def _l2(vectors: Tensor) -> Tensor:
    # scaled by the largest entry, so that tiny and huge gradients neither vanish nor overflow
    scale = vectors.abs().amax(1).clamp_min(torch.finfo(vectors.dtype).tiny)
    return (vectors / scale[:, None]).square().sum(1).sqrt() * scale


LINF = Norm(
    name="linf",
    length=lambda v: v.abs().amax(1),
    dual=lambda v: v.abs().sum(1),
    steepest=torch.sign,
    confine=lambda v: v.clamp(-1.0, 1.0),
    diameter=lambda width, _: width,
    longest_ray=1.0,
)
L2 = Norm(
    name="l2",
    length=_l2,
    dual=_l2,
    steepest=_unit_l2,
    confine=_unit_l2,
    diameter=lambda width, pixels: width * pixels**0.5,
    longest_ray=1024.0,  # where large pixels are clipped early, small ones have far to go for a short distance
)
NORMS = {norm.name: norm for norm in (LINF, L2)}


def norm_named(name: str) -> Norm:
    """Look a norm up by name; an unknown one raises."""
    if name not in NORMS:
        raise unknown_name("norm", name, list(NORMS))
    return NORMS[name]


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
