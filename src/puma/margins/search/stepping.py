"""The paper's own searches, which step from the image until the prediction flips and then search the segment.

``fast`` is Algorithm 1 of the paper, corrected: BIM away from the label (towards it, for a wrong sample). Its cost does
not depend on the number of classes. Three things differ from the print: the segment is searched by the fraction of its
length, a wrong sample walks until it reaches its *label*, and pixels stay inside the box.

``deepfool-classic`` is textbook DeepFool: at every step the gap to each of the strongest rivals is linearised, the
nearest one is stepped to, and the steps add up. It is anchored on the label: a wrong sample steps towards overtaking
the rival farthest ahead, until it has overtaken all. The cost grows with the number of candidates.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from puma.attacks import Norm
from puma.margins.search.engine import Arrival, Rows, SearchMethod, Stage, Status, end_searches
from puma.margins.search.line_search import Box, LineSearch, search_line
from puma.margins.search.network import Network, mask_label, measure_gap, pick_logit, take_gradient
from puma.margins.search.opening import judge_arrivals


@dataclass(frozen=True)
class FastConfig:
    """``step_size`` (alpha) in units of the largest L_inf distance; ``steps`` is i_max of the paper.

    ``loss`` drives the steps: the logit gap to the strongest rival, or cross-entropy as printed, whose gradient
    vanishes for confident samples.
    """

    step_size: float = 2 / 255
    steps: int = 100  # of 2/255: most of the pixel range
    loss: Literal["gap", "ce"] = "gap"
    tolerance: float = 1e-3


FAST = FastConfig()
FAST_CE = FastConfig(loss="ce")


def assemble_fast(network: Network, norm: Norm, box: Box, cap: float | None, config: FastConfig) -> SearchMethod:
    """Assemble the search."""
    # the paper gives an L_inf step only; an L2 step is, by our choice, as long as that by a quarter of the pixels
    share = 1.0 if norm.name == "linf" else math.sqrt(0.25)
    length = config.step_size * share * norm.diameter(box.high - box.low, network.pixels)

    def move(rows: Rows, points: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        if config.loss == "ce":
            risk = F.cross_entropy(logits, rows.label, reduction="none")
            falling = torch.where(rows.right, -risk, risk)
        else:
            falling, _ = measure_gap(logits, rows.label, rows.right)
        slant = take_gradient(falling.sum(), points)
        return -length * norm.steepest(slant), norm.dual(slant)

    return assemble_stepping(
        network, norm, box, move, backwards=1, steps=config.steps, stretch=1.0, tolerance=config.tolerance, cap=cap
    )


@dataclass(frozen=True)
class ClassicConfig:
    """``candidates`` strongest rivals are chosen anew at every step.

    ``overshoot`` stretches the sum of the steps, and each step aims beyond the boundary by this share of the first gap:
    without it, steps shrink before they cross.
    """

    candidates: int = 9  # ten classes with the label, DeepFool's published default, as are the next two
    steps: int = 50
    overshoot: float = 0.02
    tolerance: float = 1e-3


CLASSIC = ClassicConfig()


def assemble_classic(
    network: Network, norm: Norm, box: Box, classes: int, cap: float | None, config: ClassicConfig
) -> SearchMethod:
    """Assemble the search."""
    candidates = min(config.candidates, classes - 1)

    def move(rows: Rows, points: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        rivals = mask_label(logits.detach(), rows.label).topk(candidates, 1).indices
        best = torch.full_like(rows.scale, torch.inf)
        steepest = torch.zeros_like(rows.scale)
        change = torch.zeros_like(rows.origin)
        for index in range(candidates):
            lead = pick_logit(logits, rows.label) - pick_logit(logits, rivals[:, index])
            gap = torch.where(rows.right, lead, -lead)
            slant = take_gradient(gap.sum(), points, again=index + 1 < candidates)
            steepness = norm.dual(slant)
            distance = (gap.detach() + config.overshoot * rows.scale) / steepness
            # nearest for a right sample; for a wrong one the farthest, as all have to be overtaken
            preference = torch.where(rows.right, distance, -distance).where(steepness > 0, torch.inf)
            better = preference < best
            best = torch.where(better, preference, best)
            change = torch.where(better[:, None], -norm.steepest(slant) * distance[:, None], change)
            steepest = torch.maximum(steepest, steepness)
        return change, steepest

    return assemble_stepping(
        network,
        norm,
        box,
        move,
        backwards=candidates,
        steps=config.steps,
        stretch=1 + config.overshoot,
        tolerance=config.tolerance,
        cap=cap,
    )


STEP, LOOK = 0, 1  # stages

# (rows, points with gradient, logits) -> how to move each point, and how steep the way was (0: no way)
Move = Callable[[Rows, Tensor, Tensor], tuple[Tensor, Tensor]]


def assemble_stepping(
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
) -> SearchMethod:
    """Assemble a search by steps: ``pattern`` holds the displacement so far, to be seen ``stretch`` times as long."""
    widest = norm.diameter(box.high - box.low, network.pixels)
    limit = widest if cap is None else min(cap, widest)
    beyond = Status.NOT_CROSSED if cap is None else Status.CAPPED
    line = LineSearch(tolerance=tolerance, reach=limit, beyond_reach=beyond)

    def move_on(rows: Rows, points: Tensor, logits: Tensor) -> Rows:
        change, steepness = move(rows, points, logits)
        pattern = (rows.origin + rows.pattern + change).clamp_(box.low, box.high) - rows.origin
        stuck = (pattern == rows.pattern).all(1)  # at the end of the pixel range: later steps would not move it either
        rows = rows.change(pattern=pattern, step=rows.step + 1)
        live = rows.stage == STEP
        rows = end_searches(rows, live & (steepness == 0), Status.ZERO_GRADIENT)
        rows = end_searches(rows, live & ~steepness.isfinite(), Status.NON_FINITE)
        return end_searches(rows, (rows.stage == STEP) & stuck, Status.NOT_CROSSED)

    def begin(arrival: Arrival) -> Rows:
        points = arrival.origin.detach().requires_grad_()
        logits = network.logits(points)
        rows = judge_arrivals(arrival, logits, network).change(pattern=torch.zeros_like(arrival.origin))
        return move_on(rows, points, logits)

    def step_on(rows: Rows) -> Rows:
        reached = torch.add(rows.origin, rows.pattern, alpha=stretch).clamp_(box.low, box.high)
        points = reached.detach().requires_grad_()
        logits = network.logits(points)
        gap, _ = measure_gap(logits.detach(), rows.label, rows.right)
        length = norm.length(reached - rows.origin)
        over = (gap < 0) | (length >= limit)
        tired = ~over & (rows.step >= steps)
        onto = move_on(rows, points, logits)
        onto = end_searches(onto, (onto.stage == STEP) & tired, Status.OUT_OF_STEPS)
        return _merge_rows(over, _turn_to_line(rows, reached - rows.origin, length, gap, limit), onto)

    return SearchMethod(
        begin=begin,
        begin_forwards=1,
        begin_backwards=backwards,
        stages=(Stage(step_on, 1, backwards), Stage(lambda rows: search_line(rows, network, box, line), 1, 0)),
    )


def _turn_to_line(rows: Rows, displacement: Tensor, length: Tensor, gap: Tensor, limit: float) -> Rows:
    """Turn a displacement beyond the boundary into a ray, with a first guess by the gaps at its two ends."""
    slope = ((rows.scale - gap) / length).clamp_min(0)
    guess = torch.where(gap < 0, length * rows.scale / (rows.scale - gap), length)
    return rows.change(
        stage=torch.full_like(rows.stage, LOOK),
        pattern=displacement / length.clamp_min(torch.finfo(length.dtype).tiny)[:, None],
        radius=guess.clamp(max=limit),
        slope=slope,
    )


def _merge_rows(over: Tensor, crossed: Rows, walking: Rows) -> Rows:
    return walking.change(
        stage=torch.where(over, crossed.stage, walking.stage),
        status=torch.where(over, crossed.status, walking.status),
        pattern=torch.where(over[:, None], crossed.pattern, walking.pattern),
        radius=torch.where(over, crossed.radius, walking.radius),
        slope=torch.where(over, crossed.slope, walking.slope),
    )
