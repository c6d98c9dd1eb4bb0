"""What ``fast`` and ``deepfool-classic`` share: a walk until the prediction flips, then the finish on the segment."""

from collections.abc import Callable

import torch
from torch import Tensor

from puma.attacks.norms import Norm
from puma.margins.assess import assess, close
from puma.margins.finish import Finish, look
from puma.margins.geometry import Box
from puma.margins.network import Network, true_gap
from puma.margins.rows import Arrival, Rows
from puma.margins.status import Status
from puma.margins.stream import Method, Stage

WALK, LOOK = 0, 1

# (rows, points with gradient, logits) -> how to move each point, and how steep the way was (0: no way)
Move = Callable[[Rows, Tensor, Tensor], tuple[Tensor, Tensor]]


def walking(
    network: Network,
    norm: Norm,
    box: Box,
    move: Move,
    *,
    backwards: int,
    steps: int,
    stretch: float,
    tolerance: float,
    cap: float | None,
) -> Method:
    """Assemble a walk: ``pattern`` holds the displacement so far, ``stretch`` times which is where to look."""
    widest = norm.diameter(box.high - box.low, network.pixels)
    limit = widest if cap is None else min(cap, widest)
    beyond = Status.NOT_CROSSED if cap is None else Status.CAPPED
    finish = Finish(tolerance=tolerance, reach=limit, beyond_reach=beyond)

    def onward(rows: Rows, points: Tensor, logits: Tensor) -> Rows:
        change, steepness = move(rows, points, logits)
        pattern = (rows.origin + rows.pattern + change).clamp_(box.low, box.high) - rows.origin
        rows = rows.change(pattern=pattern, step=rows.step + 1)
        live = rows.stage == WALK
        rows = close(rows, live & (steepness == 0), Status.ZERO_GRADIENT)
        return close(rows, live & ~steepness.isfinite(), Status.NON_FINITE)

    def begin(arrival: Arrival) -> Rows:
        points = arrival.origin.detach().requires_grad_()
        logits = network.logits(points)
        rows = assess(arrival, logits, network).change(pattern=torch.zeros_like(arrival.origin))
        return onward(rows, points, logits)

    def walk(rows: Rows) -> Rows:
        reached = torch.add(rows.origin, rows.pattern, alpha=stretch).clamp_(box.low, box.high)
        points = reached.detach().requires_grad_()
        logits = network.logits(points)
        gap, _ = true_gap(logits.detach(), rows.label, rows.right)
        length = norm.length(reached - rows.origin)
        over = (gap < 0) | (length >= limit)
        tired = ~over & (rows.step >= steps)
        onto = onward(rows, points, logits)
        onto = close(onto, (onto.stage == WALK) & tired, Status.NOT_CROSSED)
        return _choose(over, _to_finish(rows, reached - rows.origin, length, gap, limit), onto)

    return Method(
        begin=begin,
        begin_forwards=1,
        begin_backwards=backwards,
        stages=(Stage(walk, 1, backwards), Stage(lambda rows: look(rows, network, box, finish), 1, 0)),
    )


def _to_finish(rows: Rows, displacement: Tensor, length: Tensor, gap: Tensor, limit: float) -> Rows:
    """Turn a displacement beyond the boundary into a ray, with a first guess by the gaps at its two ends."""
    slope = ((rows.scale - gap) / length).clamp_min(0)
    guess = torch.where(gap < 0, length * rows.scale / (rows.scale - gap), length)
    return rows.change(
        stage=torch.full_like(rows.stage, LOOK),
        pattern=displacement / length.clamp_min(torch.finfo(length.dtype).tiny)[:, None],
        radius=guess.clamp(max=limit),
        slope=slope,
    )


def _choose(over: Tensor, crossed: Rows, walking: Rows) -> Rows:
    return walking.change(
        stage=torch.where(over, crossed.stage, walking.stage),
        status=torch.where(over, crossed.status, walking.status),
        pattern=torch.where(over[:, None], crossed.pattern, walking.pattern),
        radius=torch.where(over, crossed.radius, walking.radius),
        slope=torch.where(over, crossed.slope, walking.slope),
    )
