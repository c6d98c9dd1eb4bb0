"""Robust training: TRADES with a strength per sample, exact on resume, on one process or many."""

from puma.training.batches import load_samples
from puma.training.config import (
    AttackConfig,
    AugmentConfig,
    ComputeConfig,
    OnlineConfig,
    OptimizerConfig,
    SoftPruningConfig,
    TrainConfig,
    check_train_config,
    config_to_dict,
)
from puma.training.estimate import TrainingCost, estimate_cost, format_cost
from puma.training.losses import trades_loss
from puma.training.outcomes import score_difficulty, score_snapshots
from puma.training.recipes import RECIPES, find_recipe
from puma.training.run import Run, create_run, ensure_run, make_model, resume_run, start_run, train
from puma.training.run_folder import RunFolder, RunInputs, check_place_of_runs, find_init, load_model

__all__ = [
    "RECIPES",
    "AttackConfig",
    "AugmentConfig",
    "ComputeConfig",
    "OnlineConfig",
    "OptimizerConfig",
    "Run",
    "RunFolder",
    "RunInputs",
    "SoftPruningConfig",
    "TrainConfig",
    "TrainingCost",
    "check_place_of_runs",
    "check_train_config",
    "config_to_dict",
    "create_run",
    "ensure_run",
    "estimate_cost",
    "find_init",
    "find_recipe",
    "format_cost",
    "load_model",
    "load_samples",
    "make_model",
    "resume_run",
    "score_difficulty",
    "score_snapshots",
    "start_run",
    "trades_loss",
    "train",
]
