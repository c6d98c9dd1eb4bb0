"""Make a plan out of scores: every strategy of pruning with every rule of strength."""

import math
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from puma.errors import PumaError
from puma.planning.plan import Plan, wiped_out
from puma.planning.rules import Drop, adaptive_strength, prune
from puma.pools import Pool
from puma.scores import Scores

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Pruning:
    """Which samples go. Fractions are of the whole pool (or of each class or origin) before anything is dropped.

    Attributes:
        easy: share of the easiest samples to drop (PE).
        difficult: share of the most difficult samples to drop (PD).
        random: share of samples to drop at random.
        easy_threshold: drop samples easier than this score (margin above it; CD, EL2N, forgetting below it).
        difficult_threshold: drop samples as difficult as this score or more.
        within: take the shares of the whole ``pool``, or within each ``class`` or ``origin``.
        seed: tells apart samples of equal score, and draws the random ones.
    """

    easy: float = 0.0
    difficult: float = 0.0
    random: float = 0.0
    easy_threshold: float | None = None
    difficult_threshold: float | None = None
    within: Literal["pool", "class", "origin"] = "pool"
    seed: int = 0


@dataclass(frozen=True)
class Strength:
    """How strongly to attack what is kept.

    Attributes:
        rule: ``constant`` eps; ``margin`` less gap, clipped to [-eps, eps]; ``weak-if-difficult``: weak_eps for
            samples that are always misclassified, eps for the others; ``margin-if-difficult``: the margin rule for
            those, eps for the others.
        eps: the largest strength.
        gap: subtracted from the margin.
        weak_eps: see ``rule``.
        difficult_from: a sample whose CD is this or more is always misclassified.
    """

    rule: Literal["constant", "margin", "weak-if-difficult", "margin-if-difficult"] = "margin"
    eps: float = 8 / 255
    gap: float = 0.0
    weak_eps: float = 1 / 255
    difficult_from: float = 1.0


def make_plan(
    pool: Pool,
    pruning: Pruning,
    strength: Strength,
    *,
    score: Scores | None = None,
    margin: Scores | None = None,
    difficulty: Scores | None = None,
    drop_failed: bool = False,
) -> Plan:
    """Decide for every sample of the pool.

    Args:
        pool: what the scores were made for.
        pruning: which samples go.
        strength: how strongly the others are attacked.
        score: what pruning goes by; the margin if it is not given.
        margin: what the margin rules go by.
        difficulty: CD, for the rules that ask for it.
        drop_failed: drop samples that a score has no number for (NaN) instead of refusing them; fractions are then
            of the others.

    A margin search that did not cross comes as an infinite margin (or plus or minus the cap it looked up to): the
    sample counts as having the highest (lowest) margin, and its strength is at the limit.
    """
    check(pruning, strength)
    if difficulty is not None and not difficulty.kind.startswith("cd_"):
        raise PumaError(f"difficulty must be cd_clean or cd_adversarial, got {difficulty.kind}; name it as FILE:SCORE.")
    chosen = score or margin
    failed = np.zeros(len(pool), dtype=bool)
    for used in {id(table): table for table in (chosen, margin, difficulty) if table is not None}.values():
        failed |= np.isnan(used.of(pool))
    if failed.any() and not drop_failed:
        first = int(pool.sample_id[np.argmax(failed)])
        raise PumaError(
            f"{int(failed.sum()):,} samples have no score (NaN), the first with sample_id {first}; "
            f"give --drop-failed to leave them out."
        )
    easiness = None if chosen is None else chosen.easiness(pool)
    high_is_easy = chosen is None or chosen.kind == "margin"
    if failed.any():
        scored = pool.subset(~failed)
        keep = np.zeros(len(pool), dtype=bool)
        keep[~failed] = kept(
            scored, None if easiness is None else easiness[~failed], pruning, high_is_easy=high_is_easy
        )
    else:
        keep = kept(pool, easiness, pruning, high_is_easy=high_is_easy)
    radius = strengths(len(pool), strength, margin=_of(margin, pool, failed), difficulty=_of(difficulty, pool, failed))
    plan = Plan(
        sample_id=torch.from_numpy(pool.sample_id),
        keep=torch.from_numpy(keep),
        strength=radius.float(),
        pool_fingerprint=pool.fingerprint,
        made_from={
            **{f"pruning.{name}": str(value) for name, value in asdict(pruning).items()},
            **{f"strength.{name}": str(value) for name, value in asdict(strength).items()},
            **({"score": chosen.kind} if chosen is not None else {}),
            **({"unscored": str(int(failed.sum()))} if failed.any() else {}),
        },
    )
    wiped_out(pool, plan.keep)
    return plan


