"""``fast``: Algorithm 1 of the paper, corrected. Its cost does not depend on the number of classes.

BIM away from the label (towards it, for a wrong sample) until the prediction flips, then a search on the segment
back to the image. Three things differ from the print: the segment is searched by the fraction of its length, a wrong
sample walks until it reaches its *label*, and pixels stay inside the box.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from puma.attacks.norms import Norm
from puma.margins.geometry import Box
from puma.margins.network import Network, gradient, true_gap
from puma.margins.rows import Rows
from puma.margins.stream import Method
from puma.margins.walk import walking


@dataclass(frozen=True)
class Fast:
    """``step_size`` (alpha) in units of the largest L_inf distance; ``steps`` is i_max of the paper.

    ``loss`` drives the walk: the logit gap to the strongest rival, or cross-entropy as printed, whose gradient
    vanishes for confident samples.
    """

    step_size: float = 2 / 255
    steps: int = 100
    loss: Literal["gap", "ce"] = "gap"
    tolerance: float = 1e-3


FAST = Fast()
FAST_CE = Fast(loss="ce")


def fast(network: Network, norm: Norm, box: Box, cap: float | None, config: Fast) -> Method:
    """Assemble the search."""
    # in L2 a step is as long as changing a quarter of the pixels by the L_inf step
    share = 1.0 if norm.name == "linf" else 0.5
    length = config.step_size * share * norm.diameter(box.high - box.low, network.pixels)

    def move(rows: Rows, points: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        if config.loss == "ce":
            risk = F.cross_entropy(logits, rows.label, reduction="none")
            falling = torch.where(rows.right, -risk, risk)
        else:
            falling, _ = true_gap(logits, rows.label, rows.right)
        slant = gradient(falling.sum(), points)
        return -length * norm.steepest(slant), norm.dual(slant)

    return walking(
        network, norm, box, move, backwards=1, steps=config.steps, stretch=1.0, tolerance=config.tolerance, cap=cap
    )
