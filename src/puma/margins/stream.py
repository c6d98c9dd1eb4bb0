"""The scheduler: searches flow through stages in full batches; finished ones make room for fresh images."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from puma.margins.rows import Queue, Rows

DONE = -1
DROPPED = -2


@dataclass(frozen=True)
class Arrival:
    """Fresh images: rows of pixels, labels, and their positions among those measured."""

    owner: Tensor
    origin: Tensor
    label: Tensor


@dataclass(frozen=True)
class Stage:
    """One kind of step, and what it costs each row."""

    run: Callable[[Rows], Rows]
    forwards: int
    backwards: int


@dataclass(frozen=True)
class Method:
    """A search: how an image becomes rows, and the stages that rows pass through."""

    begin: Callable[[Arrival], Rows]
    stages: tuple[Stage, ...]
    begin_forwards: int
    begin_backwards: int


def run(
    method: Method,
    arrivals: Iterator[Arrival],
    batch_size: int,
    finished: Callable[[Rows], None],
    spent: Callable[[Tensor, int, int], None],
) -> None:
    """Drive every arrival to its end. At most about two batches wait for each stage, however many arrive."""
    queues = [Queue() for _ in method.stages]

    def route(rows: Rows) -> None:
        for index in rows.stage.unique().tolist():
            mask = rows.stage == index
            chosen = rows if bool(mask.all()) else rows.take(mask)
            if index == DROPPED:
                continue
            if index == DONE:
                finished(chosen)
            else:
                queues[index].push(chosen)

    more = True
    while more or any(len(queue) for queue in queues):
        full = [i for i, queue in enumerate(queues) if len(queue) >= batch_size]
        if full:
            index = full[-1]
        elif more:
            arrival = next(arrivals, None)
            more = arrival is not None
            if arrival is not None:
                spent(arrival.owner, method.begin_forwards, method.begin_backwards)
                route(method.begin(arrival))
            continue
        else:
            index = next(i for i, queue in enumerate(queues) if len(queue))
        rows = queues[index].pop(batch_size)
        stage = method.stages[index]
        spent(rows.owner, stage.forwards, stage.backwards)
        route(stage.run(rows))


def arrive(origin: Tensor, label: Tensor, batch_size: int) -> Iterator[Arrival]:
    """Cut rows that are in memory into arrivals."""
    for start in range(0, len(origin), batch_size):
        owner = torch.arange(start, min(start + batch_size, len(origin)), device=origin.device)
        yield Arrival(owner, origin[owner], label[owner])
