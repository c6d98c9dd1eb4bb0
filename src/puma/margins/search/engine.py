"""The engine: searches under way are rows, which flow through stages in full batches.

Finished searches leave and make room for fresh images, so that no batch runs half empty.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

DONE, DROPPED = -1, -2  # stages of rows that need nothing any more: to be written down, or not


class Status(IntEnum):
    """How the search for one sample ended. Only CROSSED comes with a measured margin; PREDICTED was not searched.

    NOT_CROSSED: the search came to the end of the pixel range on this side of the boundary. OUT_OF_STEPS: it ended on
    this side before that, as its steps were spent.

    Examples:
        >>> [status.name for status in puma.Status]
        ['CROSSED', 'NOT_CROSSED', 'ZERO_GRADIENT', 'NON_FINITE', 'CAPPED', 'PREDICTED', 'OUT_OF_STEPS']
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
        >>> margins = puma.measure_margins(model, torch.rand(2, 1, 4, 4), [0, 1])
        >>> margins.status == puma.Status.CROSSED  # (n,); the same as margins.crossed
        tensor([True, True])
    """

    CROSSED = 0
    NOT_CROSSED = 1
    ZERO_GRADIENT = 2
    NON_FINITE = 3
    CAPPED = 4
    PREDICTED = 5
    OUT_OF_STEPS = 6


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
    looks: Tensor  # forwards spent on the line search
    first_look: Tensor  # radius at which the line search began
    low: Tensor  # bracket: the largest radius seen before the boundary ...
    low_gap: Tensor
    high: Tensor  # ... and the smallest seen beyond it (infinite: none yet)
    high_gap: Tensor
    promise: Tensor  # distance by the first linearisation
    restarts: Tensor
    kept: Tensor  # (n, d), or (n, 0) for a search without restarts: pattern of the best crossing so far ...
    kept_radius: Tensor  # ... its radius
    kept_length: Tensor  # ... and its distance, infinite if there is none
    rescue: Tensor  # see restarts.py: 0 none, odd on the straight way to an image of another class, even from there on
    target: Tensor  # class of that image

    def __len__(self) -> int:
        return len(self.owner)

    def take(self, index: Tensor) -> "Rows":
        """Return the rows at ``index`` (positions or a mask)."""
        index = index.nonzero().squeeze(1) if index.dtype == torch.bool else index
        return _make_rows({name: column.index_select(0, index) for name, column in vars(self).items()})

    def split(self, count: int) -> tuple["Rows", "Rows"]:
        """Return the first ``count`` rows and the others, without copying."""
        first = {name: column[:count] for name, column in vars(self).items()}
        rest = {name: column[count:] for name, column in vars(self).items()}
        return _make_rows(first), _make_rows(rest)

    def change(self, **columns: Any) -> "Rows":
        """Return rows with some columns replaced."""
        assert columns.keys() <= vars(self).keys(), columns.keys()
        return _make_rows({**vars(self), **columns})


def _make_rows(columns: dict[str, Tensor]) -> Rows:
    """Return rows of all columns; a frozen dataclass of so many takes as long to make as a step's arithmetic."""
    rows = object.__new__(Rows)
    vars(rows).update(columns)
    return rows


def join_rows(parts: list[Rows]) -> Rows:
    """Stack rows."""
    if len(parts) == 1:
        return parts[0]
    return _make_rows({name: torch.cat([vars(part)[name] for part in parts]) for name in vars(parts[0])})


def put_rows(rows: Rows, index: Tensor, some: Rows) -> Rows:
    """Return rows with those at ``index`` replaced."""
    return _make_rows({name: column.index_copy(0, index, vars(some)[name]) for name, column in vars(rows).items()})


def open_rows(arrival: Arrival, prediction: Tensor, scale: Tensor, rival: Tensor) -> Rows:
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
        rescue=none,
        target=rival,
    )


def end_searches(rows: Rows, which: Tensor, status: Status) -> Rows:
    """End some of the searches with a status."""
    return rows.change(stage=torch.where(which, DONE, rows.stage), status=torch.where(which, int(status), rows.status))


class RowQueue:
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
        rows = join_rows(parts)
        if gathered > count:
            rows, rest = rows.split(count_whole_owners(rows.owner, count))
            self._parts.appendleft(rest)
        self._count -= len(rows)
        return rows


def count_whole_owners(owner: Tensor, count: int) -> int:
    """Return the largest cut, at most ``count``, that lies between two owners; the first owner is never cut."""
    ends = (owner[1 : count + 1] != owner[:count]).nonzero().squeeze(1)
    return int(ends[-1]) + 1 if len(ends) else int((owner == owner[0]).long().cumprod(0).sum())


@dataclass(frozen=True)
class Stage:
    """One kind of step, and the passes through the model that it costs each row."""

    run: Callable[[Rows], Rows]
    forwards: int
    backwards: int


@dataclass(frozen=True)
class SearchMethod:
    """A search: how an image becomes rows, and the stages that rows pass through."""

    begin: Callable[[Arrival], Rows]
    begin_forwards: int
    begin_backwards: int
    stages: tuple[Stage, ...]


def run_search(
    method: SearchMethod,
    arrivals: Iterator[Arrival],
    batch_size: int,
    *,
    finished: Callable[[Rows], None],
    spent: Callable[[Tensor, int, int], None],
) -> None:
    """Drive every arrival to its end. No stage has much more than a batch waiting, however many arrive."""
    queues, done = [RowQueue() for _ in method.stages], RowQueue()
    more = True
    while more or any(queues):
        if len(done) >= batch_size:
            finished(done.pop(len(done)))
        index = _next_stage(queues, batch_size, more)
        if index is None:
            arrival = next(arrivals, None)
            more = arrival is not None
            if arrival is not None:
                spent(arrival.owner, method.begin_forwards, method.begin_backwards)
                _route_rows(method.begin(arrival), queues, done)
            continue
        stage = method.stages[index]
        rows = queues[index].pop(batch_size)
        spent(rows.owner, stage.forwards, stage.backwards)
        _route_rows(stage.run(rows), queues, done)
    if len(done):
        finished(done.pop(len(done)))


def _next_stage(queues: list[RowQueue], batch_size: int, more: bool) -> int | None:
    """The last stage with a full batch; none when fresh images are needed; at the end the first with any."""
    full = [index for index, queue in enumerate(queues) if len(queue) >= batch_size]
    if full or more:
        return full[-1] if full else None
    return next(index for index, queue in enumerate(queues) if len(queue))


def _route_rows(rows: Rows, queues: list[RowQueue], done: RowQueue) -> None:
    kinds = torch.unique(rows.stage).tolist()  # the one host sync of a step
    for index in kinds:
        if index == DROPPED:
            continue
        chosen = rows if len(kinds) == 1 else rows.take(rows.stage == index)
        (done if index == DONE else queues[index]).push(chosen)
