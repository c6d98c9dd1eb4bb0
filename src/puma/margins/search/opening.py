"""The opening: is a sample right and by how much, and a first gradient for each of a few rivals.

The nearest rival has the smallest gap / ||gradient||, but gradients of all K rivals cost K backwards. The norms
differ far less between images than between pairs of classes, so they are estimated once, on a few smooth
random images, and rank the rivals of every sample. For an affine model the ranking is exact but for the pixel box:
where the box makes the way to the first rival so much longer that the second may be nearer, that one gets a gradient,
too. Of many classes, logits are only watched while the images move along random directions: as many forwards whatever
the number of classes.
"""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from puma.attacks import Norm
from puma.margins.search.engine import DONE, Arrival, Rows, Status, end_searches, open_rows
from puma.margins.search.line_search import Box, newton_on_ray
from puma.margins.search.network import Network, measure_gap, pick_logit, take_gradient

SECOND, STEP, LOOK = 0, 1, 2  # stages: a second rival's gradient, gradients on the way, the line search
# leads below this share of the largest logit are decided by the original model, not by its prepared copy
NEAR_TIE = 1e-3
_NEWTON_STEPS = 2  # the first shows which pixels are clipped, the second reckons without them; later steps refine it
_EXACT_PAIRS = 128  # above this many classes, pairs are compared in L2, which is one matrix product
# beyond these, norms are estimated by finite differences
_MOST_CLASSES = 256
_LARGEST_JACOBIAN = 2**26  # numbers of one sample: 256 MB in float32
_MOVED_PROBES, _DIRECTIONS = 8, 8  # 64 differences in all: norms of random projections are right to a tenth
_MOVE = 0.005  # of the pixel range: small for a net, and large against the rounding of logits
_FEW_ENOUGH = 256  # of very many classes, only so many with the smallest gaps are compared by their norms
_FEW_CLASSES, _PROBES, _PROBES_OF_MANY = 32, 8, 2  # images that norms are averaged over; K gradients are taken of each


@dataclass(frozen=True)
class PairNorms:
    """Typical dual norms of the gradients of logit differences: a table (K, K), or a point (K, d) for each class.

    The distance between two points is the norm for the pair: of many classes, no table would fit.
    """

    table: Tensor | None = None
    points: Tensor | None = None

    @property
    def classes(self) -> int:
        """Number of classes."""
        kept = self.points if self.table is None else self.table
        assert kept is not None
        return len(kept)

    def find_norms(self, label: Tensor, rivals: Tensor | None = None) -> Tensor:
        """Return the norms between labels (n,) and all classes, or the given rivals (n, m)."""
        if self.table is not None:
            return self.table[label] if rivals is None else self.table[label].gather(1, rivals)
        assert self.points is not None
        # no matrix product: classes that are nearly the same have a small difference of large points
        others = self.points[None] if rivals is None else self.points[rivals]
        norms = (self.points[label][:, None] - others).square().mean(2).sqrt()
        return torch.where(norms.isfinite() & (norms > 0), norms, 1.0)


def judge_arrivals(arrival: Arrival, logits: Tensor, network: Network) -> Rows:
    """Open rows with the original model's prediction; samples with non-finite logits are done at once."""
    logits = logits.detach()
    prediction = logits.argmax(1)
    lead = (logits.topk(2, 1).values * logits.new_tensor([1.0, -1.0])).sum(1)
    unsure = ~(lead > NEAR_TIE * logits.abs().amax(1)) | (network.autocast is not None)
    if bool(unsure.any()):
        exact = network.judge(arrival.origin[unsure])
        logits, prediction = logits.clone(), prediction.clone()
        logits[unsure], prediction[unsure] = exact, exact.argmax(1)
    gap, rival = measure_gap(logits, arrival.label, prediction == arrival.label)
    rows = open_rows(arrival, prediction, gap, rival)
    return end_searches(rows, ~logits.isfinite().all(1), Status.NON_FINITE)


@dataclass(frozen=True)
class Opening:
    """The direction against one rival per sample, where its linearised gap closes, and how it compares."""

    rival: Tensor
    pattern: Tensor
    radius: Tensor
    slope: Tensor
    steepness: Tensor
    unboxed: Tensor  # distance if there were no bounds: never more than within them
    preference: Tensor  # smaller is better


