"""The plan: for every sample of a pool, whether to keep it and how strongly to attack it.

``plan.parquet`` is the whole of the method in one table, so any training code can use it.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from puma.errors import PumaError
from puma.pools import Pool
from puma.scores.align import align, check_unique
from puma.scores.table import read_column

if TYPE_CHECKING:
    from puma.planning.dataset import MapStyle, PlannedDataset, PlanSampler

_FOOTER = b"puma"
_COLUMNS: dict[str, pa.DataType] = {"sample_id": pa.int64(), "keep": pa.bool_(), "strength": pa.float32()}


@dataclass(frozen=True, eq=False)
class Plan:
    """What to do with every sample of a pool: keep it or not, and how strongly to attack it.

    ``strength`` is signed: negative moves a sample towards its label. ``made_from`` is free text about the origin.
    """

    sample_id: Tensor
    keep: Tensor
    strength: Tensor
    pool_fingerprint: str
    made_from: Mapping[str, str] = field(default_factory=dict)

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

    @classmethod
    def open(cls, path: str | Path) -> "Plan":
        """Read ``plan.parquet``."""
        if not Path(path).is_file():
            raise PumaError(f"no plan at {path}; make one with: puma plan.")
        try:
            with Path(path).open("rb") as file:
                schema = pq.read_schema(file)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise PumaError(f"{path} is not a whole parquet file ({str(error).rstrip('.')}).") from error
        missing = [name for name in _COLUMNS if name not in schema.names]
        if missing:
            raise PumaError(f"{path} is not a plan: it lacks {', '.join(missing)}; it has {', '.join(schema.names)}.")
        try:
            footer = json.loads((schema.metadata or {})[_FOOTER])
            fingerprint = str(footer["pool_fingerprint"])
        except (KeyError, TypeError, ValueError) as error:
            raise PumaError(f"{path} does not say which pool it is for; make it again with: puma plan.") from error
        columns = {}
        for name, kind in _COLUMNS.items():
            try:
                columns[name] = torch.from_numpy(read_column(Path(path), name, kind))
            except pa.ArrowInvalid as error:
                raise PumaError(f"{path}: {name} must be {kind}, it is {schema.field(name).type}.") from error
            except (pa.ArrowException, OSError, ValueError) as error:
                raise PumaError(f"{path} is not a whole parquet file ({str(error).rstrip('.')}).") from error
        return cls(**columns, pool_fingerprint=fingerprint, made_from=footer.get("made_from", {}))

    def save(self, path: str | Path) -> Path:
        """Write ``plan.parquet``; whole or not at all."""
        path = Path(path)
        footer = {"pool_fingerprint": self.pool_fingerprint, "made_from": dict(self.made_from)}
        columns = [pa.array(getattr(self, name).numpy(force=True), kind) for name, kind in _COLUMNS.items()]
        schema = pa.schema(list(_COLUMNS.items()), metadata={_FOOTER: json.dumps(footer)})
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        pq.write_table(pa.Table.from_arrays(columns, schema=schema), partial)
        partial.replace(path)
        return path

    def dataset(self, dataset: "MapStyle") -> "PlannedDataset":
        """Wrap a map-style dataset so that it gives ``(image, label, strength, sample_id)`` of the kept samples."""
        from puma.planning.dataset import PlannedDataset

        return PlannedDataset(dataset, self)

    def sampler(self, *, seed: int = 0, rank: int = 0, ranks: int = 1) -> "PlanSampler":
        """Return a sampler of the kept samples' indices, for a dataset of your own."""
        from puma.planning.dataset import PlanSampler

        return PlanSampler(self, seed=seed, rank=rank, ranks=ranks)

    def of(self, pool: Pool) -> tuple[Tensor, Tensor]:
        """Return ``keep`` and ``strength`` in the order of the pool; a plan for another pool raises."""
        if self.pool_fingerprint != pool.fingerprint:
            raise PumaError(
                f"the plan was made for another pool: it carries fingerprint {self.pool_fingerprint[:12]}, "
                f"this pool has {pool.fingerprint[:12]}; give the same pools in the same order, or plan again."
            )
        rows = align(self.sample_id.numpy(), pool.sample_id, "the plan")
        if rows is None:
            return self.keep, self.strength
        places = torch.from_numpy(rows)
        return self.keep[places], self.strength[places]


def wiped_out(pool: Pool, keep: Tensor) -> list[str]:
    """Names of the classes that the pool has and ``keep`` leaves no sample of; keeping nothing at all raises."""
    if not bool(keep.any()):
        raise PumaError(f"the plan keeps none of the pool's {len(pool):,} samples; prune a smaller fraction.")
    before = np.bincount(pool.labels, minlength=pool.num_classes)
    after = np.bincount(pool.labels[keep.numpy()], minlength=pool.num_classes)
    return [pool.class_names[label] for label in np.flatnonzero((before > 0) & (after == 0))]
