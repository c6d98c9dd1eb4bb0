"""Margins, plan and pool of one row, brought into one order."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError
from puma.margins.table import MarginTable
from puma.planning import Plan
from puma.pools import Pool
from puma.report.planned import planned_eps
from puma.report.reading import measured_on, open_margins, open_plan, open_pool
from puma.report.study import Row, Seed, Study
from puma.scores.align import align


@dataclass(frozen=True, eq=False)
class Samples:
    """Every sample of a row, in the order of its margins; what is not known is None. ``notes`` say why."""

    row: str
    table: MarginTable
    plan: Plan | None
    keep: NDArray[np.bool_]
    strength: NDArray[np.float32] | None
    pool: Pool | None
    position: NDArray[np.int64]
    eps: float | None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.table)

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """Labels (n,); None without the pool."""
        return None if self.pool is None else self.pool.labels[self.position]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes; their numbers without the pool."""
        if self.pool is not None:
            return self.pool.class_names
        return tuple(map(str, range(1 + int(max(self.table.prediction.max(), self.table.rival.max(), 0)))))

    @property
    def threshold(self) -> float | None:
        """The smallest measured margin among the pruned samples; None where there is none."""
        pruned = self.table.margin[~self.keep & np.isfinite(self.table.margin)]
        return float(pruned.min()) if len(pruned) else None


def gallery_samples(study: Study, chosen: Row | None = None) -> Samples | None:
    """Join the files of the first row that has margins and a plan, or else of the first that has margins."""
    rows = [chosen] if chosen else list(study.rows)
    seeds = [(row, seed) for row in rows for seed in row.seeds if seed.margins]
    if not seeds:
        return None
    row, seed = next(((row, seed) for row, seed in seeds if seed.plan), seeds[0])
    return join(row, seed)


def join(row: Row, seed: Seed) -> Samples:
    """Bring margins, plan and pool of one seed together; a plan for other samples raises, a missing pool is a note."""
    assert seed.margins is not None
    fingerprint, table = measured_on(seed.margins), open_margins(seed.margins)
    keep, strength, plan = np.ones(len(table), dtype=bool), None, None
    if seed.plan is not None:
        plan = open_plan(seed.plan)
        if plan.pool_fingerprint != fingerprint:
            raise PumaError(
                f"{seed.plan} and {seed.margins} are of different pools ({plan.pool_fingerprint[:12]} and "
                f"{fingerprint[:12]}); name a plan that was made from these margins."
            )
        rows = align(plan.sample_id.numpy(), table.sample_id, "the plan")
        order = slice(None) if rows is None else rows
        keep, strength = plan.keep.numpy()[order], plan.strength.numpy()[order]
    pool, notes = _pool(seed, fingerprint)
    position = np.arange(len(table))
    if pool is not None:
        found = align(pool.sample_id, table.sample_id, "the pool")
        position = position if found is None else found
    eps = row.eps if row.eps is not None or plan is None else planned_eps(plan)
    return Samples(row.name, table, plan, keep, strength, pool, position, eps, tuple(notes))


def _pool(seed: Seed, fingerprint: str) -> tuple[Pool | None, list[str]]:
    if not seed.pools:
        return None, ["No pool was found for these margins, so there are no pictures and no labels."]
    try:
        pool = open_pool(seed.pools)
    except (PumaError, OSError) as error:
        return None, [f"The pool cannot be opened, so there are no pictures and no labels: {error}"]
    if pool.fingerprint != fingerprint:
        return None, [
            f"The pool at {', '.join(map(str, seed.pools))} is not the one that the margins were measured on, so there "
            f"are no pictures and no labels."
        ]
    return pool, []
