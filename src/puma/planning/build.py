"""Make a plan out of scores: every strategy of pruning with every rule of strength."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from puma.attacks import check_number, check_radius
from puma.errors import PumaError, unknown_name
from puma.files import UNKNOWN_HASH, Link
from puma.margins import Margins
from puma.planning.plan import Plan, find_lost_classes
from puma.planning.prune import Mask, PruneRule, keep_samples, split_pool, to_column
from puma.planning.strength import StrengthName, StrengthRule, assign_strengths
from puma.pools import Array, Pool, PoolSource, open_pools
from puma.scores import Scores, open_named_scores, open_scores

ScoreSource = Scores | str | Path
_LATER = ("beyond", "stratified", "strata", "floor")


def make_plan(
    pool: PoolSource,
    margins: Margins | ScoreSource | Array | None = None,
    *,
    prune_easy: float = 0.0,
    prune_difficult: float = 0.0,
    prune_random: float = 0.0,
    easy_threshold: float | None = None,
    difficult_threshold: float | None = None,
    within: Literal["pool", "class", "origin"] = "pool",
    strength: StrengthName | None = None,
    eps: float = 8 / 255,
    gap: float = 0.0,
    weak_eps: float = 1 / 255,
    difficult_from: float = 1.0,
    score: ScoreSource | None = None,
    difficulty: ScoreSource | None = None,
    drop_failed: bool = False,
    seed: int = 0,
    norm: Literal["linf", "l2"] | None = None,
    prune_beyond: float | None = None,
    prune_stratified: float = 0.0,
    strata: int = 50,
    floor: float = -1.0,
) -> Plan:
    """Decide for every sample of a pool whether to keep it and how strongly to attack it.

    PUMA is ``prune_easy=0.2``: the fifth with the highest margins goes, the others are attacked as strongly as their
    margins allow.

    Examples:
        >>> pool = puma.Pool.from_tensors(torch.rand(6, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2]))
        >>> margins = [-0.02, 0.01, 0.02, 0.03, 0.04, 0.05]  # or puma.measure_pool(model, pool)
        >>> plan = puma.make_plan(pool, margins, prune_easy=0.2, eps=8 / 255)
        >>> plan.keep  # (n,) bool, in the order of the pool
        tensor([ True,  True,  True,  True,  True, False])
        >>> plan.strength  # (n,) float32: the margin, at most eps and at least -eps
        tensor([-0.0200,  0.0100,  0.0200,  0.0300,  0.0314,  0.0314])

    Args:
        pool: a pool or its folder.
        margins: what ``measure_pool`` or ``measure_margins`` gave for this pool, the file, or one number per sample.
        prune_easy: share of the easiest samples to drop.
        prune_difficult: share of the most difficult samples to drop.
        prune_random: share of samples to drop at random.
        easy_threshold: drop samples easier than this score.
        difficult_threshold: drop samples as difficult as this score or more.
        within: take the shares of the whole pool, or within each class or origin.
        strength: ``constant`` eps; ``margin`` less gap, clipped to eps; ``weak-if-difficult`` and
            ``margin-if-difficult``: weak_eps or margin only for always-wrong samples. By default ``margin``, or
            ``constant`` where no margins are given.
        eps: the largest strength.
        gap: subtracted from the margin.
        weak_eps: strength of always-wrong samples with ``weak-if-difficult``.
        difficult_from: samples of this difficulty or more count as always wrong.
        score: prune by this score instead of the margin: a table or its file (FILE:SCORE where it has several).
        difficulty: classification difficulty for the rules that ask for it.
        drop_failed: leave out samples without a score (NaN) instead of refusing them.
        seed: tells apart samples of equal score, and draws the random ones.
        norm: of eps; that of the margins, or else ``linf``.
        prune_beyond: for being easy, or at random, drop only samples with a margin above so many eps.
        prune_stratified: share to drop so that all ranges of the score stay covered (CCS).
        strata: number of those ranges.
        floor: no strength by margin is lower than so many eps.
    """
    pool = open_pools(pool)
    margin = None if margins is None else _take_margins(margins, pool)
    return build_plan(
        pool,
        PruneRule(
            prune_easy,
            prune_difficult,
            prune_random,
            easy_threshold,
            difficult_threshold,
            within,
            seed,
            prune_beyond,
            prune_stratified,
            strata,
        ),
        StrengthRule(
            strength or ("constant" if margin is None else "margin"), eps, gap, weak_eps, difficult_from, floor
        ),
        score=_take_scores(score, "score"),
        margin=margin,
        difficulty=_take_scores(difficulty, "difficulty"),
        drop_failed=drop_failed,
        norm=norm,
    )


def build_plan(
    pool: Pool,
    pruning: PruneRule,
    strength: StrengthRule,
    *,
    score: Scores | None = None,
    margin: Scores | None = None,
    difficulty: Scores | None = None,
    drop_failed: bool = False,
    norm: str | None = None,
) -> Plan:
    """Decide for every sample of the pool by rules and tables; ``make_plan`` is the door to it.

    ``score`` is what pruning goes by, the margin if it is not given. With ``drop_failed`` fractions are of the samples
    that have a score. A margin search that did not cross comes as an infinite margin (or plus or minus the cap it
    looked up to): the sample counts as having the highest (lowest) margin, and its strength is at the limit.
    """
    norm = _settle_norm(norm, margin)
    check_rules(pruning, strength, norm, math.prod(pool.image_shape))
    if difficulty is not None and not difficulty.kind.startswith("cd_"):
        raise PumaError(f"difficulty must be cd_clean or cd_adversarial, got {difficulty.kind}; name it as FILE:SCORE.")
    chosen = score or margin
    if chosen is not None and chosen.kind == "margin":
        for name in ("easy_threshold", "difficult_threshold"):
            if (value := getattr(pruning, name)) is not None and math.isfinite(value):
                check_radius(value, name, norm=norm, pixels=math.prod(pool.image_shape))
    used = {"score": chosen, "margin": margin, "difficulty": difficulty}
    failed = np.zeros(len(pool), dtype=bool)
    for table in {id(table): table for table in used.values() if table is not None}.values():
        failed |= np.isnan(table.of(pool))
    if failed.any() and not drop_failed:
        first = int(pool.sample_id[np.argmax(failed)])
        raise PumaError(
            f"{int(failed.sum()):,} samples have no score (NaN), the first with sample_id {first}; "
            f"give --drop-failed to leave them out."
        )
    easiness = None if chosen is None else chosen.easiness(pool)
    high_is_easy = chosen is None or chosen.kind == "margin"
    distances = margin or (chosen if chosen is not None and chosen.kind == "margin" else None)
    close = _find_close(pruning, strength, distances, pool)
    if failed.any():
        scored = pool.subset(~failed)
        keep = np.zeros(len(pool), dtype=bool)
        ranked = None if easiness is None else easiness[~failed]
        near = None if close is None else close[~failed]
        keep[~failed] = keep_samples(scored, ranked, pruning, high_is_easy=high_is_easy, close=near)
    else:
        keep = keep_samples(pool, easiness, pruning, high_is_easy=high_is_easy, close=close)
    radius = assign_strengths(
        len(pool),
        strength,
        margin=_order_scores(margin, pool, failed),
        difficulty=_order_scores(difficulty, pool, failed),
        norm=norm,
    )
    measured = {} if margin is None else margin.made_from
    plan = Plan(
        sample_id=torch.from_numpy(pool.sample_id),
        keep=torch.from_numpy(keep),
        strength=radius.float(),
        pool_fingerprint=pool.fingerprint,
        made_from={
            **_describe_rule("pruning", pruning, PruneRule()),
            **_describe_rule("strength", strength, StrengthRule()),
            **({"score": chosen.kind} if chosen is not None else {}),
            **({"unscored": str(int(failed.sum()))} if failed.any() else {}),
            **{f"margins.{name}": measured[name] for name in ("method", "norm") if name in measured},
        },
        links=_link_inputs(pool, {role: table for role, table in used.items() if table is not None}),
    )
    find_lost_classes(pool, plan.keep)
    return plan


def _find_close(pruning: PruneRule, strength: StrengthRule, margin: Scores | None, pool: Pool) -> Mask | None:
    """Return which samples are too close to the boundary to go for being easy; None without such a rule."""
    if pruning.beyond is None:
        return None
    if margin is None:
        raise PumaError("pruning beyond a distance needs margins; give --margins FILE.")
    close: Mask = ~(margin.of(pool) > pruning.beyond * strength.eps)
    return close


def _describe_rule(name: str, rule: PruneRule | StrengthRule, usual: PruneRule | StrengthRule) -> dict[str, str]:
    """Write a rule down; what came after version 0.1 only where it is used, so that older plans are made alike."""
    values, defaults = asdict(rule), asdict(usual)
    return {
        f"{name}.{field}": str(value)
        for field, value in values.items()
        if field not in _LATER or value != defaults[field]
    }


def find_prune_start(pool: Pool, margin: Scores, pruning: PruneRule, eps: float) -> float | None:
    """Return the smallest margin that goes for being easy where pruning is by margin; None where none does."""
    values, starts = margin.of(pool), []
    for rows in split_pool(pool, pruning.within):
        found = values[rows][~np.isnan(values[rows])]
        count = math.floor(pruning.easy * len(found) + 1e-9)
        if count:
            starts.append(float(np.partition(found, len(found) - count)[len(found) - count]))
    if pruning.easy_threshold is not None:
        starts += [float(found.min()) for found in [values[values > pruning.easy_threshold]] if len(found)]
    return max(min(starts), (pruning.beyond or -math.inf) * eps) if starts else None


def _link_inputs(pool: Pool, tables: dict[str, Scores]) -> tuple[Link, ...]:
    """Name everything a plan was made from: the pool, each table once, and the model that was measured."""
    links = [Link("pool", "pool", pool.fingerprint, pool.place)]
    seen: set[int] = set()
    for role, table in reversed(tables.items()):  # margins that pruning goes by too are called margins
        if id(table) not in seen:
            seen.add(id(table))
            kind: Literal["margins", "scores"] = "margins" if table.kind == "margin" else "scores"
            file = table.file
            name = "margins" if role == "margin" else role
            links.append(Link(name, kind, file.hash if file else UNKNOWN_HASH, file.path if file else ""))
            if role == "margin":
                links.append(Link("margin model", "model", table.made_from.get("model", UNKNOWN_HASH)))
    return tuple(links)


def _settle_norm(asked: str | None, margin: Scores | None) -> str:
    """Return the norm of strengths; another one than the margins were measured in raises."""
    measured = None if margin is None else margin.made_from.get("norm")
    if asked is not None and measured is not None and asked != measured:
        raise PumaError(f"the margins were measured in {measured}, strengths are asked for in {asked}; leave norm out.")
    return asked or measured or "linf"


def _advise_shares(shares: tuple[float, ...]) -> str:
    """Say what a percentage is as a share."""
    percent = [share for share in shares if 1 < share < 100]
    return f" (for {percent[0]:g} % give {percent[0] / 100:g})" if percent else ""


def check_rules(pruning: PruneRule, strength: StrengthRule, norm: str = "linf", pixels: int | None = None) -> None:
    """Raise one error that lists everything wrong with the settings; L2 needs to know how many pixels an image has."""
    usual: dict[str, Any] = {**asdict(PruneRule()), **asdict(StrengthRule())}
    for field, value in (*asdict(pruning).items(), *asdict(strength).items()):
        if not isinstance(usual[field], str) and not (value is None and usual[field] is None):
            check_number(value, field)
            if isinstance(usual[field], int) and not float(value).is_integer():
                raise PumaError(f"{field} must be a whole number, got {value}.")
    for kind, name, known in (
        ("within", pruning.within, ["pool", "class", "origin"]),
        ("norm", norm, ["linf", "l2"]),
        ("strength rule", strength.rule, ["constant", "margin", "weak-if-difficult", "margin-if-difficult"]),
    ):
        if name not in known:
            raise unknown_name(kind, name, known)
    stratified = (pruning.stratified,) if pruning.stratified else ()
    shares = (pruning.easy, pruning.difficult, pruning.random, *stratified)
    rules = {
        f"fractions must lie in [0, 1), got {shares}{_advise_shares(shares)}": all(0 <= share < 1 for share in shares),
        "easy and difficult fractions must add up to less than 1": pruning.easy + pruning.difficult < 1,
        "stratified and other fractions must add up to less than 1": not pruning.stratified or sum(shares) < 1,
        f"strata must be positive, got {pruning.strata}": pruning.strata > 0,
        f"beyond must be a positive number of eps, got {pruning.beyond}": pruning.beyond is None
        or (math.isfinite(pruning.beyond) and pruning.beyond > 0),
        "beyond narrows the share of easy or random samples down; give --prune-easy or --prune-random as well": (
            pruning.beyond is None or bool(pruning.easy or pruning.random)
        ),
        f"floor must lie in [-1, 1], in multiples of eps, got {strength.floor}": -1 <= strength.floor <= 1,
        f"eps must be positive, got {strength.eps}": math.isfinite(strength.eps) and strength.eps > 0,
        f"gap must be finite and not negative, got {strength.gap}": math.isfinite(strength.gap) and strength.gap >= 0,
        f"weak_eps must lie in (0, eps], got {strength.weak_eps}": strength.rule != "weak-if-difficult"
        or 0 < strength.weak_eps <= strength.eps,
        f"seed must lie in 0..2**63 - 1, got {pruning.seed}": 0 <= pruning.seed < 1 << 63,
        "thresholds and difficult_from must be numbers, got NaN": not any(
            value is not None and math.isnan(value)
            for value in (pruning.easy_threshold, pruning.difficult_threshold, strength.difficult_from)
        ),
        "give a share or a threshold for easy samples, not both": not (
            pruning.easy and pruning.easy_threshold is not None
        ),
        "give a share or a threshold for difficult samples, not both": not (
            pruning.difficult and pruning.difficult_threshold is not None
        ),
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    if broken:
        raise PumaError(f"{'; '.join(broken)}.")
    check_radius(strength.eps, norm=norm, pixels=pixels)
    check_radius(strength.gap, "gap", norm=norm, pixels=pixels)


def _take_scores(source: ScoreSource | None, name: str) -> Scores | None:
    if source is None or isinstance(source, Scores):
        return source
    if isinstance(source, str | Path):
        return open_named_scores(str(source))
    raise PumaError(f"{name} must be a table of scores or its file, got {type(source).__name__}.")


def _take_margins(source: Margins | ScoreSource | Array, pool: Pool) -> Scores:
    """Take margins as a table, a file, as they were measured, or as bare numbers in the order of the pool."""
    if isinstance(source, Scores):
        return source
    if isinstance(source, str | Path):
        return open_scores(source, "margin")
    if isinstance(source, Margins) and source.made_from.get("pool", UNKNOWN_HASH) != UNKNOWN_HASH:
        made_from = {name: str(source.made_from[name]) for name in ("method", "norm", "model")}
        return Scores("margin", source.sample_id.numpy(), source.margin.numpy(), source.made_from["pool"], made_from)
    made_from, values = {}, cast("Array", source)
    if isinstance(source, Margins):  # of tensors: nothing but their order and labels tells whose they are
        made_from = {name: str(source.made_from[name]) for name in ("method", "norm") if name in source.made_from}
        if len(source) == len(pool) and bool(
            ((source.label.numpy() != pool.labels) & (source.label.numpy() >= 0)).any()
        ):
            raise PumaError("the margins were measured with other labels than the pool's; are they in the same order?")
        values = source.margin
    try:
        margin = to_column(values, "margins").numpy(force=True).astype(np.float32)
    except (PumaError, RuntimeError) as error:
        raise PumaError(
            "margins must be what measure_pool or measure_margins gives, a file of margins or one number per sample, "
            f"got {type(source).__name__}."
        ) from error
    if len(margin) != len(pool):
        raise PumaError(f"there must be a margin for each of the pool's {len(pool):,} samples, got {len(margin):,}.")
    return Scores("margin", pool.sample_id, margin, pool.fingerprint, made_from)


def _order_scores(scores: Scores | None, pool: Pool, failed: Mask) -> Tensor | None:
    if scores is None:
        return None
    values = scores.of(pool)
    return torch.from_numpy(np.where(failed, 0, values).astype(np.float32) if failed.any() else values)
