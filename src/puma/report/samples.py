"""Margins, plan and pool of one row, brought into one order."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError
from puma.margins.table import MarginTable
from puma.planning import Plan
from puma.pools import Pool
from puma.report.planned import planned_eps, rule_of
from puma.report.reading import measured_on, open_margins, open_plan, open_pool
from puma.report.study import Row, Seed, Study, seed_name
from puma.scores.align import align


@dataclass(frozen=True, eq=False)
class Samples:
    """Every sample of one seed, in the order of its margins (or plan); what is not known is None. ``notes`` say why.

    ``name`` tells the row, and the seed where it has several. Without a table, margins are NaN.
    """

    name: str
    sample_id: NDArray[np.int64]
    margin: NDArray[np.float32]
    table: MarginTable | None
    plan: Plan | None
    keep: NDArray[np.bool_]
    strength: NDArray[np.float32] | None
    pool: Pool | None
    position: NDArray[np.int64]
    eps: float | None
    norm: str
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.sample_id)

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """Labels (n,); None without the pool."""
        return None if self.pool is None else self.pool.labels[self.position]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes; their numbers without the pool."""
        if self.pool is not None:
            return self.pool.class_names
        highest = -1 if self.table is None else int(max(self.table.prediction.max(), self.table.rival.max(), 0))
        return tuple(map(str, range(1 + highest)))

    @property
    def thresholds(self) -> dict[str, float]:
        """The margin that ``easy`` samples are pruned from, and the one that ``difficult`` ones are pruned up to.

        Only a plan whose rule goes by the margin has them: with a random share, or another score, none is between.
        """
        rule = None if self.plan is None else rule_of(self.plan)
        if rule is None or rule.random:
            return {}
        known = np.isfinite(self.margin)
        kept, pruned = self.margin[self.keep & known], self.margin[~self.keep & known]
        high, low = pruned, pruned
        if rule.easy_by_margin and rule.difficult_by_margin and len(kept):
            middle = np.median(kept)
            high, low = pruned[pruned > middle], pruned[pruned <= middle]
        found = {"easy": float(high.min())} if rule.easy_by_margin and len(high) else {}
        return found | ({"difficult": float(low.max())} if rule.difficult_by_margin and len(low) else {})


def shown_samples(study: Study) -> Samples | None:
    """Join the files of the first row that has margins and a plan, else margins, else a plan."""
    seeds = [(row, seed) for row in study.rows for seed in row.seeds if seed.margins or seed.plan]
    if not seeds:
        return None
    row, seed = max(seeds, key=lambda found: 2 * bool(found[1].margins) + bool(found[1].plan))
    return join(row, seed) if seed.margins else from_plan(row, seed)


def from_plan(row: Row, seed: Seed) -> Samples:
    """Bring plan and pool of a seed without margins together."""
    assert seed.plan is not None
    plan = open_plan(seed.plan)
    if not len(plan):
        raise PumaError(f"{seed.plan} holds no sample; make the plan again.")
    sample_id, nothing = plan.sample_id.numpy(), np.full(len(plan), np.nan, dtype=np.float32)
    pool, position, notes = _pool(seed, plan.pool_fingerprint, sample_id)
    eps = planned_eps(plan) if row.eps is None else row.eps
    return Samples(seed_name(row, seed), sample_id, nothing, None, plan, plan.keep.numpy(), plan.strength.numpy(),
                   pool, position, eps, row.norm or "", tuple(notes))  # fmt: skip


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
    pool, position, notes = _pool(seed, fingerprint, table.sample_id)
    eps = row.eps if row.eps is not None or plan is None else planned_eps(plan)
    norm = str(table.made_from.get("norm") or row.norm or "")
    return Samples(seed_name(row, seed), table.sample_id, table.margin, table, plan, keep, strength, pool, position,
                   eps, norm, tuple(notes))  # fmt: skip


def _pool(
    seed: Seed, fingerprint: str, sample_id: NDArray[np.int64]
) -> tuple[Pool | None, NDArray[np.int64], list[str]]:
    """Return the pool, where in it the samples are, and why there is none."""
    position = np.arange(len(sample_id))
    if not seed.pools:
        return None, position, ["No pool was found for these samples, so there are no pictures and no labels."]
    try:
        pool = open_pool(seed.pools)
    except (PumaError, OSError) as error:
        return None, position, [f"The pool cannot be opened, so there are no pictures and no labels: {error}"]
    if pool.fingerprint != fingerprint:
        what = "the margins were measured on" if seed.margins else "the plan was made for"
        where = ", ".join(map(str, seed.pools))
        return None, position, [
            f"The pool at {where} is not the one that {what}, so there are no pictures and no labels."
        ]  # fmt: skip
    found = align(pool.sample_id, sample_id, "the pool")
    return pool, position if found is None else found, []
