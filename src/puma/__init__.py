"""PUMA: margin-based data pruning and per-sample attack strength for robust image classifiers."""

from puma.attacks import bim, fgsm, pgd
from puma.errors import PumaError
from puma.evaluation import evaluate
from puma.planning import Plan, adaptive_strength, prune
from puma.pools import Pool
from puma.training import trades_loss

__all__ = ["Plan", "Pool", "PumaError", "adaptive_strength", "bim", "evaluate", "fgsm", "pgd", "prune", "trades_loss"]
