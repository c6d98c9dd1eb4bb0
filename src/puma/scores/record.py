"""Which samples a training run got right, at every visit: one bit each, on disk.

The batch of a step is a function of the seed and the step, so nothing but the outcomes has to be written down: 128
bytes for a batch of 512, whatever the size of the pool. A resumed run cuts the file back to where it starts again.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError

Bits = NDArray[np.bool_]

_FLUSH_STEPS = 64
OUTCOMES = ("clean", "adversarial")


class OutcomeRecord:
    """The file of one kind of outcome and one rank; a context manager that begins at ``step``."""

    def __init__(self, path: Path, per_step: int, step: int) -> None:
        self.path, self.record = path, -(-per_step // 8)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("r+b" if path.exists() else "w+b")
        size = self.file.seek(0, 2)
        if size < step * self.record:
            self.file.close()
            raise PumaError(
                f"{path} has the outcomes of {size // self.record:,} steps, the run goes on at step {step:,}; "
                f"start a run with another --out, or without --record-outcomes."
            )
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
        """Hand everything to the system, as a checkpoint needs it."""
        self.file.flush()

    def __enter__(self) -> "OutcomeRecord":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def outcome_file(folder: Path, outcome: str, rank: int = 0) -> Path:
    """Return where a run keeps its outcomes."""
    return folder / "outcomes" / f"{outcome}-{rank}.bits"


def read_outcomes(path: Path, per_step: int, steps: range) -> Bits:
    """Return the outcomes (steps, per_step) of some steps."""
    record = -(-per_step // 8)
    packed = np.fromfile(path, dtype=np.uint8, count=record * len(steps), offset=record * steps.start)
    if len(packed) != record * len(steps):
        raise PumaError(f"{path} ends before step {steps.stop:,}; finish the run first, with: puma train --resume.")
    return np.unpackbits(packed.reshape(len(steps), record), axis=1, count=per_step).astype(bool)
