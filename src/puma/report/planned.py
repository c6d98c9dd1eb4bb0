"""What a plan says about itself: its rule, and what it does in words."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from puma.planning import Plan


@dataclass(frozen=True)
class Rule:
    """What a plan prunes, as it says itself: shares, thresholds of its score, and how many it has no score for."""

    easy: float
    difficult: float
    random: float
    easy_threshold: float | None
    difficult_threshold: float | None
    score: str
    within: str
    unscored: int

    @property
    def easy_by_margin(self) -> bool:
        """Whether the highest margins go first."""
        return self.score == "margin" and bool(self.easy or self.easy_threshold is not None)

    @property
    def difficult_by_margin(self) -> bool:
        """Whether the lowest margins go first."""
        return self.score == "margin" and bool(self.difficult or self.difficult_threshold is not None)


def said(plan: Plan) -> dict[str, str]:
    """Return what the plan was made from; the text is free, so nothing about it can be relied on."""
    made_from: object = plan.made_from
    return {str(name): str(value) for name, value in made_from.items()} if isinstance(made_from, Mapping) else {}


def rule_of(plan: Plan) -> Rule:
    """Read a plan's rule; what it does not say counts as nothing."""
    told = said(plan)
    easy, difficult, random = (_number(told.get(f"pruning.{name}")) or 0.0 for name in ("easy", "difficult", "random"))
    return Rule(
        easy,
        difficult,
        random,
        _number(told.get("pruning.easy_threshold")),
        _number(told.get("pruning.difficult_threshold")),
        told.get("score", ""),
        told.get("pruning.within", "pool"),
        int(_number(told.get("unscored")) or 0),
    )


def planned_eps(plan: Plan) -> float | None:
    """Return the largest strength that the plan was made for, if it says so."""
    return _number(said(plan).get("strength.eps")) or None


def plan_in_words(plan: Plan) -> str:
    """Say what a plan does to how many samples."""
    kept = plan.strength[plan.keep].numpy()
    dropped = len(plan) - len(kept)
    rules = _pruned_in_words(rule_of(plan), len(plan), dropped)
    words = f"keeps {len(kept):,} of {len(plan):,} and prunes {dropped:,}"
    words += f" ({_listed(rules)})" if rules else ""
    if len(kept):
        low, high = float(kept.min()), float(kept.max())
        negative, weaker = int((kept < 0).sum()), int((np.abs(kept) < np.abs(kept).max()).sum())
        same = f"attacks all with {high:.4g}"
        fitted = f"attacks with {low:.4g} to {high:.4g}, {weaker:,} less strongly, {negative:,} towards their label"
        words += f"; {same if low == high else fitted}"
    gap = _number(said(plan).get("strength.gap"))
    return f"{words}; gap {gap:.4g}." if gap else f"{words}."


def _pruned_in_words(rule: Rule, count: int, dropped: int) -> list[str]:
    words = [f"{rule.unscored:,} without a score"] if rule.unscored else []
    whole = f"each {rule.within}" if rule.within in ("class", "origin") else "the pool"
    total = rule.easy + rule.difficult + rule.random
    cut = rule.easy_threshold is not None or rule.difficult_threshold is not None
    if rule.unscored:
        whole = "the others" if whole == "the pool" else f"the others in {whole}"
    elif dropped > (total + 0.01) * count and not cut:
        whole = f"those in {whole} that have a score"  # a plan of an earlier version, which does not say how many
    by = f" by {rule.score}" if rule.score else ""
    words += [f"the easiest {_percent(rule.easy)} of {whole}{by}"] if rule.easy else []
    words += [f"the most difficult {_percent(rule.difficult)} of {whole}{by}"] if rule.difficult else []
    words += [f"a random {_percent(rule.random)} of {whole}"] if rule.random else []
    high_is_easy, score = rule.score == "margin", rule.score or "score"
    if rule.easy_threshold is not None:
        words.append(f"{score} {'above' if high_is_easy else 'below'} {rule.easy_threshold:.4g}")
    if rule.difficult_threshold is not None:
        words.append(f"{score} {'at most' if high_is_easy else 'at least'} {rule.difficult_threshold:.4g}")
    return words


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None
