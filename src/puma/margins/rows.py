"""The state of searches under way: one row each, moved between stages in full batches."""

from collections import deque
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """Searches under way. ``stage`` says what each needs next; the rest is what the stages read and write."""

    owner: Tensor  # position of the sample among those measured
    origin: Tensor  # (n, d) the image
    label: Tensor
    right: Tensor  # is the prediction at the origin the label
    rival: Tensor
    stage: Tensor
    step: Tensor  # gradients taken so far
    pattern: Tensor  # (n, d) direction of the search
    memory: Tensor  # (n, d) or (n, 0): running mean of gradients
    radius: Tensor  # where on the ray to look next
    slope: Tensor  # how fast the gap is expected to fall there
    scale: Tensor  # the gap at the origin
    low: Tensor  # bracket: largest radius seen before the boundary ...
    low_gap: Tensor
    high: Tensor  # ... and smallest seen beyond it (infinite: none yet)
    high_gap: Tensor
    looks: Tensor  # forwards spent on the finish
    retries: Tensor
    status: Tensor

    def __len__(self) -> int:
        return len(self.owner)

    def take(self, index: Tensor) -> "Rows":
        """Return the rows at ``index`` (positions or a mask)."""
        return Rows(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def split(self, count: int) -> tuple["Rows", "Rows"]:
        """Return the first ``count`` rows and the others, without copying."""
        first = {f.name: getattr(self, f.name)[:count] for f in fields(self)}
        rest = {f.name: getattr(self, f.name)[count:] for f in fields(self)}
        return Rows(**first), Rows(**rest)

    def change(self, **values: Any) -> "Rows":
        """Return rows with some columns replaced."""
        return replace(self, **values)


def join(parts: list[Rows]) -> Rows:
    """Stack rows."""
    if len(parts) == 1:
        return parts[0]
    return Rows(**{f.name: torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Rows)})


class Queue:
    """Rows that wait for one stage, first in, first out. Rows of one owner are never parted."""

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
            part = self._parts.popleft()
            gathered += len(part)
            parts.append(part)
        rows = join(parts)
        if gathered > count:
            rows, rest = rows.split(_whole_owners(rows.owner, count))
            self._parts.appendleft(rest)
        self._count -= len(rows)
        return rows


def _whole_owners(owner: Tensor, count: int) -> int:
    """Return the largest cut, at most ``count``, between two owners; an owner larger than that is cut."""
    begins = (owner[1 : count + 1] != owner[:count]).nonzero().squeeze(1)
    return int(begins[-1]) + 1 if len(begins) else count
