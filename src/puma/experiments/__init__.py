"""Every table and figure of the paper, and some beyond it; run one: ``puma run NAME --preset smoke|small|paper``."""

from puma.errors import unknown_name
from puma.experiments.beyond import BEYOND
from puma.experiments.paper import PAPER
from puma.experiments.spec import Experiment, PerceptronFigure

__all__ = ["BEYOND", "EXPERIMENTS", "PAPER", "Experiment", "PerceptronFigure", "find_experiment"]

EXPERIMENTS: dict[str, Experiment | PerceptronFigure] = {**PAPER, **BEYOND}


def find_experiment(name: str) -> Experiment | PerceptronFigure:
    """Look an experiment up; an unknown name raises."""
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, list(EXPERIMENTS))
    return EXPERIMENTS[name]
