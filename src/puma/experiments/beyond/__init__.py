"""Experiments that the paper does not have, declared as its tables are, a file each."""

from puma.experiments.beyond import gen_margin
from puma.experiments.spec import Experiment

__all__ = ["BEYOND"]

BEYOND: dict[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in (gen_margin,)}
