"""Restarts: where a search ended far from what its first linearisation promised, others may end nearer."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from puma.attacks.norms import Norm
from puma.margins.geometry import Box
from puma.margins.rows import Rows
from puma.margins.status import Status
from puma.margins.stream import DONE


@dataclass(frozen=True)
class Restart:
    """How often to begin anew, and for which samples: those that ended ``surprise`` times farther than promised."""

    count: int
    surprise: float
    stage: int


def restarting(
    look: Callable[[Rows], Rows], norm: Norm, box: Box, reach: float, pixels: int, config: Restart
) -> Callable[[Rows], Rows]:
    """Extend a finish: keep the best crossing of all starts, and begin anew from another pattern if it is poor.

    The starting patterns are random but the same for all samples, so a margin does not depend on its neighbours.
    """
    random = torch.Generator().manual_seed(0)
    starts = norm.steepest(torch.randn(config.count, pixels, generator=random))

    def look_again(rows: Rows) -> Rows:
        rows = look(rows)
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
        guess = torch.where(kept_length.isfinite(), 0.9 * kept_length, reach * (rows.restarts + 1) / config.count)
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
