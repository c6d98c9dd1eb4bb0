"""Robust training: TRADES with a strength per sample, exact on resume, on one process or many."""

from puma.training.config import TrainConfig
from puma.training.recipes import RECIPES, recipe
from puma.training.trades import trades_loss

__all__ = ["RECIPES", "TrainConfig", "recipe", "trades_loss"]
