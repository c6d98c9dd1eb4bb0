"""How easy or difficult each sample is, and the table that every such score is kept in."""

from puma.scores.score_table import KINDS, Scores, open_scores, save_scores

__all__ = ["KINDS", "Scores", "open_scores", "save_scores"]
