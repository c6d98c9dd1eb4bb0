"""The scheduler: searches flow through stages in full batches; finished ones make room for fresh images."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from puma.margins.rows import Arrival, Queue, Rows

DONE, DROPPED = -1, -2


@dataclass(frozen=True)
class Stage:
    """One kind of step, and the passes through the model that it costs each row."""

    run: Callable[[Rows], Rows]
    forwards: int
    backwards: int


@dataclass(frozen=True)
class Method:
    """A search: how an image becomes rows, and the stages that rows pass through."""

    begin: Callable[[Arrival], Rows]
    begin_forwards: int
    begin_backwards: int
    stages: tuple[Stage, ...]


def run(
    method: Method,
    arrivals: Iterator[Arrival],
    batch_size: int,
    *,
    finished: Callable[[Rows], None],
    spent: Callable[[Tensor, int, int], None],
) -> None:
    """Drive every arrival to its end. No stage has much more than a batch waiting, however many arrive."""
    queues = [Queue() for _ in method.stages]
    more = True
    while more or any(queues):
        index = _next_stage(queues, batch_size, more)
        if index is None:
            arrival = next(arrivals, None)
            more = arrival is not None
            if arrival is not None:
                spent(arrival.owner, method.begin_forwards, method.begin_backwards)
                _route(method.begin(arrival), queues, finished)
            continue
        stage = method.stages[index]
        rows = queues[index].pop(batch_size)
        spent(rows.owner, stage.forwards, stage.backwards)
        _route(stage.run(rows), queues, finished)


def _next_stage(queues: list[Queue], batch_size: int, more: bool) -> int | None:
    """The last stage with a full batch; none when fresh images are needed; at the end the first with any."""
    full = [index for index, queue in enumerate(queues) if len(queue) >= batch_size]
    if full or more:
        return full[-1] if full else None
    return next(index for index, queue in enumerate(queues) if len(queue))


def _route(rows: Rows, queues: list[Queue], finished: Callable[[Rows], None]) -> None:
    kinds = torch.unique(rows.stage).tolist()  # the one host sync of a step
    for index in kinds:
        if index == DROPPED:
            continue
        chosen = rows if len(kinds) == 1 else rows.take(rows.stage == index)
        if index == DONE:
            finished(chosen)
        else:
            queues[index].push(chosen)
