"""The declarations of the paper's tables and figures, a file each; it opens with its command and what to expect."""

from puma.experiments.paper import (
    fig1,
    fig2,
    fig3,
    fig4,
    fig_data_size,
    fig_margin_distribution,
    fig_models,
    fig_pd,
    fig_pe,
    tab_double_pruning,
    tab_epsilon,
    tab_gap,
    tab_imagenet,
    tab_margin_difficult,
    tab_margin_model,
    tab_online,
    tab_pruning_strategies,
    tab_summary,
)
from puma.experiments.spec import Experiment, PerceptronFigure

__all__ = ["PAPER"]

_MODULES = (
    tab_summary, fig1, fig2, fig3, fig4, fig_pd, fig_pe, tab_double_pruning, fig_data_size, fig_models, tab_gap,
    tab_epsilon, tab_online, tab_margin_difficult, tab_pruning_strategies, tab_margin_model, fig_margin_distribution,
    tab_imagenet,
)  # fmt: skip
PAPER: dict[str, Experiment | PerceptronFigure] = {module.EXPERIMENT.name: module.EXPERIMENT for module in _MODULES}
