"""Use a plan in training code of your own: batches of a pool, a wrapped map-style dataset, or a sampler."""

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from puma.errors import PumaError
from puma.planning.plan import Plan
from puma.pools import MixedSampler, Origin, Pool, to_unit


class MapStyle(Protocol):
    """What ``torch.utils.data`` calls a map-style dataset, with items that begin with image and label."""

    def __getitem__(self, index: int, /) -> Any: ...

    def __len__(self) -> int: ...


class PlannedDataset(Dataset[tuple[Any, Any, float, int]]):
    """The kept samples of another dataset, each as ``(image, label, strength, sample_id)``.

    The other dataset must be in the order of the pool that the plan was made for: its item ``i`` is the sample of row
    ``i`` of the plan.
    """

    def __init__(self, dataset: MapStyle, plan: Plan) -> None:
        if len(dataset) != len(plan):
            raise PumaError(f"the plan is for {len(plan):,} samples, the dataset has {len(dataset):,}.")
        self.dataset, self.plan = dataset, plan
        self.kept = plan.keep.nonzero().squeeze(1)

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int) -> tuple[Any, Any, float, int]:
        row = int(self.kept[index])
        image, label = self.dataset[row][:2]
        return image, label, float(self.plan.strength[row]), int(self.plan.sample_id[row])


class PlanSampler(Sampler[int]):
    """Indices of the kept samples, shuffled anew each epoch; look strengths up with ``plan.strength[index]``.

    Call ``set_epoch`` before each epoch, as with PyTorch's DistributedSampler. Each of ``ranks`` processes gets an
    equal share; what does not divide evenly is left out of that epoch.
    """

    def __init__(self, plan: Plan, *, seed: int = 0, rank: int = 0, ranks: int = 1) -> None:
        if not 0 <= rank < ranks:
            raise PumaError(f"rank must lie in 0..{ranks - 1}, got {rank}.")
        self.kept: Tensor = plan.keep.nonzero().squeeze(1)
        self.seed, self.rank, self.ranks, self.epoch = seed, rank, ranks, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.kept) // self.ranks

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(hash((self.seed, self.epoch)) & (2**63 - 1))
        order = self.kept[torch.randperm(len(self.kept), generator=generator)]
        return iter(order[self.rank : len(self) * self.ranks : self.ranks].tolist())


class PlanLoader:
    """Batches ``(images, labels, strength, sample_id)`` of the kept samples of a pool; see ``Plan.loader``.

    Images are float32 in [0, 1], shape (batch, channels, height, width). What a batch holds is a function of the seed
    and its number, so the same settings give the same batches everywhere.
    """

    def __init__(
        self,
        plan: Plan,
        pool: Pool,
        batch_size: int,
        generated_fraction: float | None,
        samples_seen: int | None,
        seed: int,
    ) -> None:
        keep, self.strength = plan.of(pool)
        kept = keep.numpy()
        real, generated = ((pool.origin == origin).nonzero()[0] for origin in (Origin.REAL, Origin.GENERATED))
        real, generated = real[kept[real]], generated[kept[generated]]
        share = generated_fraction
        if share is None:
            share = len(generated) / max(1, len(real) + len(generated))
        # one pass: every real sample once, or every generated one where there are no others
        per_batch = batch_size - int(share * batch_size + 1e-9)
        steps = -(-len(real) // per_batch) if per_batch else -(-len(generated) // batch_size)
        length = samples_seen if samples_seen is not None else max(1, steps) * batch_size
        self.pool, self.passes = pool, 0
        self.sampler = MixedSampler(real, generated, batch_size, share, length, seed)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        first = self.passes * len(self)
        self.passes += 1
        for step in range(first, first + len(self)):
            positions = self.sampler.positions(step)
            batch = self.pool.batch(positions)
            yield to_unit(batch.images), batch.labels, self.strength[torch.from_numpy(positions)], batch.sample_id
