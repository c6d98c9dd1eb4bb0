"""Margins, plan and pool of one row, brought into one order; what a plan does, in words."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError
from puma.files import read_links
from puma.margins import Margins
from puma.planning import Plan
from puma.pools import Origin, Pool
from puma.report.rows import (
    ReportRow,
    ReportStudy,
    SeedFiles,
    open_margins,
    open_plan,
    open_pool,
    read_margins_origin,
    seed_name,
)
from puma.report.svg import Markup, join_markup
from puma.report.units import write_distance, write_radius
from puma.scores import align_rows


@dataclass(frozen=True, eq=False)
class SampleTable:
    """Every sample of one seed, in the order of its margins (or plan); what is not known is None. ``notes`` say why.

    ``name`` tells the row, and the seed where it has several. Without a table, margins are NaN.
    """

    name: str
    sample_id: NDArray[np.int64]
    margin: NDArray[np.float32]
    table: Margins | None
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
        """Labels (n,) of the pool, else those that the margins tell; None where neither does."""
        if self.pool is not None:
            return self.pool.labels[self.position]
        told = None if self.table is None else self.table.label.numpy()
        return None if told is None or not len(told) or told.min() < 0 else told

    @property
    def generated(self) -> NDArray[np.bool_] | None:
        """Which samples are generated (n,); None without the pool."""
        return None if self.pool is None else self.pool.origin[self.position] == Origin.GENERATED

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes; their numbers without the pool."""
        if self.pool is not None:
            return self.pool.class_names
        columns = [] if self.table is None else [self.table.prediction, self.table.rival, self.table.label]
        return tuple(map(str, range(1 + max([int(column.max()) for column in columns], default=-1))))

    @property
    def margin_model(self) -> str:
        """Which net the margins are of, as their file tells it."""
        return "" if self.table is None else name_margin_model(self.table.made_from)

    @property
    def thresholds(self) -> dict[str, float]:
        """The margin that ``easy`` samples are pruned from, and the one that ``difficult`` ones are pruned up to.

        Only a plan whose rule goes by the margin has them: with a random share, or another score, none is between.
        """
        rule = None if self.plan is None else read_rule(self.plan)
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


def name_margin_model(made_from: Mapping[str, Any]) -> str:
    """Name the net that margins were measured with: where it lay, and the start of its hash."""
    link = next((link for link in read_links(made_from) or () if link.kind == "model"), None)
    place = "/".join(Path(link.path).parts[-2:]) if link else ""
    known = (link.hash if link else "") or str(made_from.get("model") or "")
    words = f"model {known[:8]}" if known else ""
    return f"{place} ({words})" if place and words else place or words or "an unknown model"


def load_shown_samples(study: ReportStudy) -> SampleTable | None:
    """Join the files of the first row that has margins and a plan, else margins, else a plan."""
    seeds = [(row, seed) for row in study.rows for seed in row.seeds if seed.margins or seed.plan]
    if not seeds:
        return None
    row, seed = max(seeds, key=lambda found: 2 * bool(found[1].margins) + bool(found[1].plan))
    return join_samples(row, seed) if seed.margins else load_plan_samples(row, seed)


def load_plan_samples(row: ReportRow, seed: SeedFiles) -> SampleTable:
    """Bring plan and pool of a seed without margins together."""
    assert seed.plan is not None
    plan = open_plan(seed.plan)
    if not len(plan):
        raise PumaError(f"{seed.plan} holds no sample; make the plan again.")
    sample_id, nothing = plan.sample_id.numpy(), np.full(len(plan), np.nan, dtype=np.float32)
    pool, position, notes = _find_pool(seed, plan.pool_fingerprint, sample_id)
    eps = read_planned_eps(plan) if row.eps is None else row.eps
    return SampleTable(seed_name(row, seed), sample_id, nothing, None, plan, plan.keep.numpy(), plan.strength.numpy(),
                   pool, position, eps, row.norm or "", tuple(notes))  # fmt: skip


def join_samples(row: ReportRow, seed: SeedFiles) -> SampleTable:
    """Bring margins, plan and pool of one seed together; a plan for other samples raises, a missing pool is a note."""
    assert seed.margins is not None
    fingerprint, table = str(read_margins_origin(seed.margins)["pool_fingerprint"]), open_margins(seed.margins)
    keep, strength, plan = np.ones(len(table), dtype=bool), None, None
    if seed.plan is not None:
        plan = open_plan(seed.plan)
        if plan.pool_fingerprint != fingerprint:
            raise PumaError(
                f"{seed.plan} and {seed.margins} are of different pools ({plan.pool_fingerprint[:12]} and "
                f"{fingerprint[:12]}); name a plan that was made from these margins."
            )
        rows = align_rows(plan.sample_id.numpy(), table.sample_id.numpy(), "the plan")
        order = slice(None) if rows is None else rows
        keep, strength = plan.keep.numpy()[order], plan.strength.numpy()[order]
    pool, position, notes = _find_pool(seed, fingerprint, table.sample_id.numpy())
    eps = row.eps if row.eps is not None or plan is None else read_planned_eps(plan)
    norm = str(table.made_from.get("norm") or row.norm or "")
    return SampleTable(seed_name(row, seed), table.sample_id.numpy(), table.margin.numpy(), table, plan, keep, strength,
                       pool, position, eps, norm, tuple(notes))  # fmt: skip


