"""The engine behind ``deepfool`` and ``tight``: DeepFool's linearisation, but always measured from the image.

Where DeepFool adds up steps, this search keeps one direction from the image (a pattern, see line_search.py) and one
radius. A step linearises the gap at the current point, turns the pattern towards its steepest descent, and moves to
the radius at which the linearised gap closes on the new ray: one forward and one backward, whatever the number of
classes. ``tight`` follows several rivals at once and lets them race.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from puma.attacks import Norm
from puma.margins.search.engine import DROPPED, Arrival, Rows, SearchMethod, Stage, Status
from puma.margins.search.line_search import Box, LineSearch, newton_on_ray, search_line
from puma.margins.search.network import Network, mask_label, measure_gap, pick_logit, take_gradient
from puma.margins.search.opening import LOOK, STEP, PairNorms, open_searches, open_second
from puma.margins.search.restarts import ClassImages, RestartRule, add_rescues, add_restarts

# one linearisation may move the radius only between these shares of itself: a flat or steep spot must not throw a
# search away; chosen by hand, no finer than that
_SHORTEST_STEP, _LONGEST_STEP = 0.3, 2.5
_SMALLEST_RADIUS = 1e-7  # of the widest distance: below fp32's spacing of pixels near 1
_HOPELESS = 2.0  # with a cap: a first linearisation this many times beyond it is not stepped, only looked at
# in so few dimensions searches often end in local minima, and restarts cost little
FEW_PIXELS, FEW_PIXELS_RESTARTS = 64, 12


@dataclass(frozen=True)
class DeepFoolConfig:
    """How hard to search. Steps count gradients of the rival that is followed, the first one included."""

    candidates: int = 1  # rivals that get a first gradient in L_inf, and a second where it may be nearer ...
    candidates_l2: int = 2  # ... and in L2, where one made margins 1 to 5 % larger on the nets it was tuned on
    choose_again: bool = True  # the rival, by the gaps where the first gradient led: costs nothing, 0 to 5 % shorter
    steps: int = 3  # the cheapest that beat textbook DeepFool's margins on the nets it was tuned on
    # how far the pattern turns after the first gradient, and after later ones: see turn_share
    first_turn: float = 1.5
    later_turn: float = 0.8
    wrong_steps: int = 6  # a wrong sample has to overtake several rivals, which takes longer
    retry_steps: int = 5  # when the ray did not cross where it should have
    temperature: float = 1.0  # of the blend of rivals ahead of a wrong sample, in units of its gap; cools as 1 / step
    momentum: float = 0.0  # share of the earlier gradients in the heading; only searches of many steps have use for it
    race: float = 1.0  # rivals within this factor of the nearest are followed side by side ...
    race_steps: int = 3  # ... for so many steps, and then only those within ...
    lead: float = 1.08  # this factor, so that a rival as good within the noise of a step stays
    tolerance: float = 1e-3  # of the distance, relative
    restarts: int = 0
    surprise: float = 1.5  # see RestartRule
    restart_steps: int = 8
    rescues: int = 4  # see add_rescues: only for samples that did not cross


DEEPFOOL = DeepFoolConfig()
TIGHT = DeepFoolConfig(
    candidates=5, candidates_l2=5, choose_again=False, steps=16, first_turn=1.0, later_turn=0.5, wrong_steps=24,
    momentum=0.5, race=1.5, tolerance=2e-4, restarts=2,
)  # fmt: skip
_WRONG_TURNS = 1.0, 0.5  # of a wrong sample, whose gradient blends rivals: wider turns left some uncrossed for long
_CANDIDATES_OF_MANY = 2  # where norms are only estimated, the first rival is less sure to be the nearest


def assemble_deepfool(
    network: Network,
    norm: Norm,
    box: Box,
    ranks: PairNorms,
    images: ClassImages,
    cap: float | None,
    config: DeepFoolConfig,
) -> SearchMethod:
    """Assemble the search. ``ranks`` are typical gradient norms, which order the rivals."""
    widest = norm.diameter(box.high - box.low, network.pixels)
    limit = widest if cap is None else min(cap, widest)
    reach = norm.longest_ray * limit
    line = LineSearch(tolerance=config.tolerance, reach=reach, retry_stage=STEP, retries=2)
    if cap is not None:
        config = replace(config, restarts=0, rescues=0)
        line = LineSearch(tolerance=config.tolerance, reach=reach, beyond_reach=Status.CAPPED)
    candidates = config.candidates if norm.name == "linf" else config.candidates_l2
    candidates = min(candidates if ranks.points is None else max(candidates, _CANDIDATES_OF_MANY), ranks.classes - 1)
    if config.restarts and network.pixels <= FEW_PIXELS:
        config = replace(config, restarts=FEW_PIXELS_RESTARTS, surprise=1.0, restart_steps=config.steps)
    last: Callable[[Rows], Rows] = partial(search_line, network=network, box=box, config=line)
    if config.restarts:
        rule = RestartRule(config.restarts, config.surprise, STEP)
        last = add_restarts(last, norm, box, images, limit, network.pixels, rule)
    if config.rescues:
        last = add_rescues(last, norm, box, images, count=config.rescues, step_stage=STEP, look_stage=LOOK)

    def begin(arrival: Arrival) -> Rows:
        return prepare_steps(open_searches(arrival, network, norm, box, ranks, candidates=candidates, race=config.race))

    def prepare_steps(rows: Rows) -> Rows:
        if config.momentum:
            rows = rows.change(memory=-rows.pattern)
        if config.restarts:
            rows = rows.change(kept=rows.pattern)
        hopeless = rows.radius > _HOPELESS * line.reach  # far beyond the cap already by the first linearisation
        return rows.change(
            radius=rows.radius.clamp(_SMALLEST_RADIUS * widest, line.reach),
            stage=torch.where(
                (rows.stage == STEP) & hopeless & (cap is not None) & (config.race <= 1), LOOK, rows.stage
            ),
        )

    return SearchMethod(
        begin=begin,
        begin_forwards=1,
        begin_backwards=candidates,
        stages=(
            Stage(lambda rows: prepare_steps(open_second(rows, network, norm, box)), 1, 1),
            Stage(lambda rows: take_step(rows, network, norm, box, line.reach, config), 1, 1),
            Stage(last, 1, 0),
        ),
    )


def take_step(rows: Rows, network: Network, norm: Norm, box: Box, reach: float, config: DeepFoolConfig) -> Rows:
    """Linearise at the current point, turn the pattern, move to where the gap closes; drop rivals that lag."""
    points = box.ray(rows.origin, rows.pattern, rows.radius).requires_grad_()
    logits = network.logits(points)
    _, strongest = measure_gap(logits.detach(), rows.label, rows.right)
    anew = rows.step == 0
    if config.choose_again:
        anew |= rows.right & (rows.step == 1)
    rows = rows.change(rival=torch.where(anew, strongest, rows.rival))
    surrogate, gap = search_gap(logits, rows, config.temperature)
    slant = take_gradient(surrogate.sum(), points)
    points = points.detach()
    memory, heading = rows.memory, slant
    if config.momentum:
        # gradients are added up at the size of a pattern, which is what the memory begins with
        size = norm.dual(norm.steepest(slant)) / norm.dual(slant).clamp_min(torch.finfo(slant.dtype).tiny)
        memory = heading = torch.addcmul(config.momentum * memory, slant, size[:, None])
    turn = -turn_share(rows, config)[:, None]
    pattern = norm.confine(torch.addcmul(rows.pattern, norm.steepest(heading), turn))
    radius, slope = newton_on_ray(box, rows.origin, pattern, rows.radius, points, gap, slant)
    radius = radius.where(radius.isfinite(), rows.radius).clamp(
        _SHORTEST_STEP * rows.radius, _LONGEST_STEP * rows.radius
    )
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
    return send_on(stepped, norm, box, config)


def search_gap(logits: Tensor, rows: Rows, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the gap to differentiate and the gap to close.

    A right sample follows one rival. A wrong one has to overtake all: the radius comes from the strongest, the
    direction from a log-sum-exp over all of them, whose gradient blends those that are nearly tied.
    """
    lead = pick_logit(logits, rows.label) - pick_logit(logits, rows.rival)
    warmth = (temperature * rows.scale / rows.step.clamp_min(1)).clamp_min(torch.finfo(logits.dtype).tiny)
    soft = (mask_label(logits, rows.label) / warmth[:, None]).logsumexp(1) * warmth - pick_logit(logits, rows.label)
    true, _ = measure_gap(logits.detach(), rows.label, rows.right)
    return torch.where(rows.right, lead, soft), torch.where(rows.right, lead.detach(), true)


