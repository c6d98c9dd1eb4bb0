"""The plan: for every sample of a pool, whether to keep it and how strongly to attack it.

``plan.parquet`` is the whole of the method in one table, so any training code can use it: with the batches of a pool, a
wrapped map-style dataset, or a sampler.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from puma.attacks import check_count, check_number
from puma.errors import PumaError
from puma.files import LINKS_KEY, Link, read_links, write_links
from puma.pools import MixedSampler, Origin, Pool, PoolSource, open_pools, to_unit
from puma.scores import align_rows, check_unique
from puma.tables import TableHead, read_columns, read_head, write_table

_COLUMNS: dict[str, pa.DataType] = {"sample_id": pa.int64(), "keep": pa.bool_(), "strength": pa.float32()}


@dataclass(frozen=True, eq=False)
class Plan:
    """What to do with every sample of a pool: keep it or not, and how strongly to attack it.

    Examples:
        >>> pool = puma.Pool.from_tensors(torch.rand(5, 1, 4, 4), [0, 1, 2, 0, 1])
        >>> plan = puma.make_plan(pool, [-0.02, 0.01, 0.02, 0.03, 0.04], prune_easy=0.2, eps=8 / 255)
        >>> plan.keep, plan.strength
        (tensor([ True,  True,  True,  True, False]), tensor([-0.0200,  0.0100,  0.0200,  0.0300,  0.0314]))
        >>> puma.Plan.open(plan.save("plan.parquet"))
        Plan(5 samples, 4 kept, strength -0.0200 to +0.0300, for pool ...)

    ``sample_id``, ``keep`` and ``strength`` are (n,): int64, bool and float32. ``strength`` is signed: negative moves a
    sample towards its label. ``made_from`` is free text about the settings; ``links`` name pool, margins and model by
    hash, None where a file of an older version does not say.
    """

    sample_id: Tensor
    keep: Tensor
    strength: Tensor
    pool_fingerprint: str
    made_from: Mapping[str, str] = field(default_factory=dict)
    links: tuple[Link, ...] | None = None

    def __post_init__(self) -> None:
        kinds = {"sample_id": torch.int64, "keep": torch.bool, "strength": torch.float32}
        for name, dtype in kinds.items():
            column = getattr(self, name)
            if column.dtype != dtype or column.shape != (len(self.sample_id),):
                raise PumaError(
                    f"plan column {name} must be {dtype} of shape ({len(self.sample_id)},), "
                    f"got {column.dtype} of shape {tuple(column.shape)}."
                )
        if not bool(self.strength.isfinite().all()):
            bad = self.sample_id[~self.strength.isfinite()]
            raise PumaError(
                f"the plan's strength must be finite, it is NaN or infinite for {len(bad)} samples, "
                f"the first with sample_id {int(bad[0])}; measure the margins again."
            )
        check_unique(self.sample_id.numpy(), "the plan")

    def __len__(self) -> int:
        return len(self.sample_id)

    def __repr__(self) -> str:
        kept = self.strength[self.keep]
        reach = f", strength {float(kept.min()):+.4f} to {float(kept.max()):+.4f}" if len(kept) else ""
        return f"Plan({len(self):,} samples, {len(kept):,} kept{reach}, for pool {self.pool_fingerprint[:8]})"

    @classmethod
    def open(cls, path: str | Path) -> "Plan":
        """Read ``plan.parquet``."""
        if not Path(path).exists():
            raise PumaError(f"no plan at {path}; make one with: puma plan.")
        head = read_head(path, "a plan")
        missing = [name for name in _COLUMNS if name not in head.columns]
        if missing:
            raise PumaError(f"{path} is not a plan: it lacks {', '.join(missing)}; it has {', '.join(head.columns)}.")
        made_from = head.footer.get("made_from", {})
        if "pool_fingerprint" not in head.footer or not isinstance(made_from, dict):
            raise PumaError(f"{path} does not say which pool it is for; make it again with: puma plan.")
        columns = {name: torch.from_numpy(values) for name, values in read_columns(path, _COLUMNS, "a plan").items()}
        return cls(
            **columns,
            pool_fingerprint=str(head.footer["pool_fingerprint"]),
            made_from={str(name): str(value) for name, value in made_from.items()},
            links=read_links(head.footer),
        )

    def save(self, path: str | Path) -> Path:
        """Write ``plan.parquet``, whole or not at all; a file of another kind in its place raises."""
        _check_replaceable(Path(path))
        columns = [pa.array(getattr(self, name).numpy(force=True), kind) for name, kind in _COLUMNS.items()]
        footer: dict[str, Any] = {"pool_fingerprint": self.pool_fingerprint, "made_from": dict(self.made_from)}
        if self.links is not None:
            footer[LINKS_KEY] = write_links(self.links)
        schema = pa.schema(list(_COLUMNS.items()))
        return write_table(path, schema, [pa.Table.from_arrays(columns, schema=schema)], footer)

    def dataset(self, dataset: "MapStyle") -> "PlannedDataset":
        """Wrap a map-style dataset so that it gives ``(image, label, strength, sample_id)`` of the kept samples."""
        return PlannedDataset(dataset, self)

    def loader(
        self,
        pool: PoolSource,
        *,
        batch_size: int = 512,
        generated_fraction: float | None = None,
        samples_seen: int | None = None,
        seed: int = 0,
    ) -> "PlanLoader":
        """Return batches of the kept samples of a pool, for a training loop of your own.

        Examples:
            >>> pool = puma.Pool.from_tensors(torch.rand(6, 1, 8, 8), [0, 1, 2, 0, 1, 2])
            >>> plan = puma.make_plan(pool, prune_random=0.34, eps=8 / 255)
            >>> for images, labels, strength, sample_id in plan.loader(pool, batch_size=2):
            ...     print(tuple(images.shape), images.dtype, labels.shape, strength.shape, sample_id.shape)
            (2, 1, 8, 8) torch.float32 torch.Size([2]) torch.Size([2]) torch.Size([2])
            (2, 1, 8, 8) torch.float32 torch.Size([2]) torch.Size([2]) torch.Size([2])

        Args:
            pool: the pool that the plan was made for, or its folder.
            batch_size: samples in every batch; the last one is filled up with the first of the next pass.
            generated_fraction: share of generated samples in every batch; by default as many as the kept ones have.
            samples_seen: length of one iteration; by default every kept real sample comes once (without real ones,
                every generated one).
            seed: other seeds give another order. A second iteration goes on where the first one ended.
        """
        return PlanLoader(self, open_pools(pool), batch_size, generated_fraction, samples_seen, seed)

    def sampler(self, *, seed: int = 0, rank: int = 0, ranks: int = 1) -> "PlanSampler":
        """Return a sampler of the kept samples' indices, for a dataset of your own."""
        return PlanSampler(self, seed=seed, rank=rank, ranks=ranks)

    def of(self, pool: Pool) -> tuple[Tensor, Tensor]:
        """Return ``keep`` and ``strength`` in the order of the pool; a plan for another pool raises."""
        if self.pool_fingerprint != pool.fingerprint:
            raise PumaError(
                f"the plan was made for another pool: it carries fingerprint {self.pool_fingerprint[:12]}, "
                f"this pool has {pool.fingerprint[:12]}; give the same pools in the same order, or plan again."
            )
        rows = align_rows(self.sample_id.numpy(), pool.sample_id, "the plan")
        if rows is None:
            return self.keep, self.strength
        places = torch.from_numpy(rows)
        return self.keep[places], self.strength[places]


