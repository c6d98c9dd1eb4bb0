"""Robust training: TRADES with a strength per sample, exact on resume, on one process or many."""

from puma.training.config import TrainConfig
from puma.training.losses import trades_loss
from puma.training.recipes import RECIPES, find_recipe
from puma.training.run import Run, train
from puma.training.run_folder import load_model

__all__ = ["RECIPES", "Run", "TrainConfig", "find_recipe", "load_model", "trades_loss", "train"]
