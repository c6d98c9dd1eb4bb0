"""Rays in the pixel box, and the line search: forward-only root finding along a ray, on the original model, in fp32.

Images are rows of a matrix (n, d). A *pattern* is a direction of unit norm; the point at radius ``r`` on its
ray is ``clip(origin + r * pattern)``. For an affine gap this clipped ray passes through the nearest point of
the boundary inside the box, for both norms, when the pattern is the steepest descent of the gap.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from puma.margins.search.engine import DONE, Rows, Status
from puma.margins.search.network import Network, measure_gap

# a gap below this share of the largest logit, or of the gap at the image where that is larger, may change sign when it
# is computed again
ROUNDING = 1e-6
# a crossing has to be one such slack deep; aiming at 1.2 of it leaves room for rounding, and what is no deeper
# than 1.5 of it counts as on the boundary
_AIM, _AS_NEAR_AS_CAN_BE = 1.2, 1.5
# the aim also lies beyond the boundary by this share of the tolerance, since a look just
# before it would have to be followed by another
_BEYOND = 0.4
# a ray that has not crossed this much farther out than expected gets more steps instead; chosen by hand
_ASTRAY = 1.5
_WIDEST_STEP = 2.0  # before the boundary is bracketed, a slope seen at one radius is not trusted farther than twice it
# of the bracket: a look nearer to an end would hardly narrow it; unless it is so near that it ends the search
_FROM_THE_ENDS = 0.02
# secants may narrow a bracket slowly: how far they may lie from its middle shrinks with every look, as in the method
# ITP, until so many looks more than halving alone takes are spent
_MORE_THAN_HALVING = 4
# tolerances from an end of the bracket: a secant that lands so near it usually ends the search, and may; but after so
# many looks only every other one, or it would creep up to a step in the gap
_NEARLY_THERE, _LOOKS_NEARLY_THERE = 10, 4


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
    # a pixel at the bound counts as free if the ray leads inwards; where it is clipped it no longer moves
    slope = -free.eq_(at).mul_(pattern).mul_(gradient).sum(1)  # in place: fresh memory costs more than the arithmetic
    left = gap + at.sub_(points).mul_(gradient).sum(1)
    return torch.where(slope > 0, radius + left / slope, torch.inf), slope


@dataclass(frozen=True)
class LineSearch:
    """How exact the crossing must be, how far and how long to look for it, and what follows a failure."""

    tolerance: float
    reach: float
    looks: int = 30  # halving brings any bracket below fp32's 24 bits in so many
    beyond_reach: Status = Status.NOT_CROSSED
    retry_stage: int = DONE
    retries: int = 0


def search_line(rows: Rows, network: Network, box: Box, config: LineSearch) -> Rows:
    """Look at one point of every ray, narrow the bracket, and either end there or choose the next point."""
    logits = network.judge(box.ray(rows.origin, rows.pattern, rows.radius))
    gap, rival = measure_gap(logits, rows.label, rows.right)
    slack = ROUNDING * torch.maximum(logits.abs().amax(1), rows.scale)
    beyond = (gap <= -slack) & (gap < 0)  # a tie is no crossing, however small the logits are
    rows = rows.change(
        slope=_estimate_slope(rows, gap),
        low=torch.where(beyond, rows.low, rows.radius),
        low_gap=torch.where(beyond, rows.low_gap, gap),
        high=torch.where(beyond, rows.radius, rows.high),
        high_gap=torch.where(beyond, gap, rows.high_gap),
        rival=torch.where(beyond, rival, rows.rival),
        looks=rows.looks + 1,
        first_look=torch.where(rows.looks == 0, rows.radius, rows.first_look),
    )
    return _decide_next(rows, gap, slack, config)


def _estimate_slope(rows: Rows, gap: Tensor) -> Tensor:
    """How fast the gap falls near the boundary: by the two nearest points, else as expected, else on the whole."""
    at_low = rows.high.isinf() | (rows.radius - rows.low <= rows.high - rows.radius)
    other = torch.where(at_low, rows.low, rows.high)
    secant = (torch.where(at_low, rows.low_gap, rows.high_gap) - gap) / (rows.radius - other)
    whole = (rows.scale - gap) / rows.radius
    slope = torch.where(rows.slope > 0, rows.slope, whole)
    slope = torch.where((other > 0) & (secant > 0) & secant.isfinite(), secant, slope)
    slope = torch.where(slope > 0, slope, rows.scale / rows.radius)
    return slope.clamp_min(torch.finfo(slope.dtype).tiny)  # a tie at the image has no gap to fall


def _decide_next(rows: Rows, gap: Tensor, slack: Tensor, config: LineSearch) -> Rows:
    found = rows.high.isfinite()
    overshoot = torch.minimum((-rows.high_gap - _AS_NEAR_AS_CAN_BE * slack) / rows.slope, rows.high - rows.low)
    broken = ~gap.isfinite()
    spent = rows.looks >= config.looks
    lost = ~found & ~broken & ((rows.radius >= config.reach) | spent)
    astray = ~found & ~broken & (rows.radius > _ASTRAY * rows.first_look)
    again = (lost | astray) & (rows.retries < config.retries)
    ended = broken | lost | spent | (found & (overshoot <= config.tolerance * rows.high))
    short_of_reach = torch.where(rows.radius < config.reach, int(Status.OUT_OF_STEPS), int(config.beyond_reach))
    status = torch.where(found, int(Status.CROSSED), short_of_reach)
    status = torch.where(broken, int(Status.NON_FINITE), status)
    radius = _next_radius(rows, gap + _AIM * slack, config)
    return rows.change(
        status=torch.where(ended, status, rows.status),
        stage=torch.where(again, config.retry_stage, torch.where(ended, DONE, rows.stage)),
        retries=rows.retries + again.int(),
        radius=torch.where(again, _ASTRAY * rows.first_look, radius),
    )


def _next_radius(rows: Rows, gap: Tensor, config: LineSearch) -> Tensor:
    """Aim just beyond the boundary by the secant; widen until it is bracketed, nearer its middle where that is slow."""
    farther = rows.radius * (1 + _BEYOND * config.tolerance)
    aim = farther + gap / rows.slope
    wider = aim.clamp(min=farther, max=_WIDEST_STEP * rows.radius).clamp(max=config.reach)
    width, middle, tolerance = rows.high - rows.low, (rows.low + rows.high) / 2, config.tolerance * rows.high
    edge = _FROM_THE_ENDS * width
    guard = torch.minimum(edge, _BEYOND * tolerance)
    outside = (aim < rows.low - edge) | (aim > rows.high + edge)  # the slope seen last does not hold there
    inner = torch.where(outside, middle, aim.clamp(min=rows.low + guard, max=rows.high - guard))
    left = _MORE_THAN_HALVING - math.log2(config.tolerance) - rows.looks.to(width)
    leeway = (tolerance * torch.exp2(left) - width / 2).clamp_min(0)
    creeps = (rows.looks >= _LOOKS_NEARLY_THERE) & ((leeway == 0) | (rows.looks % 2 == 1))
    held = creeps | (torch.minimum(inner - rows.low, rows.high - inner) > _NEARLY_THERE * tolerance)
    inner = torch.where(held, inner.clamp(min=middle - leeway, max=middle + leeway), inner)
    return torch.where(rows.high.isfinite(), inner, wider)
