"""How easy or difficult each sample is, and the table that every such score is kept in."""

from puma.scores.difficulty import (
    OUTCOMES,
    OutcomeRecord,
    count_recorders,
    count_visits,
    covers_steps,
    outcome_file,
    read_outcomes,
    score_dynamics,
    score_el2n,
)
from puma.scores.score_table import KINDS, Scores, align_rows, check_unique, open_named_scores, open_scores, save_scores

__all__ = [
    "KINDS",
    "OUTCOMES",
    "OutcomeRecord",
    "Scores",
    "align_rows",
    "check_unique",
    "count_recorders",
    "count_visits",
    "covers_steps",
    "open_named_scores",
    "open_scores",
    "outcome_file",
    "read_outcomes",
    "save_scores",
    "score_dynamics",
    "score_el2n",
]
