"""Gradient attacks with a signed strength per sample."""

from puma.attacks.norms import (
    NORMS,
    Norm,
    check_batch,
    check_count,
    check_label_range,
    check_labels_fit,
    check_number,
    check_radius,
    find_norm,
    per_sample,
    tell_precision,
    to_tensors,
)
from puma.attacks.pgd import LOSSES, bim, fgsm, pgd, run_pgd

__all__ = [
    "LOSSES",
    "NORMS",
    "Norm",
    "bim",
    "check_batch",
    "check_count",
    "check_label_range",
    "check_labels_fit",
    "check_number",
    "check_radius",
    "fgsm",
    "find_norm",
    "per_sample",
    "pgd",
    "run_pgd",
    "tell_precision",
    "to_tensors",
]
