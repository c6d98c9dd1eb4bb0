"""From scores to a plan: which samples to keep, how strongly to attack each."""

from puma.planning.build import build_plan, make_plan
from puma.planning.plan import Plan, find_lost_classes
from puma.planning.prune import Drop, PruneRule, prune, prune_strata
from puma.planning.strength import StrengthRule, adaptive_strength

__all__ = [
    "Drop",
    "Plan",
    "PruneRule",
    "StrengthRule",
    "adaptive_strength",
    "build_plan",
    "find_lost_classes",
    "make_plan",
    "prune",
    "prune_strata",
]
