"""Which samples a training run got right, at every visit: one bit each, on disk.

The batch of a step is a function of the seed and the step, so nothing but the outcomes has to be written down: 128
bytes for a batch of 512, whatever the size of the pool. A resumed run cuts the file back to where it starts again.
"""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError

Bits = NDArray[np.bool_]

_FLUSH_STEPS = 64
OUTCOMES = ("clean", "adversarial")


class OutcomeRecord:
    """The file of one kind of outcome and one process; a context manager that begins at ``step``."""

    def __init__(self, path: Path, per_step: int, step: int) -> None:
        self.path, self.record = path, -(-per_step // 8)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("r+b" if path.exists() else "w+b")
        self.file.truncate(step * self.record)
        self.file.seek(step * self.record)
        self.steps = 0

    def add(self, right: Bits) -> None:
        """Write down the outcomes of the next step, in the order of the batch."""
        self.file.write(np.packbits(right).tobytes())
        self.steps += 1
        if self.steps % _FLUSH_STEPS == 0:
            self.file.flush()

    def flush(self) -> None:
        """Bring everything to the disk, as a checkpoint needs it."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def __enter__(self) -> "OutcomeRecord":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def outcome_file(folder: Path, outcome: str, rank: int = 0, ranks: int = 1) -> Path:
    """Return where one process of a run keeps its outcomes."""
    return folder / "outcomes" / f"{outcome}-{rank}-of-{ranks}.bits"


def recorded_ranks(folder: Path, outcome: str) -> int:
    """Return how many processes recorded the outcomes that go farthest; 0 for none."""
    files = list((folder / "outcomes").glob(f"{outcome}-0-of-*.bits"))
    sizes = {int(file.stem.rpartition("-")[2]): file.stat().st_size for file in files}
    return max(sizes, key=lambda ranks: sizes[ranks] * ranks, default=0)


def goes_on(path: Path, per_step: int, step: int) -> bool:
    """Tell whether a file has all the outcomes before a step."""
    return step == 0 or (path.is_file() and path.stat().st_size >= step * -(-per_step // 8))


def read_outcomes(path: Path, per_step: int, steps: range) -> Bits:
    """Return the outcomes (steps, per_step) of some steps."""
    record = -(-per_step // 8)
    packed = np.empty(0, dtype=np.uint8)
    if path.is_file():
        packed = np.fromfile(path, dtype=np.uint8, count=record * len(steps), offset=record * steps.start)
    if len(packed) != record * len(steps):
        raise PumaError(
            f"{path} ends before step {steps.stop:,}: the run has not ended, or was resumed by other processes."
        )
    return np.unpackbits(packed.reshape(len(steps), record), axis=1, count=per_step).astype(bool)
