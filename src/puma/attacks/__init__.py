"""Gradient attacks with a signed strength per sample."""

from puma.attacks.losses import LOSSES
from puma.attacks.norms import NORMS
from puma.attacks.pgd import bim, fgsm, pgd

__all__ = ["LOSSES", "NORMS", "bim", "fgsm", "pgd"]
