"""PUMA: margin-based data pruning and per-sample attack strength for robust image classifiers."""

from puma.attacks import bim, fgsm, pgd
from puma.errors import PumaError
from puma.pools import Pool

__all__ = ["Pool", "PumaError", "bim", "fgsm", "pgd"]
