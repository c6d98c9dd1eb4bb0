"""What a plan says about itself, in words."""

import math
from collections.abc import Mapping

import numpy as np

from puma.planning import Plan


def said(plan: Plan) -> dict[str, str]:
    """Return what the plan was made from; the text is free, so nothing about it can be relied on."""
    made_from: object = plan.made_from
    return {str(name): str(value) for name, value in made_from.items()} if isinstance(made_from, Mapping) else {}


def planned_eps(plan: Plan) -> float | None:
    """Return the largest strength that the plan was made for, if it says so."""
    return _number(said(plan).get("strength.eps")) or None


def plan_in_words(plan: Plan) -> str:
    """Say what a plan does to how many samples."""
    kept = plan.strength[plan.keep].numpy()
    told = said(plan)
    rules = []
    for name, words in (("easy", "the easiest"), ("difficult", "the most difficult"), ("random", "a random")):
        share = _number(told.get(f"pruning.{name}"))
        if share:
            rules.append(f"{words} {share:.4g} of the {told.get('pruning.within', 'pool')}")
    dropped = len(plan) - len(kept)
    words = f"keeps {len(kept):,} of {len(plan):,} and prunes {dropped:,}"
    words += f" ({' and '.join(rules)}, by {told.get('score', 'nothing')})" if rules else ""
    if len(kept):
        low, high = float(kept.min()), float(kept.max())
        negative, weaker = int((kept < 0).sum()), int((np.abs(kept) < np.abs(kept).max()).sum())
        same = f"attacks all with {high:.4g}"
        fitted = f"attacks with {low:.4g} to {high:.4g}, {weaker:,} less strongly, {negative:,} towards their label"
        words += f"; {same if low == high else fitted}"
    gap = _number(told.get("strength.gap"))
    return f"{words}; gap {gap:.4g}." if gap else f"{words}."


def _number(text: str | None) -> float:
    try:
        value = float(text) if text else 0.0
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0