def kept(pool: Pool, easiness: NDArray[np.float32] | None, pruning: Pruning, *, high_is_easy: bool) -> Mask:
    """Return which samples stay (n,); ``easiness`` is high for easy samples."""
    wants: list[tuple[Drop, float]] = [("high", pruning.easy), ("low", pruning.difficult), ("random", pruning.random)]
    by_score = pruning.easy or pruning.difficult or _thresholds(pruning)
    if easiness is None:
        if by_score:
            raise PumaError("dropping easy or difficult samples needs a score; give --margins or --score FILE.")
        easiness = np.zeros(len(pool), dtype=np.float32)
    keep = np.ones(len(pool), dtype=bool)
    for rows in _groups(pool, pruning.within):
        for drop, fraction in wants:
            if fraction:
                ids = torch.from_numpy(pool.sample_id[rows])
                stays = prune(torch.from_numpy(easiness[rows]), fraction, drop=drop, seed=pruning.seed, sample_id=ids)
                keep[rows] &= stays.numpy()
    sign = 1 if high_is_easy else -1
    if pruning.easy_threshold is not None:
        keep &= ~(easiness > sign * pruning.easy_threshold)
    if pruning.difficult_threshold is not None:
        keep &= ~(easiness <= sign * pruning.difficult_threshold)
    return keep


def strengths(count: int, strength: Strength, *, margin: Tensor | None, difficulty: Tensor | None) -> Tensor:
    """Return the strength of every sample (n,)."""
    constant = torch.full((count,), strength.eps)
    if strength.rule == "constant":
        return constant
    if margin is None and strength.rule in ("margin", "margin-if-difficult"):
        raise PumaError(f"strength rule {strength.rule!r} needs margins; give --margins FILE.")
    fitted = constant if margin is None else adaptive_strength(margin, strength.eps, gap=strength.gap)
    if strength.rule == "margin":
        return fitted
    if difficulty is None:
        raise PumaError(f"strength rule {strength.rule!r} needs classification difficulty; give --difficulty FILE.")
    easier = torch.full((count,), strength.weak_eps) if strength.rule == "weak-if-difficult" else fitted
    return torch.where(difficulty >= strength.difficult_from, easier, constant)


def check(pruning: Pruning, strength: Strength) -> None:
    """Raise one error that lists everything wrong with the settings."""
    shares = (pruning.easy, pruning.difficult, pruning.random)
    rules = {
        f"fractions must lie in [0, 1), got {shares}": all(0 <= share < 1 for share in shares),
        "easy and difficult fractions must add up to less than 1": pruning.easy + pruning.difficult < 1,
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


def _thresholds(pruning: Pruning) -> bool:
    return pruning.easy_threshold is not None or pruning.difficult_threshold is not None


def _groups(pool: Pool, within: str) -> list[NDArray[np.int64] | slice]:
    if within == "pool":
        return [slice(None)]
    column = pool.labels if within == "class" else pool.origin
    order = np.argsort(column, kind="stable")
    ends = np.cumsum(np.bincount(column))
    return [rows for rows in np.split(order, ends[:-1]) if len(rows)]


def _of(scores: Scores | None, pool: Pool, failed: Mask) -> Tensor | None:
    if scores is None:
        return None
    values = scores.of(pool)
    return torch.from_numpy(np.where(failed, 0, values).astype(np.float32) if failed.any() else values)
