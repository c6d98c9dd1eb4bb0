"""InfoBatch: leave out some samples of low loss at random, and weigh those that stay so that gradients stay unbiased.

A sample's loss is the one it had when it was last trained on; one that never was stays. Where the authors decide once
per epoch, here every batch draws more candidates than it needs, so batches stay full and any step can be resumed.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from puma.processes import ProcessGroup
from puma.training.batches import TrainBatch
from puma.training.config import TrainConfig
from puma.training.online import pick_rows

_CHOICE_STREAM = 4  # randomness that must not repeat that of augmentation (1), attack (2) or online candidates (3)


@dataclass
class LossTable:
    """The last loss of every sample of the pool (n,); infinite for those that were never trained on."""

    last: Tensor

    @property
    def mean(self) -> float:
        """Mean over the samples that have one; infinite before any has."""
        known = self.last[self.last.isfinite()]
        return float(known.double().mean()) if len(known) else float("inf")

    def update(self, positions: Tensor, losses: Tensor, processes: ProcessGroup) -> None:
        """Write down the losses of a batch, those of the other processes too."""
        places, values = processes.gather(positions), processes.gather(losses.float())
        self.last[places.cpu()] = values.cpu()


@dataclass(frozen=True)
class SoftChoice:
    """The batch that is trained on, the weight of each of its samples, and which share of the candidates went."""

    batch: TrainBatch
    weight: Tensor
    pruned_share: float


def choose_samples(batch: TrainBatch, table: LossTable, config: TrainConfig, processes: ProcessGroup) -> SoftChoice:
    """Make a full batch of candidates: those of low loss go with the probability asked for, or weigh more."""
    assert batch.positions is not None
    soft, wanted = config.soft_pruning, config.batch_size // processes.count
    rng = np.random.default_rng((config.seed, batch.step, _CHOICE_STREAM, processes.rank))
    order = rng.permutation(len(batch.positions))
    drawn = torch.from_numpy(rng.random(len(order)) < soft.ratio)
    positions = torch.from_numpy(batch.positions[order])
    low = table.last[positions] < table.mean
    if batch.step >= soft.until * config.steps:
        low = torch.zeros_like(low)
    pruned = low & drawn
    rows = pick_rows(pruned, wanted, fill=True)
    weight = torch.where(low[rows], 1 / (1 - soft.ratio), 1.0)
    places = torch.from_numpy(order)[rows]
    taken = replace(
        batch,
        images=batch.images[places],
        labels=batch.labels[places],
        strength=batch.strength[places],
        rows=batch.rows[places.numpy()],
        positions=batch.positions[places.numpy()],
    )
    return SoftChoice(taken, weight, float(pruned.double().mean()))
