"""How strongly each sample is attacked: from a margin to a signed radius. Tensors in, tensors out."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from puma.attacks import check_radius
from puma.errors import PumaError
from puma.planning.prune import Column, to_column

StrengthName = Literal["constant", "margin", "weak-if-difficult", "margin-if-difficult"]


@dataclass(frozen=True)
class StrengthRule:
    """How strongly to attack what is kept.

    Attributes:
        rule: ``constant`` eps; ``margin`` less gap, clipped to [-eps, eps]; ``weak-if-difficult``: weak_eps for
            samples that are always misclassified, eps for the others; ``margin-if-difficult``: the margin rule for
            those, eps for the others.
        eps: the largest strength.
        gap: subtracted from the margin.
        weak_eps: see ``rule``.
        difficult_from: a sample whose CD is this or more is always misclassified.
        floor: no strength by margin is lower than so many eps; -1 is the paper's rule, 0 helps no sample towards its
            label.
    """

    rule: StrengthName = "margin"
    eps: float = 8 / 255
    gap: float = 0.0
    weak_eps: float = 1 / 255
    difficult_from: float = 1.0
    floor: float = -1.0


def adaptive_strength(
    margin: Column, eps: float, *, gap: float = 0.0, norm: str = "linf", floor: float = -1.0
) -> Tensor:
    """Return each sample's training radius: margin less gap, clipped to [-eps, eps] (Eq. 2, with a gap Eq. 3).

    With a ``floor`` it is clipped to [floor * eps, eps] instead. An ``eps`` above 1, all of the pixel range, is refused
    for margins of ``norm`` linf.

    Examples:
        >>> puma.adaptive_strength(torch.tensor([0.5, 0.01, -0.02, -0.5]), 8 / 255)
        tensor([ 0.0314,  0.0100, -0.0200, -0.0314])
    """
    margin = to_column(margin, "margin")
    if not (math.isfinite(eps) and eps > 0):
        raise PumaError(f"eps must be positive, got {eps}.")
    check_radius(eps, norm=norm)
    if not (math.isfinite(gap) and gap >= 0):
        raise PumaError(f"gap must not be negative, got {gap}.")
    if bool(margin.isnan().any()):
        raise PumaError(f"margin must not be NaN, {int(margin.isnan().sum())} of {len(margin)} are.")
    if not -1 <= floor <= 1:
        raise PumaError(f"floor must lie in [-1, 1], in multiples of eps, got {floor}.")
    return (margin - gap).clamp(floor * eps, eps)


def assign_strengths(
    count: int, strength: StrengthRule, *, margin: Tensor | None, difficulty: Tensor | None, norm: str = "linf"
) -> Tensor:
    """Return the strength of every sample (n,)."""
    constant = torch.full((count,), strength.eps)
    if strength.rule == "constant":
        return constant
    if margin is None and strength.rule in ("margin", "margin-if-difficult"):
        raise PumaError(f"strength rule {strength.rule!r} needs margins; give --margins FILE.")
    fitted = constant
    if margin is not None:
        fitted = adaptive_strength(margin, strength.eps, gap=strength.gap, norm=norm, floor=strength.floor)
    if strength.rule == "margin":
        return fitted
    if difficulty is None:
        raise PumaError(f"strength rule {strength.rule!r} needs classification difficulty; give --difficulty FILE.")
    easier = torch.full((count,), strength.weak_eps) if strength.rule == "weak-if-difficult" else fitted
    return torch.where(difficulty >= strength.difficult_from, easier, constant)
