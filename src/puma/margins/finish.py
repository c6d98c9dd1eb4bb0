"""The finish: forward-only root finding along a ray, on the original model, in fp32."""

from dataclasses import dataclass

import torch
from torch import Tensor

from puma.margins.geometry import Box
from puma.margins.network import Network, true_gap
from puma.margins.rows import Rows
from puma.margins.status import Status
from puma.margins.stream import DONE

# a gap smaller than this share of the largest logit may change sign when it is computed again
ROUNDING = 2e-6


@dataclass(frozen=True)
class Finish:
    """How exact the crossing must be, and how far and how long to look for it."""

    tolerance: float = 2e-3
    looks: int = 30
    reach: float = torch.inf
    retry_stage: int = DONE
    retries: int = 0


def look(rows: Rows, network: Network, box: Box, config: Finish) -> Rows:
    """Look at one point of every ray, narrow the bracket, and either end there or choose the next point."""
    logits = network.judge(box.ray(rows.origin, rows.pattern, rows.radius))
    gap, rival = true_gap(logits, rows.label, rows.right)
    slack = ROUNDING * logits.abs().amax(1)
    beyond = gap <= -slack
    slope = _secant(rows, gap, beyond)
    rows = rows.change(
        low=torch.where(beyond, rows.low, rows.radius),
        low_gap=torch.where(beyond, rows.low_gap, gap),
        high=torch.where(beyond, rows.radius, rows.high),
        high_gap=torch.where(beyond, gap, rows.high_gap),
        rival=torch.where(beyond, rival, rows.rival),
        looks=rows.looks + 1,
        slope=slope,
    )
    found = rows.high.isfinite()
    overshoot = torch.minimum((-rows.high_gap - 2 * slack) / slope, rows.high - rows.low)
    fine = found & (overshoot <= config.tolerance * rows.high)
    broken = ~gap.isfinite()
    lost = ~found & ((rows.radius >= config.reach) | (rows.looks >= config.looks))
    ended = fine | broken | lost | (rows.looks >= config.looks)
    status = torch.where(found, int(Status.CROSSED), int(Status.NOT_CROSSED))
    status = torch.where(broken, int(Status.NON_FINITE), status)
    again = lost & ~broken & (rows.retries < config.retries)
    return rows.change(
        stage=torch.where(again, config.retry_stage, torch.where(ended, DONE, rows.stage)),
        status=torch.where(ended, status, rows.status).to(rows.status.dtype),
        retries=rows.retries + again.to(rows.retries.dtype),
        radius=torch.where(again, rows.radius, _next_radius(rows, gap + 1.5 * slack, config)),
    )


def _secant(rows: Rows, gap: Tensor, beyond: Tensor) -> Tensor:
    """Estimate how fast the gap falls near the boundary: from the two last points if there are, else as expected."""
    radius = rows.radius
    other = torch.where(beyond, rows.low, torch.where(rows.high.isfinite(), rows.high, rows.low))
    other_gap = torch.where(beyond, rows.low_gap, torch.where(rows.high.isfinite(), rows.high_gap, rows.low_gap))
    secant = (other_gap - gap) / (radius - other)
    trusted = (other > 0) & (secant > 0) & secant.isfinite()
    whole = (rows.scale - gap) / radius
    expected = torch.where(rows.slope > 0, rows.slope, whole)
    slope = torch.where(trusted, secant, expected)
    return torch.where(slope > 0, slope, rows.scale / radius)


def _next_radius(rows: Rows, gap: Tensor, config: Finish) -> Tensor:
    """Aim just beyond the boundary by the secant; widen when it is not bracketed, halve when that is slow."""
    aim = rows.radius * (1 + 0.4 * config.tolerance) + gap / rows.slope
    wider = aim.clamp(min=rows.radius * (1 + config.tolerance), max=2 * rows.radius).clamp(max=config.reach)
    width = rows.high - rows.low
    inner = aim.clamp(min=rows.low + 0.02 * width, max=rows.high - 0.02 * width)
    inner = torch.where(rows.looks >= 4, (rows.low + rows.high) / 2, inner)
    return torch.where(rows.high.isfinite(), inner, wider)
