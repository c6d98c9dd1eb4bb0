"""Processes that share a measurement, as started by ``torchrun``."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist


@dataclass(frozen=True)
class Ranks:
    """This process among ``count``."""

    rank: int
    count: int

    def wait(self) -> None:
        """Go on when all ranks are here."""
        if self.count > 1:
            dist.barrier()


@contextmanager
def ranks() -> Iterator[Ranks]:
    """Join the other ranks, or be alone; a group that exists already is used and left alone."""
    if dist.is_initialized():
        yield Ranks(dist.get_rank(), dist.get_world_size())
    elif int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # ranks wait for the slowest, which may have hours more to do
        dist.init_process_group("gloo", timeout=timedelta(days=30))
        try:
            yield Ranks(dist.get_rank(), dist.get_world_size())
        finally:
            dist.destroy_process_group()
    else:
        yield Ranks(0, 1)
