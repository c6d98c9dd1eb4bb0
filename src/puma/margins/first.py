"""The first gradient: one forward, a backward for each of a few rivals, and the choice between them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from puma.attacks.norms import Norm
from puma.margins.assess import assess, close
from puma.margins.geometry import Box, newton_on_ray
from puma.margins.network import Network, gradient, pick
from puma.margins.rows import Arrival, Rows
from puma.margins.status import Status

_NEWTON_STEPS = 2


@dataclass(frozen=True)
class Opening:
    """The direction against one rival per sample, where its linearised gap closes, and how it compares."""

    rival: Tensor
    pattern: Tensor
    radius: Tensor
    slope: Tensor
    steepness: Tensor
    preference: Tensor  # smaller is better


def first_gradients(
    arrival: Arrival, network: Network, norm: Norm, box: Box, ranks: Tensor, *, candidates: int, race: float
) -> Rows:
    """Open a row for the best rival of every sample, and for those within the factor ``race`` of it."""
    points = arrival.origin.detach().requires_grad_()
    logits = network.logits(points)
    rows = assess(arrival, logits, network)
    rivals = order_rivals(rows, logits.detach(), ranks, candidates)
    openings = [
        open_against(rivals[:, i], rows, points, logits, norm, box, again=i + 1 < candidates) for i in range(candidates)
    ]
    steepness = torch.stack([opening.steepness for opening in openings])
    rows = close(rows, (rows.stage >= 0) & (steepness == 0).all(0), Status.ZERO_GRADIENT)
    rows = close(rows, (rows.stage >= 0) & ~(steepness > 0).any(0), Status.NON_FINITE)
    return _choose(rows, openings, race)


def order_rivals(rows: Rows, logits: Tensor, ranks: Tensor, candidates: int) -> Tensor:
    """Return the rivals most worth a gradient: nearest first for a right sample, farthest ahead for a wrong one.

    A right sample needs one rival to overtake. A wrong one must overtake every rival ahead of it, and the farthest
    of these half-spaces says most about the distance. In ``(f_y - f_k) / norm`` both come lowest.
    """
    distance = (pick(logits, rows.label)[:, None] - logits) / ranks[rows.label]
    distance = distance.scatter(1, rows.label[:, None], torch.inf)
    return distance.topk(candidates, 1, largest=False).indices


def open_against(
    rival: Tensor, rows: Rows, points: Tensor, logits: Tensor, norm: Norm, box: Box, *, again: bool
) -> Opening:
    """Linearise the gap to one rival per sample and solve for the radius inside the box."""
    lead = pick(logits, rows.label) - pick(logits, rival)
    gap = torch.where(rows.right, lead, -lead)
    slant = gradient(gap.sum(), points, again=again)
    gap, steepness, pattern = gap.detach(), norm.dual(slant), -norm.steepest(slant)
    radius = gap / steepness  # the first Newton step, from the image
    for _ in range(_NEWTON_STEPS):
        radius, slope = newton_on_ray(box, rows.origin, pattern, radius, rows.origin, gap, slant)
    # the box may stop the ray short of the radius, most of all in L2: what counts is the distance
    distance = norm.length(box.ray(rows.origin, pattern, radius.nan_to_num()) - rows.origin)
    distance = torch.where(radius.isfinite(), distance, torch.inf)
    preference = torch.where(rows.right, distance, torch.where(gap > 0, -distance, torch.inf))
    unboxed = gap / steepness
    return Opening(
        rival=rival,
        pattern=pattern,
        radius=torch.where(radius.isfinite(), radius, unboxed),
        slope=slope,
        steepness=steepness,
        preference=torch.where(steepness > 0, preference, torch.inf),
    )


def _choose(rows: Rows, openings: list[Opening], race: float) -> Rows:
    preference = torch.stack([opening.preference for opening in openings], 1)
    best, choice = preference.min(1)
    follow = (preference <= race * best[:, None]) & (rows.right & (rows.stage >= 0) & (race > 1))[:, None]
    follow = follow.scatter(1, choice[:, None], True)
    sample, which = follow.nonzero(as_tuple=True)

    def column(name: str) -> Tensor:
        return torch.stack([getattr(opening, name) for opening in openings], 1)[sample, which]

    return rows.take(sample).change(
        rival=torch.where(rows.stage[sample] >= 0, column("rival"), rows.rival[sample]),
        pattern=column("pattern"),
        radius=column("radius"),
        slope=column("slope"),
        step=rows.step[sample] + 1,
        promise=best.abs()[sample],
    )
