"""From scores to a plan: which samples to keep, how strongly to attack each."""

from puma.planning.plan import Plan, wiped_out
from puma.planning.rules import Drop, adaptive_strength, prune

__all__ = ["Drop", "Plan", "adaptive_strength", "prune", "wiped_out"]