def open_searches(
    arrival: Arrival, network: Network, norm: Norm, box: Box, ranks: PairNorms, *, candidates: int, race: float
) -> Rows:
    """Open a row for the best rival of every sample, and for those within the factor ``race`` of it."""
    points = arrival.origin.detach().requires_grad_()
    logits = network.logits(points)
    rows = judge_arrivals(arrival, logits, network)
    rivals, ranked = order_rivals(rows, logits.detach(), ranks, max(candidates, min(2, ranks.classes - 1)))
    openings = [
        open_against(rivals[:, i], rows, points, logits, norm, box, again=i + 1 < candidates) for i in range(candidates)
    ]
    if candidates == 1 and rivals.shape[1] > 1:
        return _open_first(rows, openings[0], rivals[:, 1], ranked)
    steepness = torch.stack([opening.steepness for opening in openings])
    rows = end_searches(rows, (rows.stage >= 0) & (steepness == 0).all(0), Status.ZERO_GRADIENT)
    rows = end_searches(rows, (rows.stage >= 0) & ~(steepness > 0).any(0), Status.NON_FINITE)
    rows = _choose_rivals(rows, openings, race)
    return rows.change(stage=torch.where(rows.stage >= 0, STEP, rows.stage))


def _open_first(rows: Rows, opening: Opening, second: Tensor, ranked: Tensor) -> Rows:
    """Follow the first rival; where the box makes it no nearer than the second may be, or it is flat, ask for that.

    Until then ``target`` is the second rival and ``promise`` how far the first one is.
    """
    usable = opening.steepness > 0
    maybe_nearer = rows.right & (ranked[:, 1] * opening.unboxed < ranked[:, 0] * opening.preference)
    wanted = maybe_nearer | ~usable
    distance = opening.preference.abs().where(opening.preference.isfinite() | wanted, opening.unboxed)
    rows = _take_openings(rows.change(promise=distance, target=second), [opening], torch.zeros_like(second))
    return rows.change(
        pattern=torch.where(usable[:, None], rows.pattern, 0.0),
        stage=torch.where(rows.stage >= 0, torch.where(wanted, SECOND, STEP), rows.stage),
    )


def open_second(rows: Rows, network: Network, norm: Norm, box: Box) -> Rows:
    """Take the gradient against the second rival, and follow the one that is nearer by its linearisation."""
    points = rows.origin.detach().requires_grad_()
    opening = open_against(rows.target, rows, points, network.logits(points), norm, box, again=False)
    flat = ~(opening.steepness > 0) & (rows.pattern == 0).all(1)
    kind = torch.where(opening.steepness == 0, int(Status.ZERO_GRADIENT), int(Status.NON_FINITE))
    distance = opening.preference.abs()
    better = (distance < rows.promise) | ((rows.pattern == 0).all(1) & ~flat)
    promise = torch.minimum(distance, rows.promise)
    unboxed = torch.minimum(opening.unboxed, rows.radius.abs()).where(~better, opening.unboxed)
    return rows.change(
        rival=torch.where(better, opening.rival, rows.rival),
        pattern=torch.where(better[:, None], opening.pattern, rows.pattern),
        radius=torch.where(better, opening.radius, rows.radius),
        slope=torch.where(better, opening.slope, rows.slope),
        promise=promise.where(promise.isfinite(), unboxed),
        status=torch.where(flat, kind, rows.status),
        stage=torch.where(flat, DONE, STEP),
    )


def order_rivals(rows: Rows, logits: Tensor, ranks: PairNorms, candidates: int) -> tuple[Tensor, Tensor]:
    """Return the rivals most worth a gradient: nearest first for a right sample, farthest ahead for a wrong one.

    With each comes its distance, as far as typical norms tell it.

    A right sample needs one rival to overtake. A wrong one must overtake every rival ahead of it, and the farthest
    of these half-spaces says most about the distance. In ``(f_y - f_k) / norm`` both come lowest.
    """
    lead = (pick_logit(logits, rows.label)[:, None] - logits).scatter(1, rows.label[:, None], torch.inf)
    if ranks.table is None and ranks.classes > _FEW_ENOUGH:
        lead, some = lead.topk(_FEW_ENOUGH, 1, largest=False)
        distance, best = (lead / ranks.find_norms(rows.label, some)).topk(candidates, 1, largest=False)
        return some.gather(1, best), distance
    distance, best = (lead / ranks.find_norms(rows.label)).topk(candidates, 1, largest=False)
    return best, distance


