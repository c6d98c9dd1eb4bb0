"""The engine behind ``deepfool`` and ``tight``: DeepFool's linearisation, but always measured from the image.

Where DeepFool adds up steps, this search keeps one direction from the image (a pattern, see geometry.py) and one
radius. A step linearises the gap at the current point, turns the pattern towards its steepest descent, and moves to
the radius at which the linearised gap closes on the new ray: one forward and one backward, whatever the number of
classes. ``tight`` follows several rivals at once and lets them race.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from puma.attacks.norms import Norm
from puma.margins.finish import Finish, look
from puma.margins.first import first_gradients
from puma.margins.geometry import Box, newton_on_ray
from puma.margins.network import Network, gradient, pick, true_gap, without
from puma.margins.restart import Restart, restarting
from puma.margins.rows import Arrival, Rows
from puma.margins.status import Status
from puma.margins.stream import DROPPED, Method, Stage

STEP, LOOK = 0, 1
# in so few dimensions searches often end in local minima, and restarts cost little
FEW_PIXELS, FEW_PIXELS_RESTARTS = 64, 12


@dataclass(frozen=True)
class Search:
    """How hard to search. Steps count gradients of the rival that is followed, the first one included."""

    candidates: int = 2  # rivals that get a first gradient
    steps: int = 3
    wrong_steps: int = 6  # a wrong sample has to overtake several rivals, which takes longer
    retry_steps: int = 5  # when the ray did not cross where it should have
    temperature: float = 1.0  # of the blend of rivals ahead of a wrong sample, in units of its gap; cools as 1 / step
    momentum: float = 0.0
    race: float = 1.0  # rivals within this factor of the nearest are followed side by side ...
    race_steps: int = 3  # ... for so many steps, and then only those within the factor
    lead: float = 1.08
    tolerance: float = 1e-3  # of the distance, relative
    restarts: int = 0
    surprise: float = 1.5  # see Restart
    restart_steps: int = 8


DEEPFOOL = Search()
TIGHT = Search(candidates=5, steps=16, wrong_steps=24, momentum=0.5, race=1.5, tolerance=2e-4, restarts=2)


def deepfool(network: Network, norm: Norm, box: Box, ranks: Tensor, cap: float | None, config: Search) -> Method:
    """Assemble the search. ``ranks`` (K, K) are typical gradient norms, which order the rivals."""
    widest = norm.diameter(box.high - box.low, network.pixels)
    limit = widest if cap is None else min(cap, widest)
    reach = norm.longest_ray * limit
    finish = Finish(tolerance=config.tolerance, reach=reach, retry_stage=STEP, retries=2)
    if cap is not None:
        config = replace(config, restarts=0)
        finish = Finish(tolerance=config.tolerance, reach=reach, beyond_reach=Status.CAPPED)
    candidates = min(config.candidates, len(ranks) - 1)
    if config.restarts and network.pixels <= FEW_PIXELS:
        config = replace(config, restarts=FEW_PIXELS_RESTARTS, surprise=1.0, restart_steps=config.steps)
    last: Callable[[Rows], Rows] = partial(look, network=network, box=box, config=finish)
    if config.restarts:
        last = restarting(last, norm, box, limit, network.pixels, Restart(config.restarts, config.surprise, STEP))

    def begin(arrival: Arrival) -> Rows:
        rows = first_gradients(arrival, network, norm, box, ranks, candidates=candidates, race=config.race)
        if config.momentum:
            rows = rows.change(memory=-rows.pattern)
        if config.restarts:
            rows = rows.change(kept=rows.pattern)
        hopeless = rows.radius > 2 * finish.reach  # far beyond the cap already by the first linearisation
        return rows.change(
            radius=rows.radius.clamp(1e-7 * widest, finish.reach),
            stage=torch.where(
                (rows.stage == STEP) & hopeless & (cap is not None) & (config.race <= 1), LOOK, rows.stage
            ),
        )

    return Method(
        begin=begin,
        begin_forwards=1,
        begin_backwards=candidates,
        stages=(
            Stage(lambda rows: step(rows, network, norm, box, finish.reach, config), 1, 1),
            Stage(last, 1, 0),
        ),
    )


def step(rows: Rows, network: Network, norm: Norm, box: Box, reach: float, config: Search) -> Rows:
    """Linearise at the current point, turn the pattern, move to where the gap closes; drop rivals that lag."""
    points = box.ray(rows.origin, rows.pattern, rows.radius).requires_grad_()
    logits = network.logits(points)
    _, strongest = true_gap(logits.detach(), rows.label, rows.right)
    rows = rows.change(rival=torch.where(rows.step == 0, strongest, rows.rival))
    surrogate, gap = search_gap(logits, rows, config.temperature)
    slant = gradient(surrogate.sum(), points)
    points = points.detach()
    memory, heading = rows.memory, slant
    if config.momentum:
        # gradients are added up at the size of a pattern, which is what the memory begins with
        size = norm.dual(norm.steepest(slant)) / norm.dual(slant).clamp_min(torch.finfo(slant.dtype).tiny)
        memory = heading = torch.addcmul(config.momentum * memory, slant, size[:, None])
    turn = -damping(rows.step)[:, None]
    pattern = norm.confine(torch.addcmul(rows.pattern, norm.steepest(heading), turn))
    radius, slope = newton_on_ray(box, rows.origin, pattern, rows.radius, points, gap, slant)
    radius = radius.where(radius.isfinite(), rows.radius).clamp(0.3 * rows.radius, 2.5 * rows.radius)
    usable = (slope.isfinite() & radius.isfinite())[:, None]
    stepped = rows.change(
        step=rows.step + 1,
        pattern=torch.where(usable, pattern, rows.pattern),
        memory=torch.where(usable, memory, rows.memory) if config.momentum else memory,
        radius=torch.where(usable[:, 0], radius, rows.radius).clamp(max=reach),
        slope=slope,
        looks=torch.zeros_like(rows.looks),
        low=torch.zeros_like(rows.low),
        low_gap=rows.scale,
    )
    return advance(stepped, norm, box, config)


def search_gap(logits: Tensor, rows: Rows, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the gap to differentiate and the gap to close.

    A right sample follows one rival. A wrong one has to overtake all: the radius comes from the strongest, the
    direction from a log-sum-exp over all of them, whose gradient blends those that are nearly tied.
    """
    lead = pick(logits, rows.label) - pick(logits, rows.rival)
    warmth = (temperature * rows.scale / rows.step.clamp_min(1)).clamp_min(torch.finfo(logits.dtype).tiny)
    soft = (without(logits, rows.label) / warmth[:, None]).logsumexp(1) * warmth - pick(logits, rows.label)
    true, _ = true_gap(logits.detach(), rows.label, rows.right)
    return torch.where(rows.right, lead, soft), torch.where(rows.right, lead.detach(), true)


