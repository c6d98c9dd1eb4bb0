"""AutoAttack (Croce and Hein, 2020) by its authors' code, package ``pyautoattack``; resumable per attack and batch."""

import logging
from typing import Any

import torch
from torch import Tensor

from puma.errors import tell_missing
from puma.evaluation.under_attack import EvaluatedSamples, ResumeFile, keep_robust
from puma.models import frozen

NORM_NAMES = {"linf": "Linf", "l2": "L2"}
STANDARD = ("apgd-ce", "apgd-t", "fab-t", "square")
_ATTRIBUTES = {"apgd-ce": "apgd", "apgd-t": "apgd_targeted", "fab-t": "fab", "square": "square"}
_TARGETS = 9  # of the standard version


def load_autoattack() -> Any:
    """Import the package, or say how to install it."""
    with tell_missing("eval"):
        import pyautoattack
    logging.getLogger("auto-attack").setLevel(logging.ERROR)
    return pyautoattack


def list_standard_attacks(num_classes: int) -> tuple[str, ...]:
    """Return the attacks of the standard version; the targeted DLR loss needs four classes."""
    return STANDARD if num_classes >= 4 else tuple(name for name in STANDARD if name != "apgd-t")


def run_autoattack(
    samples: EvaluatedSamples,
    before: Tensor,
    eps: float,
    resume: ResumeFile,
    *,
    norm: str = "linf",
    seed: int = 0,
    show: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return which samples stay right under all attacks, and the flags after each of them.

    Each attack runs on what the ones before it left, as in the original.
    """
    package = load_autoattack()
    after: dict[str, Tensor] = {}
    flags = before
    device = samples.read(torch.zeros(min(1, samples.count), dtype=torch.int64))[1].device
    with frozen(samples.model):
        suite = package.AutoAttack(samples.model, norm=NORM_NAMES[norm], eps=eps, seed=seed, device=device)
        num_classes = _count_classes(samples)
        suite.apgd_targeted.n_target_classes = suite.fab.n_target_classes = min(_TARGETS, num_classes - 1)
        for name in list_standard_attacks(num_classes):

            def perturb(_: Tensor, images: Tensor, labels: Tensor, name: str = name) -> Tensor:
                return run_one_attack(name, suite, images, labels)

            flags = keep_robust(f"autoattack/{name}", perturb, samples, flags, resume, show=show)
            after[name] = flags
    return flags, after


def run_one_attack(name: str, suite: Any, images: Tensor, labels: Tensor) -> Tensor:
    """Run one attack of a suite on a batch; the global random state is left as it was."""
    attack = getattr(suite, _ATTRIBUTES[name])
    attack.seed = suite.seed
    if name == "apgd-ce":
        attack.loss = "ce"
    if name == "fab-t":
        attack.targeted, attack.n_restarts = True, 1
    devices = [images.device] if images.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        perturbed: Tensor = attack.perturb(images.contiguous(), labels)
    return perturbed


@torch.inference_mode()
def _count_classes(samples: EvaluatedSamples) -> int:
    images, _ = samples.read(torch.zeros(1, dtype=torch.int64))
    logits: Tensor = samples.model(images)
    return logits.shape[1]
