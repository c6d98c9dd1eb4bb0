"""Signed distances of samples to the decision boundary, with a status for each."""

from puma.margins.compare import (
    compare_margins,
    draw_joint_margins,
    draw_scatter,
    format_comparisons,
    save_comparisons,
)
from puma.margins.distribution import (
    count_histograms,
    describe_margins,
    draw_in_terminal,
    draw_picture,
    save_histograms,
    summarise_margins,
    summarise_values,
    warn_of_model,
)
from puma.margins.margins_file import Margins, is_margins, read_margin_values, read_margins, read_margins_footer
from puma.margins.measure_margins import measure_margins
from puma.margins.measuring_cost import estimate_measuring, estimate_pool_cost, format_measuring
from puma.margins.pool_driver import describe_task, measure_pool, measure_to_file, predict_instead
from puma.margins.predict_select import PredictConfig
from puma.margins.search import METHODS, Status, find_method
from puma.margins.suspects import Suspects, find_suspects, rank_quality, write_suspects

__all__ = [
    "METHODS",
    "Margins",
    "PredictConfig",
    "Status",
    "Suspects",
    "compare_margins",
    "count_histograms",
    "describe_margins",
    "describe_task",
    "draw_in_terminal",
    "draw_joint_margins",
    "draw_picture",
    "draw_scatter",
    "estimate_measuring",
    "estimate_pool_cost",
    "find_method",
    "find_suspects",
    "format_comparisons",
    "format_measuring",
    "is_margins",
    "measure_margins",
    "measure_pool",
    "measure_to_file",
    "predict_instead",
    "rank_quality",
    "read_margin_values",
    "read_margins",
    "read_margins_footer",
    "save_comparisons",
    "save_histograms",
    "summarise_margins",
    "summarise_values",
    "warn_of_model",
    "write_suspects",
]