def _find_pool(
    seed: SeedFiles, fingerprint: str, sample_id: NDArray[np.int64]
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
    found = align_rows(pool.sample_id, sample_id, "the pool")
    return pool, position if found is None else found, []


@dataclass(frozen=True)
class PlanRule:
    """What a plan prunes, as it says itself: shares, thresholds of its score, and how many it has no score for."""

    easy: float
    difficult: float
    random: float
    easy_threshold: float | None
    difficult_threshold: float | None
    score: str
    within: str
    unscored: int
    beyond: float | None = None
    stratified: float = 0.0

    @property
    def easy_by_margin(self) -> bool:
        """Whether the highest margins go first."""
        return self.score == "margin" and bool(self.easy or self.easy_threshold is not None)

    @property
    def difficult_by_margin(self) -> bool:
        """Whether the lowest margins go first."""
        return self.score == "margin" and bool(self.difficult or self.difficult_threshold is not None)


def read_made_from(plan: Plan) -> dict[str, str]:
    """Return what the plan was made from; the text is free, so nothing about it can be relied on."""
    made_from: object = plan.made_from
    return {str(name): str(value) for name, value in made_from.items()} if isinstance(made_from, Mapping) else {}


def read_rule(plan: Plan) -> PlanRule:
    """Read a plan's rule; what it does not say counts as nothing."""
    told = read_made_from(plan)
    easy, difficult, random = (
        _parse_number(told.get(f"pruning.{name}")) or 0.0 for name in ("easy", "difficult", "random")
    )
    return PlanRule(
        easy,
        difficult,
        random,
        _parse_number(told.get("pruning.easy_threshold")),
        _parse_number(told.get("pruning.difficult_threshold")),
        told.get("score", ""),
        told.get("pruning.within", "pool"),
        int(_parse_number(told.get("unscored")) or 0),
        _parse_number(told.get("pruning.beyond")),
        _parse_number(told.get("pruning.stratified")) or 0.0,
    )


def read_planned_eps(plan: Plan) -> float | None:
    """Return the largest strength that the plan was made for, if it says so."""
    return _parse_number(read_made_from(plan).get("strength.eps")) or None


def describe_plan(plan: Plan, norm: str | None = None) -> Markup:
    """Say what a plan does to how many samples; strengths are told in the units of ``norm``, else the plan's own."""
    kept = plan.strength[plan.keep].numpy()
    dropped = len(plan) - len(kept)
    norm = norm or read_made_from(plan).get("margins.norm")
    rules = _describe_pruning(read_rule(plan), len(plan), dropped)
    words: list[str] = [f"keeps {len(kept):,} of {len(plan):,} and prunes {dropped:,}"]
    words += [f" ({_list_words(rules)})"] if rules else []
    if len(kept):
        low, high = float(kept.min()), float(kept.max())
        negative, weaker = count_weakened(plan)
        if low == high:
            words += ["; attacks all with ", write_radius(high, norm)]
        else:
            words += ["; attacks with ", write_distance(low, norm), " to ", write_distance(high, norm)]
            words += [f", {weaker:,} less strongly, {negative:,} towards their label"]
    gap = _parse_number(read_made_from(plan).get("strength.gap"))
    return join_markup(*words, *(["; gap ", write_distance(gap, norm, signed=False)] if gap else []), ".")


def count_weakened(plan: Plan) -> tuple[int, int]:
    """Return how many kept samples are attacked towards their label, and how many less strongly than the strongest."""
    kept = plan.strength[plan.keep].numpy()
    if not len(kept):
        return 0, 0
    return int((kept < 0).sum()), int((np.abs(kept) < np.abs(kept).max()).sum())


def _describe_pruning(rule: PlanRule, count: int, dropped: int) -> list[str]:
    words = [f"{rule.unscored:,} without a score"] if rule.unscored else []
    whole = f"each {rule.within}" if rule.within in ("class", "origin") else "the pool"
    total = rule.easy + rule.difficult + rule.random + rule.stratified
    cut = rule.easy_threshold is not None or rule.difficult_threshold is not None
    if rule.unscored:
        whole = "the others" if whole == "the pool" else f"the others in {whole}"
    elif dropped > (total + 0.01) * count and not cut:
        whole = f"those in {whole} that have a score"  # a plan of an earlier version, which does not say how many
    by = f" by {rule.score}" if rule.score else ""
    far = "" if rule.beyond is None else f" as far as they lie beyond {rule.beyond:g} eps"
    words += [f"the easiest {_format_percent(rule.easy)} of {whole}{by}{far}"] if rule.easy else []
    words += [f"the most difficult {_format_percent(rule.difficult)} of {whole}{by}"] if rule.difficult else []
    words += [f"a random {_format_percent(rule.random)} of {whole}"] if rule.random else []
    words += [f"{_format_percent(rule.stratified)} of {whole}, strata{by} kept alike"] if rule.stratified else []
    high_is_easy, score = rule.score == "margin", rule.score or "score"
    if rule.easy_threshold is not None:
        words.append(f"{score} {'above' if high_is_easy else 'below'} {rule.easy_threshold:.4g}")
    if rule.difficult_threshold is not None:
        words.append(f"{score} {'at most' if high_is_easy else 'at least'} {rule.difficult_threshold:.4g}")
    return words


def _list_words(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _format_percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def _parse_number(text: str | None) -> float | None:
    try:
        value = float(text) if text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None
