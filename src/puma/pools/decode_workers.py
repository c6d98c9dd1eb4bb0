"""Worker processes that decode pictures: small programs without torch, fed and read through pipes.

They end with the process that started them, however that ends. ``PUMA_DECODE_WORKERS`` sets how many there are; 0
decodes in the calling thread. They are not multiprocessing's: a script needs no ``if __name__ == "__main__"`` for them.
"""

import atexit
import json
import multiprocessing
import os
import struct
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError

if TYPE_CHECKING:
    from puma.pools.shards import ShardPictures

_PIECE = 4  # pictures that a worker is asked for at once: some ten milliseconds, so that all end together
_MOST_WORKERS = 16  # a disk gives no more pictures than so many decode
_MOST_POOLS = 8  # that a worker keeps open
# the package is there without its front door, which would import torch
_WORKER = """
import sys, types, puma
sys.modules["puma.pools"] = types.ModuleType("puma.pools")
sys.modules["puma.pools"].__path__ = [f"{part}/pools" for part in puma.__path__]
from puma.pools.decode_workers import answer_requests
answer_requests()
"""
_workers: "DecodeWorkers | None" = None
_start_lock = threading.Lock()


def decode_rows(pictures: "ShardPictures", rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Decode rows of a pool in place, in the order of ``rows``; a picture that cannot be read raises."""
    images, reasons = try_decode_rows(pictures, rows)
    if reasons:
        raise PumaError(reasons[min(reasons)])
    return images


def try_decode_rows(pictures: "ShardPictures", rows: NDArray[np.int64]) -> tuple[NDArray[np.uint8], dict[int, str]]:
    """Decode rows, by worker processes where there are several; return also what is wrong, by place in ``rows``."""
    images = np.empty((len(rows), *pictures.policy.shape), dtype=np.uint8)
    count = choose_worker_count()
    reasons: dict[int, str] = {}
    if len(rows) <= _PIECE or not count:
        for place, row in enumerate(rows):
            try:
                images[place] = pictures.decode(int(row))
            except PumaError as error:
                reasons[place] = str(error)
        return images, reasons
    workers = _get_workers(count)
    pieces = [slice(start, start + _PIECE) for start in range(0, len(rows), _PIECE)]
    waiting = [workers.threads.submit(workers.decode, pictures, rows[piece], images[piece]) for piece in pieces]
    try:
        for piece, future in zip(pieces, waiting, strict=True):
            reasons |= {piece.start + place: reason for place, reason in future.result().items()}
    finally:
        for future in waiting:
            future.cancel()
    return images, reasons


def choose_worker_count() -> int:
    """Return how many workers this process uses: its share of the machine's cores, or what the user says."""
    told = os.environ.get("PUMA_DECODE_WORKERS")
    if told is not None:
        if not told.isdigit() or int(told) > 1024:
            raise PumaError(f"PUMA_DECODE_WORKERS must be a number of processes from 0 to 1024, got {told!r}.")
        return int(told)
    if multiprocessing.parent_process() is not None:  # a worker of somebody's DataLoader: there are several of those
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    beside = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, min(_MOST_WORKERS, cores // max(1, int(beside) if beside.isdigit() else 1)))


def _get_workers(count: int) -> "DecodeWorkers":
    """Return this process's workers; a fork of it, or another number, starts its own."""
    global _workers
    with _start_lock:
        if _workers is None or _workers.owner != os.getpid() or _workers.count != count:
            _workers = DecodeWorkers(count)
        return _workers


class DecodeWorkers:
    """A thread for each worker process; threads only wait on pipes."""

    def __init__(self, count: int) -> None:
        self.owner, self.count = os.getpid(), count
        self.threads = ThreadPoolExecutor(count, thread_name_prefix="puma-decode")
        self.own = threading.local()
        self.processes: list[subprocess.Popen[bytes]] = []
        atexit.register(self.close)

    def decode(self, pictures: "ShardPictures", rows: NDArray[np.int64], images: NDArray[np.uint8]) -> dict[int, str]:
        """Have some rows decoded into ``images``; return what is wrong with those that cannot be."""
        process: subprocess.Popen[bytes] | None = getattr(self.own, "process", None)
        if process is None:
            process = self.own.process = _start_worker()
            self.processes.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        reasons: dict[int, str] = {}
        try:
            process.stdin.write(json.dumps([*pictures.describe(), rows.tolist()]).encode() + b"\n")
            process.stdin.flush()
            for place, image in enumerate(images):
                length = struct.unpack("<i", _read_exactly(process.stdout, 4))[0]
                if length < 0:
                    reasons[place] = _read_exactly(process.stdout, -length).decode("utf-8", "replace")
                else:
                    _read_into(process.stdout, image)
        except OSError as error:
            self.own.process = None
            _end_worker(process)
            raise PumaError(
                f"a process that decodes pictures of {pictures.folder} has ended (exit code {process.returncode}) at "
                f"one of the rows {rows.tolist()}; set PUMA_DECODE_WORKERS=0 to decode without it."
            ) from error
        return reasons

    def close(self) -> None:
        """End the processes; those of another process's workers are left alone."""
        if self.owner == os.getpid():
            for process in self.processes:
                _end_worker(process)


def _end_worker(process: "subprocess.Popen[bytes]") -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    process.terminate()
    process.wait()


def _start_worker() -> "subprocess.Popen[bytes]":
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(part for part in sys.path if part),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, "-P", "-c", _WORKER]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _read_exactly(pipe: IO[bytes], count: int) -> bytes:
    content = pipe.read(count)
    if len(content) < count:
        raise ChildProcessError("the pipe has ended")
    return content


def _read_into(pipe: IO[bytes], image: NDArray[np.uint8]) -> None:
    buffer, filled = image.reshape(-1).data.cast("B"), 0
    while filled < len(buffer):
        count: int = pipe.readinto(buffer[filled:])  # type: ignore[attr-defined]
        if not count:
            raise ChildProcessError("the pipe has ended")
        filled += count


def answer_requests() -> None:
    """Be a worker: for every line of standard input decode its rows; end with the input."""
    import signal

    from puma.pools.shards import ShardPictures, open_shards

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asked decides what an interrupt means
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=1 << 20)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no pixel
    opened: dict[str, ShardPictures] = {}  # by all that describes one: a pool may be replaced by another
    for line in sys.stdin.buffer:
        folder, described, rows = json.loads(line)
        key = json.dumps([folder, described])
        try:
            if key not in opened:
                opened = dict(list(opened.items())[1 - _MOST_POOLS :])
                opened[key] = open_shards(Path(folder), described, check=False)
        except PumaError as error:
            for _ in rows:
                _answer(answers, str(error))
        else:
            for row in rows:
                try:
                    _answer(answers, opened[key].decode(row))
                except PumaError as error:
                    _answer(answers, str(error))
        try:
            answers.flush()
        except BrokenPipeError:
            os._exit(0)


def _answer(answers: IO[bytes], answer: NDArray[np.uint8] | str) -> None:
    """Write pixels behind their number, or a sentence behind its length with a minus."""
    if isinstance(answer, str):
        text = answer.encode("utf-8", "replace")
        answers.write(struct.pack("<i", -len(text)) + text)
    else:
        answers.write(struct.pack("<i", answer.nbytes))
        answers.write(np.ascontiguousarray(answer).data)