def turn_share(rows: Rows, config: DeepFoolConfig) -> Tensor:
    """How far the pattern turns to the gradient.

    More than by one at first, since the gradient at the image says less than the one near the boundary; then by less,
    falling with the root of the steps, as in subgradient methods, so that it settles where the gap has kinks.
    """
    first, later = (
        torch.where(rows.right, right, wrong)
        for right, wrong in zip((config.first_turn, config.later_turn), _WRONG_TURNS, strict=True)
    )
    return torch.where(rows.step < 2, first, later * (3.0 / (rows.step + 1.0)).sqrt())


def send_on(rows: Rows, norm: Norm, box: Box, config: DeepFoolConfig) -> Rows:
    """Send rows that took all their steps to the line search, the best rival only; between, drop those that lag."""
    limit = torch.where(rows.right, config.steps, config.wrong_steps)
    limit = (
        torch.where((rows.restarts > 0) | (rows.rescue > 0), config.restart_steps, limit)
        + config.retry_steps * rows.retries
    )
    last = rows.step >= limit
    stage = torch.where(last, LOOK, STEP)
    if config.race > 1:
        stage = torch.where(_find_lagging(rows, norm, box, last, config), DROPPED, stage)
    return rows.change(stage=stage)


def _find_lagging(rows: Rows, norm: Norm, box: Box, last: Tensor, config: DeepFoolConfig) -> Tensor:
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
