"""AutoAttack (Croce and Hein, 2020) by its authors' code, package ``pyautoattack``; resumable per attack and batch."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from puma.errors import PumaError
from puma.evaluation.gradient import predicted_right
from puma.evaluation.state import State
from puma.evaluation.subject import Subject
from puma.models import frozen
from puma.progress import progress_bar

NORM_NAMES = {"linf": "Linf", "l2": "L2"}
STANDARD = ("apgd-ce", "apgd-t", "fab-t", "square")
_TARGETS = 9


def load_autoattack() -> Any:
    """Import the package, or say how to install it."""
    try:
        import pyautoattack
    except ImportError as error:
        raise PumaError("AutoAttack needs the package pyautoattack: pip install 'puma-pruning[eval]'.") from error
    logging.getLogger("auto-attack").setLevel(logging.ERROR)
    return pyautoattack


def standard_attacks(num_classes: int) -> tuple[str, ...]:
    """Return the attacks of the standard version; the targeted DLR loss needs four classes."""
    return STANDARD if num_classes >= 4 else tuple(name for name in STANDARD if name != "apgd-t")


def right_under_autoattack(
    subject: Subject,
    before: Tensor,
    eps: float,
    state: State,
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
    device = subject.read(torch.zeros(min(1, subject.count), dtype=torch.int64))[1].device
    with frozen(subject.model):
        suite = package.AutoAttack(subject.model, norm=NORM_NAMES[norm], eps=eps, seed=seed, device=device)
        num_classes = _num_classes(subject)
        suite.apgd_targeted.n_target_classes = suite.fab.n_target_classes = min(_TARGETS, num_classes - 1)
        for name in standard_attacks(num_classes):
            flags = _right_after(name, suite, subject, flags, state, show=show)
            after[name] = flags
    return flags, after


def _right_after(name: str, suite: Any, subject: Subject, before: Tensor, state: State, *, show: bool) -> Tensor:
    entry = f"autoattack/{name}"
    flags, done = state.get(entry) or (before.clone(), 0)
    candidates = before.nonzero().squeeze(1)
    with progress_bar(name, len(candidates) - done, enabled=show) as advance:
        for positions, images, labels in subject.batches(candidates[done:]):
            flags[positions] = predicted_right(subject, run_attack(name, suite, images, labels), labels)
            done += len(positions)
            state.put(entry, flags, done)
            advance(len(positions))
    return flags


def run_attack(name: str, suite: Any, images: Tensor, labels: Tensor) -> Tensor:
    """Run one attack of a suite on a batch; the global random state is left as it was."""
    devices = [images.device] if images.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        return _PERTURB[name](suite, images.contiguous(), labels)


def _apgd_ce(suite: Any, images: Tensor, labels: Tensor) -> Tensor:
    suite.apgd.loss = "ce"
    suite.apgd.seed = suite.seed
    perturbed: Tensor = suite.apgd.perturb(images, labels)
    return perturbed


def _apgd_targeted(suite: Any, images: Tensor, labels: Tensor) -> Tensor:
    suite.apgd_targeted.seed = suite.seed
    perturbed: Tensor = suite.apgd_targeted.perturb(images, labels)
    return perturbed


def _fab_targeted(suite: Any, images: Tensor, labels: Tensor) -> Tensor:
    suite.fab.targeted = True
    suite.fab.n_restarts = 1
    suite.fab.seed = suite.seed
    perturbed: Tensor = suite.fab.perturb(images, labels)
    return perturbed


def _square(suite: Any, images: Tensor, labels: Tensor) -> Tensor:
    suite.square.seed = suite.seed
    perturbed: Tensor = suite.square.perturb(images, labels)
    return perturbed


_PERTURB: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "apgd-ce": _apgd_ce,
    "apgd-t": _apgd_targeted,
    "fab-t": _fab_targeted,
    "square": _square,
}


@torch.inference_mode()
def _num_classes(subject: Subject) -> int:
    images, _ = subject.read(torch.zeros(1, dtype=torch.int64))
    logits: Tensor = subject.model(images)
    return logits.shape[1]
