"""PUMA: margin-based data pruning and per-sample attack strength for robust image classifiers."""

from puma.attacks import bim, fgsm, pgd
from puma.errors import PumaError

__all__ = ["PumaError", "bim", "fgsm", "pgd"]
