"""The finish: forward-only root finding along a ray, on the original model, in fp32."""

from dataclasses import dataclass

import torch
from torch import Tensor

from puma.margins.geometry import Box
from puma.margins.network import Network, true_gap
from puma.margins.rows import Rows
from puma.margins.status import Status
from puma.margins.stream import DONE

# a gap below this share of the largest logit may change sign when it is computed again
ROUNDING = 1e-6
# a ray that has not crossed this much farther out than expected is not worth following
_ASTRAY = 1.5
_SECANTS = 4  # after so many looks the bracket is halved instead


@dataclass(frozen=True)
class Finish:
    """How exact the crossing must be, how far and how long to look for it, and what follows a failure."""

    tolerance: float
    reach: float
    looks: int = 30
    beyond_reach: Status = Status.NOT_CROSSED
    retry_stage: int = DONE
    retries: int = 0


def look(rows: Rows, network: Network, box: Box, config: Finish) -> Rows:
    """Look at one point of every ray, narrow the bracket, and either end there or choose the next point."""
    logits = network.judge(box.ray(rows.origin, rows.pattern, rows.radius))
    gap, rival = true_gap(logits, rows.label, rows.right)
    slack = ROUNDING * logits.abs().amax(1)
    beyond = gap <= -slack
    rows = rows.change(
        slope=_slope(rows, gap, beyond),
        low=torch.where(beyond, rows.low, rows.radius),
        low_gap=torch.where(beyond, rows.low_gap, gap),
        high=torch.where(beyond, rows.radius, rows.high),
        high_gap=torch.where(beyond, gap, rows.high_gap),
        rival=torch.where(beyond, rival, rows.rival),
        looks=rows.looks + 1,
        first_look=torch.where(rows.looks == 0, rows.radius, rows.first_look),
    )
    return _decide(rows, gap, slack, config)


def _slope(rows: Rows, gap: Tensor, beyond: Tensor) -> Tensor:
    """How fast the gap falls near the boundary: by the two nearest points, else as expected, else on the whole."""
    at_low = beyond | rows.high.isinf()
    other = torch.where(at_low, rows.low, rows.high)
    secant = (torch.where(at_low, rows.low_gap, rows.high_gap) - gap) / (rows.radius - other)
    whole = (rows.scale - gap) / rows.radius
    slope = torch.where(rows.slope > 0, rows.slope, whole)
    slope = torch.where((other > 0) & (secant > 0) & secant.isfinite(), secant, slope)
    return torch.where(slope > 0, slope, rows.scale / rows.radius)


def _decide(rows: Rows, gap: Tensor, slack: Tensor, config: Finish) -> Rows:
    found = rows.high.isfinite()
    overshoot = torch.minimum((-rows.high_gap - 1.5 * slack) / rows.slope, rows.high - rows.low)
    broken = ~gap.isfinite()
    spent = rows.looks >= config.looks
    lost = ~found & ~broken & ((rows.radius >= config.reach) | spent)
    astray = ~found & ~broken & (rows.radius > _ASTRAY * rows.first_look)
    again = (lost | astray) & (rows.retries < config.retries)
    ended = broken | lost | spent | (found & (overshoot <= config.tolerance * rows.high))
    status = torch.where(found, int(Status.CROSSED), int(config.beyond_reach))
    status = torch.where(broken, int(Status.NON_FINITE), status)
    radius = _next_radius(rows, gap + 1.2 * slack, config)
    return rows.change(
        status=torch.where(ended, status, rows.status),
        stage=torch.where(again, config.retry_stage, torch.where(ended, DONE, rows.stage)),
        retries=rows.retries + again.int(),
        radius=torch.where(again, _ASTRAY * rows.first_look, radius),
    )


def _next_radius(rows: Rows, gap: Tensor, config: Finish) -> Tensor:
    """Aim just beyond the boundary by the secant; widen until it is bracketed, halve when secants are slow."""
    aim = rows.radius * (1 + 0.4 * config.tolerance) + gap / rows.slope
    wider = aim.clamp(min=rows.radius * (1 + 0.4 * config.tolerance), max=2 * rows.radius).clamp(max=config.reach)
    width = rows.high - rows.low
    inner = aim.clamp(min=rows.low + 0.02 * width, max=rows.high - 0.02 * width)
    inner = torch.where(rows.looks >= _SECANTS, (rows.low + rows.high) / 2, inner)
    return torch.where(rows.high.isfinite(), inner, wider)
