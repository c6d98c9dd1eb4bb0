"""Experiments that the paper does not have, declared as its tables are, a file each."""

from puma.experiments.beyond import (
    fig_label_noise,
    fig_margin_accuracy,
    fig_plan_from,
    fig_prune_beyond,
    fig_prune_distance,
    gen_margin,
    tab_floor,
    tab_margin_correlation,
    tab_rivals,
)
from puma.experiments.spec import Experiment

__all__ = ["BEYOND"]

_MODULES = (
    tab_rivals,
    tab_floor,
    fig_plan_from,
    fig_prune_beyond,
    fig_prune_distance,
    fig_margin_accuracy,
    fig_label_noise,
    gen_margin,
    tab_margin_correlation,
)
BEYOND: dict[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in _MODULES}
