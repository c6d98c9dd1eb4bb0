"""PUMA: margin-based data pruning and per-sample attack strength for robust image classifiers."""

from puma.attacks import bim, fgsm, pgd
from puma.errors import PumaError
from puma.margins import Margins, Status, measure_margins, measure_pool
from puma.pools import Pool

__all__ = [
    "Margins",
    "Pool",
    "PumaError",
    "Status",
    "bim",
    "fgsm",
    "measure_margins",
    "measure_pool",
    "pgd",
]
