"""``deepfool-classic``: textbook DeepFool with a final search on the segment, as the paper measures margins.

At every step the gap to each of the strongest rivals is linearised, the nearest one is stepped to, and the steps add
up. It is anchored on the label: a wrong sample steps towards overtaking the rival farthest ahead, until it has
overtaken all. The cost grows with the number of candidates.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from puma.attacks.norms import Norm
from puma.margins.geometry import Box
from puma.margins.network import Network, gradient, pick, without
from puma.margins.rows import Rows
from puma.margins.stream import Method
from puma.margins.walk import walking


@dataclass(frozen=True)
class Classic:
    """``candidates`` strongest rivals are chosen anew at every step.

    ``overshoot`` stretches the sum of the steps, and each step aims beyond the boundary by this share of the first gap:
    without it, steps shrink before they cross.
    """

    candidates: int = 9
    steps: int = 50
    overshoot: float = 0.02
    tolerance: float = 1e-3


CLASSIC = Classic()


def classic(network: Network, norm: Norm, box: Box, classes: int, cap: float | None, config: Classic) -> Method:
    """Assemble the search."""
    candidates = min(config.candidates, classes - 1)

    def move(rows: Rows, points: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        rivals = without(logits.detach(), rows.label).topk(candidates, 1).indices
        best = torch.full_like(rows.scale, torch.inf)
        steepest = torch.zeros_like(rows.scale)
        change = torch.zeros_like(rows.origin)
        for index in range(candidates):
            lead = pick(logits, rows.label) - pick(logits, rivals[:, index])
            gap = torch.where(rows.right, lead, -lead)
            slant = gradient(gap.sum(), points, again=index + 1 < candidates)
            steepness = norm.dual(slant)
            distance = (gap.detach() + config.overshoot * rows.scale) / steepness
            # nearest for a right sample; for a wrong one the farthest, as all have to be overtaken
            preference = torch.where(rows.right, distance, -distance).where(steepness > 0, torch.inf)
            better = preference < best
            best = torch.where(better, preference, best)
            change = torch.where(better[:, None], -norm.steepest(slant) * distance[:, None], change)
            steepest = torch.maximum(steepest, steepness)
        return change, steepest

    return walking(
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
