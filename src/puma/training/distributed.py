"""Several processes, started by torchrun, that train one model; one process is the case of one rank."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from puma.errors import PumaError


@dataclass(frozen=True)
class Ranks:
    """Which process this is, of how many, and the device it computes on."""

    rank: int
    count: int
    device: torch.device

    @property
    def writes(self) -> bool:
        """Whether this is the one process that writes files and talks."""
        return self.rank == 0

    def mean(self, value: float) -> float:
        """Return the mean of every process's value."""
        if self.count == 1:
            return value
        total = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return float(total) / self.count

    def barrier(self) -> None:
        """Wait until every process is here."""
        if self.count > 1:
            dist.barrier()


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """Join the processes torchrun started, if any, and leave them at the end."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    place = checked_device(device, int(os.environ.get("LOCAL_RANK", "0")) if count > 1 else None)
    if count == 1:
        yield Ranks(0, 1, place)
        return
    backend = "nccl" if place.type == "cuda" else "gloo"
    if int(os.environ.get("LOCAL_WORLD_SIZE", "0")) == count:
        # On one machine torchrun keeps its store over a restart, and with it the addresses of processes that are gone.
        store, _, _ = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
        attempt = dist.PrefixStore(f"puma/{restart_count()}", store)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=attempt, rank=rank, world_size=count)
    else:
        dist.init_process_group(backend)
    try:
        yield Ranks(rank, count, place)
    finally:
        dist.destroy_process_group()


def checked_device(device: str, local_rank: int | None = None) -> torch.device:
    """Turn a name into a device that is there; among several processes each takes its own GPU."""
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise PumaError(f"unknown device {device!r}; use cpu, cuda or cuda:0.") from error
    if place.type == "cuda":
        if not torch.cuda.is_available():
            raise PumaError(f"device {device!r} is not there: this torch sees no GPU; use the device cpu.")
        if local_rank is not None:
            place = torch.device("cuda", local_rank)
        torch.cuda.set_device(place)
    return place


def restart_count() -> int:
    """How often torchrun has started the processes again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def wrapped(model: nn.Module, ranks: Ranks, *, sync_batchnorm: bool) -> nn.Module:
    """Return what the loss calls: the model itself, or the model inside DDP, which averages gradients over ranks.

    BN statistics are not broadcast: TRADES passes twice before it goes back, and a broadcast in between would
    overwrite what the first pass saved. ``average_buffers`` brings them together instead.
    """
    if ranks.count == 1:
        return model
    if sync_batchnorm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    devices = [ranks.device.index] if ranks.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices, broadcast_buffers=False)


@torch.no_grad()
def average_buffers(model: nn.Module, ranks: Ranks) -> None:
    """Give every rank the mean of all ranks' BN statistics, so that a checkpoint is the same whoever writes it."""
    if ranks.count == 1:
        return
    for buffer in model.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer.div_(ranks.count)