def _check_replaceable(path: Path) -> None:
    """Refuse to write a plan over anything else."""
    if not path.exists():
        return
    try:
        held = is_plan(read_head(path, "a plan"))
    except PumaError as error:
        raise PumaError(f"{path} is there and is no whole plan; choose another file, or remove it.") from error
    if not held:
        raise PumaError(f"{path} is a table, but not a plan; choose another file.")


def is_plan(head: TableHead) -> bool:
    """Tell whether a table is a plan that says which pool it is for."""
    return set(_COLUMNS) <= set(head.columns) and "pool_fingerprint" in head.footer


def find_lost_classes(pool: Pool, keep: Tensor) -> list[str]:
    """Names of the classes that the pool has and ``keep`` leaves no sample of; keeping nothing at all raises."""
    if not bool(keep.any()):
        raise PumaError(f"the plan keeps none of the pool's {len(pool):,} samples; prune a smaller fraction.")
    before = np.bincount(pool.labels, minlength=pool.num_classes)
    after = np.bincount(pool.labels[keep.numpy()], minlength=pool.num_classes)
    return [pool.class_names[label] for label in np.flatnonzero((before > 0) & (after == 0))]


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
        batch_size = check_count(batch_size, "batch_size")
        check_number(seed, "seed")
        if generated_fraction is not None:
            check_number(generated_fraction, "generated_fraction")
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
        length = max(1, steps) * batch_size if samples_seen is None else check_count(samples_seen, "samples_seen")
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