def damping(taken: Tensor) -> Tensor:
    """How far the pattern turns after so many gradients: fully at first, then less and less."""
    return torch.where(taken < 2, 1.0, 0.5 * (3.0 / (taken + 1.0)).sqrt())


def advance(rows: Rows, norm: Norm, box: Box, config: Search) -> Rows:
    """Send rows that took all their steps to the finish, the best rival only; between, drop those that lag."""
    limit = torch.where(rows.right, config.steps, config.wrong_steps)
    limit = torch.where(rows.restarts > 0, config.restart_steps, limit) + config.retry_steps * rows.retries
    last = rows.step >= limit
    stage = torch.where(last, LOOK, STEP)
    if config.race > 1:
        stage = torch.where(_lagging(rows, norm, box, last, config), DROPPED, stage)
    return rows.change(stage=stage)


def _lagging(rows: Rows, norm: Norm, box: Box, last: Tensor, config: Search) -> Tensor:
    """Which rows have a sibling that is clearly ahead; at the last step, all but the first of the best."""
    _, sample = torch.unique_consecutive(rows.owner, return_inverse=True)
    distance = norm.length(box.ray(rows.origin, rows.pattern, rows.radius) - rows.origin)
    distance = distance.nan_to_num(nan=torch.finfo(distance.dtype).max)
    best = torch.full_like(distance, torch.inf).scatter_reduce(0, sample, distance, "amin")[sample]
    place = torch.arange(len(sample), device=sample.device)
    beaten = torch.where(distance <= best, place, len(sample))
    winner = torch.full_like(place, len(sample)).scatter_reduce(0, sample, beaten, "amin")[sample]
    behind = (rows.step >= config.race_steps) & (distance > config.lead * best)
    return torch.where(last, place != winner, behind)
