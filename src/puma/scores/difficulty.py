"""How difficult each sample is: by a run's recorded outcomes, by the models it kept, by a few nets of a short training.

A run writes down which samples it got right at every visit, one bit each. The batch of a step is a function of the seed
and the step, so nothing but the outcomes has to be written: 128 bytes for a batch of 512, whatever the size of the
pool. A resumed run cuts the file back to where it starts again.
"""

import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from puma.errors import PumaError
from puma.models import frozen
from puma.pools import Pool, to_unit
from puma.progress import progress_bar

Bits = NDArray[np.bool_]

_FLUSH_STEPS = 64  # a killed process loses at most so many, and a resumed run makes them again
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


def count_recorders(folder: Path, outcome: str) -> int:
    """Return how many processes recorded the outcomes that go farthest; 0 for none."""
    files = list((folder / "outcomes").glob(f"{outcome}-0-of-*.bits"))
    sizes = {int(file.stem.rpartition("-")[2]): file.stat().st_size for file in files}
    return max(sizes, key=lambda ranks: sizes[ranks] * ranks, default=0)


def covers_steps(path: Path, per_step: int, step: int) -> bool:
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


@dataclass(frozen=True, eq=False)
class VisitCounts:
    """Counts per sample (n,): visits, visits at which it was wrong, and times it went from right to wrong."""

    seen: NDArray[np.uint32]
    wrong: NDArray[np.uint32]
    forgotten: NDArray[np.uint32]

    @property
    def difficulty(self) -> NDArray[np.float32]:
        """CD: share of visits at which the sample was misclassified; NaN if it was never visited."""
        return self._where_seen(self.wrong / np.maximum(self.seen, 1))

    @property
    def forgetting(self) -> NDArray[np.float32]:
        """Times the sample was right at a visit and wrong at the next; NaN if it was never visited."""
        return self._where_seen(self.forgotten)

    def _where_seen(self, values: NDArray[np.generic]) -> NDArray[np.float32]:
        return np.where(self.seen > 0, values, np.nan).astype(np.float32)


def count_visits(count: int, visits: Iterable[tuple[NDArray[np.int64], NDArray[np.bool_]]]) -> VisitCounts:
    """Count over ``visits``: parts of (positions, right), in the order of time.

    A position may come several times in a part. Memory is 13 bytes a sample, whatever the number of visits.
    """
    seen, wrong, forgotten = (np.zeros(count, dtype=np.uint32) for _ in range(3))
    was_right = np.zeros(count, dtype=bool)
    for positions, right in visits:
        order = np.argsort(positions, kind="stable")
        place, now = positions[order], right[order]
        first = np.concatenate([[True], place[1:] != place[:-1]])[: len(place)]
        before = np.where(first, was_right[place], np.concatenate([[False], now[:-1]])[: len(place)])
        np.add.at(seen, place, 1)
        np.add.at(wrong, place[~now], 1)
        np.add.at(forgotten, place[before & ~now], 1)
        was_right[place] = now  # of several visits the last one stays: assignment goes in order
    return VisitCounts(seen, wrong, forgotten)


def measure_error_length(logits: Tensor, labels: Tensor) -> Tensor:
    """Return ||softmax(logits) - onehot(label)||_2 for each sample (n,)."""
    error = logits.softmax(dim=1)
    error = error - F.one_hot(labels, logits.shape[1])
    length: Tensor = torch.linalg.vector_norm(error, dim=1)
    return length


def score_el2n(models: Iterable[nn.Module], pool: Pool, *, batch_size: int = 512, progress: bool = False) -> Tensor:
    """Return the score of every sample of the pool (n,), on images as they are, averaged over the models."""
    total, count = torch.zeros(len(pool), dtype=torch.float64), 0
    for model in models:
        count += 1
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        done = 0
        with (
            frozen(model),
            torch.inference_mode(),
            progress_bar(f"EL2N, net {count}", len(pool), enabled=progress) as advance,
        ):
            for batch in pool.batches(batch_size):
                logits = model(to_unit(batch.images.to(device)))
                total[done : done + len(batch)] += measure_error_length(logits.float(), batch.labels.to(device)).cpu()
                done += len(batch)
                advance(len(batch))
    if count == 0:
        raise PumaError("EL2N needs at least one net, got none.")
    return (total / count).float()


def measure_dynamics(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each sample (n,), the L2 length of the gradient of CE in the image, and the label's probability."""
    images = images.detach().requires_grad_()
    with frozen(model):
        logits = model(images).float()
        (gradient,) = torch.autograd.grad(F.cross_entropy(logits, labels, reduction="sum"), images)
    length: Tensor = torch.linalg.vector_norm(gradient.flatten(1), dim=1)
    return length, logits.detach().softmax(dim=1).gather(1, labels[:, None]).squeeze(1)


def score_dynamics(
    models: Iterable[nn.Module], pool: Pool, *, window: int = 10, batch_size: int = 512, progress: bool = False
) -> tuple[Tensor, Tensor]:
    """Return two scores of every sample (n,) by the models of one training, in the order of time; images as they are.

    The first is the average length of the input gradient (AIGN of Ramesh et al., 2025: EasyCore keeps the low ones).
    The second is the dynamic uncertainty of He et al. (2024), who keep the high ones: the standard deviation of the
    label's probability over ``window`` successive models, averaged over all windows.
    """
    if window < 2:
        raise PumaError(f"window must be at least 2, got {window}.")
    total, spread = (torch.zeros(len(pool), dtype=torch.float64) for _ in range(2))
    recent: deque[Tensor] = deque(maxlen=window)
    count = 0
    for model in models:
        count += 1
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        column, done = torch.empty(len(pool)), 0
        with progress_bar(f"dynamics, model {count}", len(pool), enabled=progress) as advance:
            for batch in pool.batches(batch_size):
                length, column[done : done + len(batch)] = measure_dynamics(
                    model, to_unit(batch.images.to(device)), batch.labels.to(device)
                )
                total[done : done + len(batch)] += length.cpu()
                done += len(batch)
                advance(len(batch))
        recent.append(column)
        if len(recent) == window:
            spread += torch.stack(tuple(recent)).double().std(dim=0)
    if count < window:
        raise PumaError(f"a window of {window} needs as many models of the training, got {count}.")
    return (total / count).float(), (spread / (count - window + 1)).float()
