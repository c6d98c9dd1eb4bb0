"""What follows a search that ended too far away, or nowhere: other starts, and the way to an image of another class.

``add_restarts`` begins anew from random patterns where the crossing found is poor for what the first linearisation
promised. ``add_rescues`` is for samples that found no crossing at all, as happens where the gradient at the image says
little about the net beyond it: a straight way to an image of another class must cross, and steps from there shorten it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from puma.attacks import Norm
from puma.margins.search.engine import DONE, Rows, Status, put_rows
from puma.margins.search.line_search import Box
from puma.margins.search.network import Network, mask_label, pick_logit, take_gradient
from puma.margins.search.opening import draw_smooth_images

_NEARER = 0.9  # a restart begins inside the best crossing so far: only a nearer one is of use
# an image of a class is found by so many steps of this share of the pixel range: from anywhere to anywhere in the box
_CLASS_STARTS, _CLASS_STEPS, _CLASS_STEP = 8, 24, 0.1


FoundImages = dict[int, tuple[Tensor, Tensor]]  # class -> images, and what the model takes each for


class ClassImages:
    """For a class, images that the model takes for it, where steps from a few fixed starts find some.

    They are found when first asked for, and depend on model and class only: a margin does not depend on its neighbours.
    ``found`` are those of earlier calls, to which new ones are added.
    """

    def __init__(self, network: Network, norm: Norm, box: Box, classes: int, found: FoundImages) -> None:
        self.classes = classes
        self._network, self._norm, self._box = network, norm, box
        self._found = found

    def find_nearest(self, rows: Rows, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return for each row the way (n, d) to the nearest image found for a class, its length, and does it cross."""
        names = [int(name) for name in wanted]
        for name in set(names):
            if name not in self._found:
                self._found[name] = self._search(name, rows.origin)
        images, seen = (torch.stack([self._found[name][part] for name in names]) for part in (0, 1))
        ways = images - rows.origin[:, None]
        length = self._norm.length(ways.flatten(0, 1)).view(len(rows), -1)
        beyond = ((seen == rows.label[:, None]) != rows.right[:, None]) & (length > 0)
        best = length.where(beyond, torch.inf).argmin(1, keepdim=True)
        way = ways.gather(1, best[:, :, None].expand(-1, -1, ways.shape[2])).squeeze(1)
        return way, length.gather(1, best).squeeze(1), beyond.gather(1, best).squeeze(1)

    def _search(self, name: int, like: Tensor) -> tuple[Tensor, Tensor]:
        low, high = self._box.low, self._box.high
        points = draw_smooth_images(self._network, self._box, _CLASS_STARTS, like)
        points[0], points[1] = low, high  # also from black, which much of many images is, and from white
        label = torch.full((len(points),), name, device=like.device)
        best, images = points.new_full((len(points),), -torch.inf), points
        for _ in range(_CLASS_STEPS):
            points = points.detach().requires_grad_()
            logits = self._network.logits(points)
            lead = pick_logit(logits, label) - mask_label(logits, label).amax(1)
            slant = take_gradient(lead.sum(), points)
            images = torch.where((lead > best)[:, None], points.detach(), images)
            best = torch.maximum(best, lead.detach())
            points = (points.detach() + _CLASS_STEP * (high - low) * slant.sign()).clamp_(low, high)
        return images, self._network.judge(images).argmax(1)


@dataclass(frozen=True)
class RestartRule:
    """How often to begin anew, and for which samples: those that ended ``surprise`` times farther than promised."""

    count: int
    surprise: float
    stage: int


def add_restarts(
    look_once: Callable[[Rows], Rows],
    norm: Norm,
    box: Box,
    images: ClassImages,
    reach: float,
    pixels: int,
    config: RestartRule,
) -> Callable[[Rows], Rows]:
    """Extend a line search: keep the best crossing of all starts, and begin anew from another pattern if it is poor.

    The first other pattern leads to an image of the rival's class. The next ones are random but the same for all
    samples, so a margin does not depend on its neighbours.
    """
    random = torch.Generator().manual_seed(0)
    starts = norm.steepest(torch.randn(config.count, pixels, generator=random))

    def lead_to_images(rows: Rows, which: Tensor, start: Tensor) -> Tensor:
        """Put patterns towards an image of the rival's class, or of a wrong sample's label, where there is one."""
        some = rows.take(which)
        way, length, beyond = images.find_nearest(some, torch.where(some.right, some.rival, some.label))
        way = way / length.clamp_min(torch.finfo(length.dtype).tiny)[:, None]
        place = which.nonzero().squeeze(1)
        return start.index_copy(0, place, torch.where(beyond[:, None], way, start[place]))

    def look_again(rows: Rows) -> Rows:
        rows = look_once(rows)
        ended = rows.stage == DONE
        if not bool(ended.any()):
            return rows
        length = norm.length(box.ray(rows.origin, rows.pattern, rows.high.nan_to_num(posinf=0.0)) - rows.origin)
        better = ended & rows.high.isfinite() & (length < rows.kept_length)
        kept = torch.where(better[:, None], rows.pattern, rows.kept)
        kept_radius = torch.where(better, rows.high, rows.kept_radius)
        kept_length = torch.where(better, length, rows.kept_length)
        anew = ended & (kept_length > config.surprise * rows.promise) & (rows.restarts < config.count)
        over = ended & ~anew
        found = over & kept_length.isfinite()
        start = starts.to(rows.origin)[rows.restarts.long().clamp(max=config.count - 1)]
        first = anew & (rows.restarts == 0)
        if bool(first.any()):
            start = lead_to_images(rows, first, start)
        guess = torch.where(kept_length.isfinite(), _NEARER * kept_length, reach * (rows.restarts + 1) / config.count)
        return rows.change(
            kept=kept,
            kept_radius=kept_radius,
            kept_length=kept_length,
            stage=torch.where(anew, config.stage, rows.stage),
            status=torch.where(found, int(Status.CROSSED), rows.status),
            pattern=torch.where(anew[:, None], start, torch.where(found[:, None], kept, rows.pattern)),
            memory=torch.where(anew[:, None], -start, rows.memory) if rows.memory.shape[1] else rows.memory,
            radius=torch.where(anew, guess, rows.radius),
            high=torch.where(anew, torch.inf, torch.where(found, kept_radius, rows.high)),
            step=torch.where(anew, 0, rows.step),
            retries=torch.where(anew, 0, rows.retries),
            restarts=rows.restarts + anew.int(),
        )

    return look_again