def open_against(
    rival: Tensor, rows: Rows, points: Tensor, logits: Tensor, norm: Norm, box: Box, *, again: bool
) -> Opening:
    """Linearise the gap to one rival per sample and solve for the radius inside the box."""
    lead = pick_logit(logits, rows.label) - pick_logit(logits, rival)
    gap = torch.where(rows.right, lead, -lead)
    slant = take_gradient(gap.sum(), points, again=again)
    gap, steepness, pattern = gap.detach(), norm.dual(slant), -norm.steepest(slant)
    radius = gap / steepness  # the first Newton step, from the image
    for _ in range(_NEWTON_STEPS):
        radius, slope = newton_on_ray(box, rows.origin, pattern, radius, rows.origin, gap, slant)
    # the box may stop the ray short of the radius, most of all in L2: what counts is the distance
    distance = norm.length(box.ray(rows.origin, pattern, radius.nan_to_num()) - rows.origin)
    distance = torch.where(radius.isfinite(), distance, torch.inf)
    preference = torch.where(rows.right, distance, torch.where(gap > 0, -distance, torch.inf))
    unboxed = torch.where(steepness > 0, gap / steepness, 0.0)  # a rival tied everywhere has no direction
    return Opening(
        rival=rival,
        pattern=pattern,
        radius=torch.where(radius.isfinite(), radius, unboxed),
        slope=slope,
        steepness=steepness,
        unboxed=unboxed.abs().where(unboxed.isfinite(), torch.finfo(unboxed.dtype).max),
        preference=torch.where(steepness > 0, preference, torch.inf),
    )


def _choose_rivals(rows: Rows, openings: list[Opening], race: float) -> Rows:
    preference = torch.stack([opening.preference for opening in openings], 1)
    best, choice = preference.min(1)
    # where no linearised gap closes within the bounds, the distance without them is promised: any failure is a surprise
    promise = torch.stack([opening.unboxed for opening in openings], 1).amin(1)
    promise = best.abs().where(best.isfinite(), promise)

    if race <= 1:
        return _take_openings(rows.change(promise=promise), openings, choice)
    follow = (preference <= race * best[:, None]) & (rows.right & (rows.stage >= 0))[:, None]
    sample, which = follow.scatter(1, choice[:, None], True).nonzero(as_tuple=True)
    chosen = [
        replace(opening, **{f.name: getattr(opening, f.name)[sample] for f in fields(opening)}) for opening in openings
    ]
    return _take_openings(rows.change(promise=promise).take(sample), chosen, which)


def _take_openings(rows: Rows, openings: list[Opening], which: Tensor) -> Rows:
    """Give each row the opening of that number."""

    def column(name: str) -> Tensor:
        values: Tensor = getattr(openings[0], name)
        for number, opening in enumerate(openings[1:], 1):
            this = which == number
            values = torch.where(this[:, None] if values.dim() == 2 else this, getattr(opening, name), values)
        return values

    return rows.change(
        rival=torch.where(rows.stage >= 0, column("rival"), rows.rival),
        pattern=column("pattern"),
        radius=column("radius"),
        slope=column("slope"),
        step=rows.step + 1,
    )


def estimate_pair_norms(network: Network, norm: Norm, box: Box, classes: int, like: Tensor) -> PairNorms:
    """Return typical dual norms for all pairs of classes; in L2 where the classes are many."""
    if classes > _MOST_CLASSES or classes * like.shape[1] > _LARGEST_JACOBIAN:
        return PairNorms(points=_watch_logits(network, box, like))
    probes = draw_smooth_images(network, box, _PROBES if classes <= _FEW_CLASSES else _PROBES_OF_MANY, like)
    probes.requires_grad_()
    logits = network.logits(probes).sum(0)
    # one forward for all: a class costs one backward of a few images
    rows = [take_gradient(logits[k], probes, again=k + 1 < classes) for k in range(classes)]
    jacobian = torch.stack(rows, 1)
    power = 1.0 if norm.name == "linf" and classes <= _EXACT_PAIRS else 2.0
    norms = torch.cdist(jacobian, jacobian, p=power).mean(0)
    return PairNorms(table=torch.where(norms.isfinite() & (norms > 0), norms, 1.0))


def _watch_logits(network: Network, box: Box, like: Tensor) -> Tensor:
    """Return how every logit changes along random directions (K, 64), from a few smooth random images."""
    probes = draw_smooth_images(network, box, _MOVED_PROBES, like)
    random = torch.Generator().manual_seed(1)
    moves = torch.randn(_MOVED_PROBES * _DIRECTIONS, like.shape[1], generator=random).to(like)
    moved = probes.repeat_interleave(_DIRECTIONS, 0) + _MOVE * (box.high - box.low) * moves
    change = network.judge(moved) - network.judge(probes).repeat_interleave(_DIRECTIONS, 0)
    return change.T.contiguous()


def draw_smooth_images(network: Network, box: Box, count: int, like: Tensor) -> Tensor:
    """Return rows of smooth noise: always the same, so that a margin does not depend on its neighbours."""
    random = torch.Generator().manual_seed(0)
    if len(network.shape) != 3:
        pixels = torch.rand(count, like.shape[1], generator=random)
    else:
        channels, height, width = network.shape
        coarse = torch.rand(count, channels, min(4, height), min(4, width), generator=random)
        pixels = network.to_rows(F.interpolate(coarse, size=(height, width), mode="bilinear"))
    return (box.low + (box.high - box.low) * pixels).to(like)
