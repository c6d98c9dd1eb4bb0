"""How easy or difficult each sample is, and the table that every such score is kept in."""

from puma.scores.table import KINDS, Scores

__all__ = ["KINDS", "Scores"]
