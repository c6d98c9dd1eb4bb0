"""Accuracy of a model, clean and under attack: exact counts of samples."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from puma.errors import PumaError, unknown_name
from puma.evaluation.auto import load_autoattack, right_under_autoattack
from puma.evaluation.counts import Count, count, count_by_class
from puma.evaluation.gradient import GRADIENT_ATTACKS, clean_right, right_under
from puma.evaluation.masking import MaskingCheck, check_masking
from puma.evaluation.state import State, key_of
from puma.evaluation.subject import Subject, chosen_rows, subject_of_pool, subject_of_tensors
from puma.models import frozen
from puma.pools import Pool

ATTACKS = ("clean", *GRADIENT_ATTACKS, "autoattack")
SQUARE_TOLERATED = 0.002  # of all samples: the threshold of AutoAttack's authors


@dataclass(frozen=True)
class EvaluationConfig:
    """What an evaluation does.

    Attributes:
        attacks: any of clean, cw (PGD-40 on the C&W loss), pgd20 (PGD-20 on cross-entropy), autoattack.
        norm: ``linf`` or ``l2``.
        batch_size: images at a time.
        seed: of the attacks' random starts.
        max_samples: evaluate so many only, drawn at random but always the same; 0 takes all.
        first: take the first ones of the pool instead, as many papers do.
        masking_samples: so many right samples are used to look for signs of gradient masking; 0 does not look.
    """

    attacks: tuple[str, ...] = ("clean", "cw")
    norm: str = "linf"
    batch_size: int = 256
    seed: int = 0
    max_samples: int = 0
    first: bool = False
    masking_samples: int = 128


@dataclass(frozen=True)
class Evaluation:
    """Which samples are right under which attack, and what a reader should know."""

    eps: float
    config: EvaluationConfig
    labels: Tensor
    class_names: tuple[str, ...]
    right: dict[str, Tensor]
    masking: MaskingCheck | None = None
    warnings: tuple[str, ...] = ()
    about: dict[str, str] = field(default_factory=dict)

    def counts(self) -> dict[str, Count]:
        """Counts over all samples, by attack."""
        return {name: count(flags) for name, flags in self.right.items()}

    def to_json(self) -> dict[str, Any]:
        """Return everything but the flags as plain values."""
        results = {}
        for name, flags in self.right.items():
            by_class = count_by_class(flags, self.labels, self.class_names)
            results[name] = {**_plain(count(flags)), "classes": {key: _plain(value) for key, value in by_class.items()}}
        return {
            "eps": self.eps,
            "norm": self.config.norm,
            "samples": len(self.labels),
            "results": results,
            "masking": None if self.masking is None else vars(self.masking),
            "warnings": list(self.warnings),
            "seed": self.config.seed,
            **self.about,
        }


def evaluate(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    eps: float,
    *,
    attacks: Sequence[str] = ("clean", "cw"),
    norm: str = "linf",
    batch_size: int = 256,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, float]:
    """Return the share of images that a model gets right, clean and under each attack of radius ``eps``.

    Args:
        model: maps images in [0, 1] to logits; evaluated in eval mode and left as it was.
        images: (n, ...) within [0, 1].
        labels: int64 (n,).
        eps: radius.
        attacks: any of ``clean``, ``cw`` (PGD-40 on the C&W loss), ``pgd20`` (PGD-20 on cross-entropy) and
            ``autoattack``. A sample counts as right under an attack only if it is right without one.
        norm: ``linf`` or ``l2``.
        batch_size: images at a time.
        seed: of the attacks' random starts.
        progress: show it.
    """
    config = EvaluationConfig(attacks=tuple(attacks), norm=norm, batch_size=batch_size, seed=seed, masking_samples=0)
    check_config(config, eps)
    subject = subject_of_tensors(model, images, labels, batch_size)
    with frozen(model):
        right, _ = _attack_all(subject, eps, config, State(), show=progress)
    return {name: count(flags).accuracy for name, flags in right.items()}


def evaluate_pool(
    model: nn.Module,
    pool: Pool,
    eps: float,
    config: EvaluationConfig,
    *,
    device: torch.device | None = None,
    state_path: Path | None = None,
    source: str = "",
    show: bool = False,
) -> Evaluation:
    """Evaluate on a pool; with a ``state_path``, an evaluation cut short goes on where it was.

    ``source`` says where the model is from: two models with the same weights may still compute differently.
    """
    check_config(config, eps)
    place = device or torch.device("cpu")
    rows = chosen_rows(pool, config.max_samples, first=config.first)
    model = model.to(place)
    subject = subject_of_pool(model, pool, rows, place, config.batch_size)
    settings: dict[str, Any] = {
        "eps": eps,
        "norm": config.norm,
        "seed": config.seed,
        "batch": config.batch_size,
        "model": source,
    }
    state = State()
    if state_path is not None:
        settings |= {"pool": pool.fingerprint, "rows": len(rows), "first": config.first}
        state = State.open(state_path, key_of(model, settings))
    masking = None
    with frozen(model):
        right, warnings = _attack_all(subject, eps, config, state, show=show)
        if config.masking_samples and set(config.attacks) - {"clean"}:
            clean = clean_right(subject, state)
            masking = check_masking(
                subject, clean, eps, norm=config.norm, seed=config.seed, samples=config.masking_samples
            )
            warnings += masking.warnings()
    return Evaluation(
        eps=eps,
        config=config,
        labels=torch.from_numpy(pool.labels[rows]),
        class_names=pool.class_names,
        right=right,
        masking=masking,
        warnings=tuple(warnings),
        about={
            "pool_fingerprint": pool.fingerprint,
            "torch": version("torch"),
            "puma": version("puma-pruning"),
            "python": platform.python_version(),
        },
    )


def _attack_all(
    subject: Subject, eps: float, config: EvaluationConfig, state: State, *, show: bool
) -> tuple[dict[str, Tensor], list[str]]:
    clean = clean_right(subject, state, show=show)
    right: dict[str, Tensor] = {}
    warnings: list[str] = []
    for name in config.attacks:
        if name == "clean":
            right[name] = clean
        elif name == "autoattack":
            right[name], after = right_under_autoattack(
                subject, clean, eps, state, norm=config.norm, seed=config.seed, show=show
            )
            by_square = int(after["fab-t"].sum()) - int(after["square"].sum())
            if by_square > SQUARE_TOLERATED * subject.count:
                warnings.append(
                    f"a sign of gradient masking: after AutoAttack's gradient attacks the black-box one breaks "
                    f"{by_square} more of {subject.count} samples; do not trust the robust accuracy"
                )
        else:
            right[name] = right_under(
                name,
                GRADIENT_ATTACKS[name],
                subject,
                clean,
                eps,
                state,
                norm=config.norm,
                seed=config.seed,
                show=show,
            )
    return right, warnings


def check_config(config: EvaluationConfig, eps: float) -> None:
    """Raise on anything that cannot be evaluated, before anything is."""
    for name in config.attacks:
        if name not in ATTACKS:
            raise unknown_name("attack", name, list(ATTACKS))
    if not config.attacks:
        raise PumaError(f"no attack given; known: {', '.join(ATTACKS)}.")
    if not (eps > 0 and np.isfinite(eps)):
        raise PumaError(f"eps must be positive, got {eps}; for 8/255 write 0.03137.")
    if config.norm not in ("linf", "l2"):
        raise unknown_name("norm", config.norm, ["linf", "l2"])
    if config.batch_size < 1 or config.max_samples < 0 or config.masking_samples < 0:
        raise PumaError("batch_size must be positive, max_samples and masking_samples not negative.")
    if "autoattack" in config.attacks or config.masking_samples:
        load_autoattack()


def _plain(counted: Count) -> dict[str, Any]:
    low, high = counted.interval
    return {
        "right": counted.right,
        "total": counted.total,
        "accuracy": counted.accuracy if counted.total else None,
        "interval95": [low, high],
    }