def add_rescues(
    look_once: Callable[[Rows], Rows],
    norm: Norm,
    box: Box,
    images: ClassImages,
    *,
    count: int,
    step_stage: int,
    look_stage: int,
) -> Callable[[Rows], Rows]:
    """Extend a line search: a sample without a crossing looks along the way to an image of another class.

    That way ends beyond the boundary. From its crossing steps go on as ever, and the shorter of the two counts. A wrong
    sample needs an image of its label. A right one needs any that is not: its rival, and other classes after that.
    """

    def draw_way(rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """The pattern and length of the way, and whether its end lies beyond the boundary."""
        other = (rows.target + (rows.rescue - 1) // 2) % images.classes
        way, length, beyond = images.find_nearest(rows, torch.where(rows.right, other, rows.label))
        return way / length.clamp_min(torch.finfo(length.dtype).tiny)[:, None], length, beyond

    def send_straight(rows: Rows) -> Rows:
        """Set out on the way; where all attempts are spent, the search stays ended."""
        none, zero = torch.zeros_like(rows.looks), torch.zeros_like(rows.low)
        rows = rows.change(target=torch.where(rows.rescue == 0, rows.rival, rows.target))
        for _ in range(count):
            waiting = (rows.stage == DONE) & (rows.rescue < 2 * count - 1)
            if not bool(waiting.any()):
                break
            rows = rows.change(rescue=torch.where(waiting, rows.rescue + 1 + rows.rescue % 2, rows.rescue))
            pattern, length, beyond = draw_way(rows)
            go = waiting & beyond
            rows = rows.change(
                stage=torch.where(go, look_stage, rows.stage),
                pattern=torch.where(go[:, None], pattern, rows.pattern),
                radius=torch.where(go, length, rows.radius),
                slope=torch.where(go, rows.scale / length, rows.slope),
            )
        return rows.change(looks=none, retries=none, low=zero, low_gap=rows.scale, high=zero + torch.inf)

    def step_from_there(rows: Rows) -> Rows:
        """Remember the crossing of the way, and take steps from it."""
        none = torch.zeros_like(rows.step)
        return rows.change(
            rescue=rows.rescue + 1,
            kept_radius=rows.high,
            kept_length=norm.length(box.ray(rows.origin, rows.pattern, rows.high) - rows.origin),
            stage=torch.full_like(rows.stage, step_stage),
            memory=-rows.pattern if rows.memory.shape[1] else rows.memory,
            radius=rows.high,
            high=torch.full_like(rows.high, torch.inf),
            step=none,
            retries=none,
        )

    def take_shorter(rows: Rows) -> Rows:
        """End with the shorter crossing: of the steps, or of the way."""
        length = norm.length(box.ray(rows.origin, rows.pattern, rows.high.nan_to_num(posinf=0.0)) - rows.origin)
        worse = ~((rows.status == Status.CROSSED) & (length <= rows.kept_length))
        pattern, _, _ = draw_way(rows)
        return rows.change(
            status=torch.full_like(rows.status, Status.CROSSED),
            pattern=torch.where(worse[:, None], pattern, rows.pattern),
            high=torch.where(worse, rows.kept_radius, rows.high),
        )

    def look_and_rescue(rows: Rows) -> Rows:
        rows = look_once(rows)
        ended = rows.stage == DONE
        on_way, refined = rows.rescue % 2 == 1, (rows.rescue > 0) & (rows.rescue % 2 == 0)
        crossed = rows.status == Status.CROSSED
        lost = ended & ~refined & ((rows.status == Status.NOT_CROSSED) | (rows.status == Status.OUT_OF_STEPS))
        for which, change in (
            (lost, send_straight),
            (ended & on_way & crossed, step_from_there),
            (ended & refined, take_shorter),
        ):
            if bool(which.any()):
                rows = put_rows(rows, which.nonzero().squeeze(1), change(rows.take(which)))
        return rows

    return look_and_rescue
