"""Processes that work together as started by torchrun, their devices, and the signals that end them."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType

import torch
import torch.distributed as dist

from puma.errors import PumaError

_ENDING = ("SIGINT", "SIGTERM", "SIGUSR1")  # Ctrl-C, a scheduler's end, a scheduler's warning; not all exist everywhere


@dataclass(frozen=True)
class ProcessGroup:
    """Which process this is, of how many, and the device it computes on."""

    rank: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def writes(self) -> bool:
        """Whether this is the one process that writes files and talks."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until every process is here."""
        if self.count > 1:
            dist.barrier()

    def mean(self, value: float) -> float:
        """Return the mean of every process's value."""
        if self.count == 1:
            return value
        total = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return float(total) / self.count

    def add_up(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of every process's tensor."""
        if self.count > 1:
            values = values.to(self.device, copy=True)
            dist.all_reduce(values)
        return values

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Return every process's tensor, one after the other; all have the same shape."""
        if self.count == 1:
            return values
        parts = [torch.empty_like(values, device=self.device) for _ in range(self.count)]
        dist.all_gather(parts, values.to(self.device).contiguous())
        return torch.cat(parts)


@contextmanager
def join_processes(device: str = "cpu", *, patient: bool = False) -> Iterator[ProcessGroup]:
    """Join the processes torchrun started, if any, and leave them at the end.

    A group that exists already is used and left alone. ``patient`` is for work in which processes meet only at its end:
    they wait for the slowest, which may have days more to do, and exchange nothing but that.
    """
    rank, count, local_rank = _read_environment()
    place = resolve_device(device, local_rank if count > 1 else None)
    if dist.is_initialized():
        yield ProcessGroup(dist.get_rank(), dist.get_world_size(), place)
        return
    if count == 1:
        yield ProcessGroup(0, 1, place)
        return
    backend = "nccl" if place.type == "cuda" and not patient else "gloo"
    timeout = timedelta(days=30) if patient else None
    if int(os.environ.get("LOCAL_WORLD_SIZE", "0")) == count:
        # On one machine torchrun keeps its store over a restart, and with it the addresses of processes that are gone.
        store, _, _ = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
        attempt = dist.PrefixStore(f"puma/{restart_count()}", store)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=attempt, rank=rank, world_size=count, timeout=timeout)
    else:
        dist.init_process_group(backend, timeout=timeout)
    try:
        yield ProcessGroup(rank, count, place)
    finally:
        dist.destroy_process_group()


def _read_environment() -> tuple[int, int, int]:
    """Return rank, number of processes and rank on this machine, as torchrun sets them."""
    values = {}
    for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")):
        text = os.environ.get(name, default)
        if not text.isdigit():
            raise PumaError(f"the environment variable {name} must be a whole number, it is {text!r}; unset it.")
        values[name] = int(text)
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if values["WORLD_SIZE"] > 1 and missing:
        raise PumaError(
            f"WORLD_SIZE is {values['WORLD_SIZE']}, but {', '.join(missing)} is not set: "
            "start the processes with torchrun, or unset WORLD_SIZE."
        )
    if values["RANK"] >= max(values["WORLD_SIZE"], 1):
        raise PumaError(f"RANK is {values['RANK']} of WORLD_SIZE {values['WORLD_SIZE']}; start with torchrun.")
    return values["RANK"], max(values["WORLD_SIZE"], 1), values["LOCAL_RANK"]


def resolve_device(device: str, local_rank: int | None = None) -> torch.device:
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
        if (place.index or 0) >= torch.cuda.device_count():
            raise PumaError(f"device {place} is not there: this machine has {torch.cuda.device_count()} GPUs.")
        torch.cuda.set_device(place)
    elif place.type != "cpu":
        try:
            torch.empty(1, device=place)
        except Exception as error:  # each kind of device has errors of its own
            raise PumaError(f"device {device!r} is not there; use the device cpu.") from error
    return place


def measure_peak_memory(device: torch.device) -> int:
    """Return the most bytes that this process has had so far, on its device too; 0 where the system does not tell."""
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return peak + (int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else 0)


def restart_count() -> int:
    """How often torchrun has started the processes again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


class SignalFlag:
    """The signal that asked this process to end, if one came."""

    number: int | None = None


@contextmanager
def catch_signals() -> Iterator[SignalFlag]:
    """Within the block Ctrl-C, SIGTERM and SIGUSR1 only set a flag, so that work can end in good order.

    A second Ctrl-C interrupts at once. Only the main thread can listen to signals; elsewhere the flag stays empty.
    """
    flag = SignalFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return

    def take_note(number: int, frame: FrameType | None) -> None:
        if flag.number == number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        flag.number = number

    numbers = [getattr(signal, name) for name in _ENDING if hasattr(signal, name)]
    before = {number: signal.signal(number, take_note) for number in numbers}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
