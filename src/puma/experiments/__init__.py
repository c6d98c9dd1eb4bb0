"""Every table and figure of the paper, a file each; run one with ``puma run NAME --preset smoke|small|paper``."""

from puma.errors import unknown_name
from puma.experiments import (
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
    tab_margin_difficult,
    tab_margin_model,
    tab_online,
    tab_pruning_strategies,
    tab_summary,
)
from puma.experiments.perceptron_figure import PerceptronFigure
from puma.experiments.spec import Experiment

_MODULES = (
    tab_summary, fig1, fig2, fig3, fig4, fig_pd, fig_pe, tab_double_pruning, fig_data_size, fig_models, tab_gap,
    tab_epsilon, tab_online, tab_margin_difficult, tab_pruning_strategies, tab_margin_model, fig_margin_distribution,
)  # fmt: skip
EXPERIMENTS: dict[str, Experiment | PerceptronFigure] = {
    module.EXPERIMENT.name: module.EXPERIMENT for module in _MODULES
}


def experiment_named(name: str) -> Experiment | PerceptronFigure:
    """Look an experiment up; an unknown name raises."""
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, list(EXPERIMENTS))
    return EXPERIMENTS[name]
