"""The scheduler: full batches, bounded queues, samples in and out once each."""

from collections import Counter

import torch
from torch import Tensor, nn

from margins.problems import net_images, smooth_net
from puma.margins import measure_margins
from puma.margins.search.engine import (
    DONE,
    Arrival,
    RowQueue,
    Rows,
    SearchMethod,
    Stage,
    count_whole_owners,
    open_rows,
    run_search,
)


def rows_of(owner: Tensor) -> Rows:
    count = len(owner)
    arrival = Arrival(owner, torch.zeros(count, 2), torch.zeros(count, dtype=torch.int64))
    return open_rows(arrival, arrival.label, torch.ones(count), arrival.label)


def test_batches_are_full_until_the_end_and_everyone_finishes_once() -> None:
    sizes: list[int] = []
    finished: list[int] = []
    waiting = 0

    def step(rows: Rows) -> Rows:
        sizes.append(len(rows))
        taken = rows.step + 1
        needed = rows.owner % 5 + 1  # some leave early, some stay long
        return rows.change(step=taken, stage=torch.where(taken >= needed, DONE, 0))

    def fresh() -> object:
        nonlocal waiting
        for start in range(0, 1000, 16):
            waiting = max(waiting, start - len(finished))
            yield Arrival(
                torch.arange(start, min(start + 16, 1000)),
                torch.zeros(min(16, 1000 - start), 2),
                torch.zeros(min(16, 1000 - start), dtype=torch.int64),
            )

    method = SearchMethod(
        begin=lambda arrival: rows_of(arrival.owner), begin_forwards=0, begin_backwards=0, stages=(Stage(step, 1, 1),)
    )
    spent: Counter[int] = Counter()
    run_search(
        method,
        fresh(),  # type: ignore[arg-type]
        16,
        finished=lambda rows: finished.extend(rows.owner.tolist()),
        spent=lambda owner, forwards, _: spent.update(dict.fromkeys(owner.tolist(), forwards)),
    )
    assert sorted(finished) == list(range(1000))
    assert all(spent[one] == one % 5 + 1 for one in range(1000))
    assert sum(size == 16 for size in sizes) >= len(sizes) - 6
    assert waiting <= 48


def test_owners_are_not_parted() -> None:
    owner = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3])
    assert [count_whole_owners(owner, count) for count in (1, 2, 3, 4, 5, 6, 7)] == [2, 2, 2, 2, 5, 6, 6]
    queue = RowQueue()
    queue.push(rows_of(owner[:5]))
    queue.push(rows_of(owner[5:]))
    assert queue.pop(4).owner.tolist() == [0, 0]
    assert queue.pop(4).owner.tolist() == [1, 1, 1, 2]
    assert len(queue) == 2


def test_the_model_sees_full_batches() -> None:
    sizes: Counter[int] = Counter()

    class Recorded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = smooth_net()

        def __deepcopy__(self, memo: object) -> nn.Module:
            raise TypeError("not this one")

        def forward(self, images: Tensor) -> Tensor:
            sizes[len(images)] += 1
            logits: Tensor = self.net(images)
            return logits

    images = net_images(320)
    measure_margins(Recorded(), images, torch.arange(320) % 5, batch_size=32)
    assert sizes[32] > 0.6 * sizes.total()
    assert max(sizes) <= 40  # the probes that rank rivals go through in one call
