"""Gradient attacks with a signed strength per sample."""

from puma.attacks.norms import NORMS
from puma.attacks.pgd import LOSSES, bim, fgsm, pgd

__all__ = ["LOSSES", "NORMS", "bim", "fgsm", "pgd"]
