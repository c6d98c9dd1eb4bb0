"""The state of searches under way: one row each, moved between stages in full batches."""

from collections import deque
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from puma.margins.status import Status


@dataclass(frozen=True)
class Arrival:
    """Fresh images as rows of pixels, their labels, and their positions among those measured."""

    owner: Tensor
    origin: Tensor
    label: Tensor


@dataclass(frozen=True)
class Rows:
    """Searches under way. ``stage`` says what each needs next; the rest is what the stages read and write."""

    owner: Tensor  # position of the sample among those measured
    origin: Tensor  # (n, d) the image
    label: Tensor
    prediction: Tensor
    right: Tensor  # is the prediction the label
    scale: Tensor  # the gap at the origin
    rival: Tensor
    stage: Tensor
    status: Tensor
    step: Tensor  # gradients taken so far
    retries: Tensor
    pattern: Tensor  # (n, d) direction of the search
    memory: Tensor  # (n, d), or (n, 0) for a search without momentum: the running sum of gradients
    radius: Tensor  # where on the ray to look next
    slope: Tensor  # how fast the gap is expected to fall there
    looks: Tensor  # forwards spent on the finish
    first_look: Tensor  # radius at which the finish began
    low: Tensor  # bracket: the largest radius seen before the boundary ...
    low_gap: Tensor
    high: Tensor  # ... and the smallest seen beyond it (infinite: none yet)
    high_gap: Tensor
    promise: Tensor  # distance by the first linearisation
    restarts: Tensor
    kept: Tensor  # (n, d), or (n, 0) for a search without restarts: pattern of the best crossing so far ...
    kept_radius: Tensor  # ... its radius
    kept_length: Tensor  # ... and its distance, infinite if there is none

    def __len__(self) -> int:
        return len(self.owner)

    def take(self, index: Tensor) -> "Rows":
        """Return the rows at ``index`` (positions or a mask)."""
        return Rows(**{field.name: getattr(self, field.name)[index] for field in fields(self)})

    def split(self, count: int) -> tuple["Rows", "Rows"]:
        """Return the first ``count`` rows and the others, without copying."""
        first = {field.name: getattr(self, field.name)[:count] for field in fields(self)}
        rest = {field.name: getattr(self, field.name)[count:] for field in fields(self)}
        return Rows(**first), Rows(**rest)

    def change(self, **columns: Any) -> "Rows":
        """Return rows with some columns replaced."""
        return replace(self, **columns)


def join(parts: list[Rows]) -> Rows:
    """Stack rows."""
    if len(parts) == 1:
        return parts[0]
    return Rows(**{f.name: torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Rows)})


def new_rows(arrival: Arrival, prediction: Tensor, scale: Tensor, rival: Tensor) -> Rows:
    """Open one search per arrival; its direction is still to be found."""
    zero = torch.zeros_like(scale)
    none = torch.zeros_like(arrival.label, dtype=torch.int32)
    return Rows(
        owner=arrival.owner,
        origin=arrival.origin,
        label=arrival.label,
        prediction=prediction,
        right=prediction == arrival.label,
        scale=scale,
        rival=rival,
        stage=none,
        status=none + Status.NOT_CROSSED,
        step=none,
        retries=none,
        pattern=arrival.origin[:, :0],
        memory=arrival.origin[:, :0],
        radius=zero,
        slope=zero,
        looks=none,
        first_look=zero,
        low=zero,
        low_gap=scale,
        high=zero + torch.inf,
        high_gap=zero,
        promise=zero,
        restarts=none,
        kept=arrival.origin[:, :0],
        kept_radius=zero,
        kept_length=zero + torch.inf,
    )


class Queue:
    """Rows that wait for one stage, first in, first out. Rows of one owner are not parted."""

    def __init__(self) -> None:
        self._parts: deque[Rows] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, rows: Rows) -> None:
        """Add rows at the end."""
        if len(rows):
            self._parts.append(rows)
            self._count += len(rows)

    def pop(self, count: int) -> Rows:
        """Remove up to ``count`` rows from the front, stopping short of an owner that does not fit whole."""
        parts: list[Rows] = []
        gathered = 0
        while self._parts and gathered < count:
            parts.append(self._parts.popleft())
            gathered += len(parts[-1])
        rows = join(parts)
        if gathered > count:
            rows, rest = rows.split(whole_owners(rows.owner, count))
            self._parts.appendleft(rest)
        self._count -= len(rows)
        return rows


def whole_owners(owner: Tensor, count: int) -> int:
    """Return the largest cut, at most ``count``, that lies between two owners; one too large is cut."""
    ends = (owner[1 : count + 1] != owner[:count]).nonzero().squeeze(1)
    return int(ends[-1]) + 1 if len(ends) else count
