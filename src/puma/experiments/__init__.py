"""Every table and figure of the paper; run one with ``puma run NAME --preset smoke|small|paper``."""

from puma.errors import unknown_name
from puma.experiments.paper import EXPERIMENTS
from puma.experiments.spec import Experiment, PerceptronFigure

__all__ = ["EXPERIMENTS", "Experiment", "PerceptronFigure", "find_experiment"]


def find_experiment(name: str) -> Experiment | PerceptronFigure:
    """Look an experiment up; an unknown name raises."""
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, list(EXPERIMENTS))
    return EXPERIMENTS[name]
