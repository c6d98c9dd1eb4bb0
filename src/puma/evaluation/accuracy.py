"""Accuracy of a model, clean and under attack: exact counts of samples."""

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from puma.errors import PumaError, unknown_name
from puma.evaluation.autoattack import load_autoattack, run_autoattack
from puma.evaluation.masking import MaskingCheck, check_masking
from puma.evaluation.metrics_file import Count, EvaluationMetrics, count_by_class, count_right
from puma.evaluation.under_attack import (
    ATTACKS,
    EvaluatedSamples,
    ResumeFile,
    choose_rows,
    find_right,
    find_robust,
    hash_evaluation,
)
from puma.models import frozen
from puma.pools import Pool

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
    pool_fingerprint: str = ""

    def counts(self) -> dict[str, Count]:
        """Counts over all samples, by attack."""
        return {name: count_right(flags) for name, flags in self.right.items()}

    def classes(self) -> dict[str, dict[str, Count]]:
        """Counts by attack, then by class."""
        return {name: count_by_class(flags, self.labels, self.class_names) for name, flags in self.right.items()}

    def to_metrics(self, **more: Any) -> EvaluationMetrics:
        """Return what a file says of it, with what else is known, such as the model's name."""
        return EvaluationMetrics(
            counts=self.counts(),
            classes=self.classes(),
            eps=self.eps,
            norm=self.config.norm,
            pool_fingerprint=self.pool_fingerprint,
            warnings=self.warnings,
            versions={
                "puma": version("puma-pruning"),
                "torch": version("torch"),
                "python": platform.python_version(),
            },
            more={
                "masking": None if self.masking is None else vars(self.masking),
                "seed": self.config.seed,
                "settings": asdict(self.config),
                **more,
            },
        )


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
    samples = EvaluatedSamples.from_tensors(model, images, labels, batch_size)
    with frozen(model):
        right, _ = _run_attacks(samples, eps, config, ResumeFile(), show=progress)
    return {name: count_right(flags).accuracy for name, flags in right.items()}


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
    rows = choose_rows(pool, config.max_samples, first=config.first)
    model = model.to(place)
    samples = EvaluatedSamples.from_pool(model, pool, rows, place, config.batch_size)
    settings: dict[str, Any] = {
        "eps": eps,
        "norm": config.norm,
        "seed": config.seed,
        "batch": config.batch_size,
        "model": source,
    }
    resume = ResumeFile()
    if state_path is not None:
        settings |= {"pool": pool.fingerprint, "rows": len(rows), "first": config.first}
        resume = ResumeFile.open(state_path, hash_evaluation(model, settings))
    masking = None
    with frozen(model):
        right, warnings = _run_attacks(samples, eps, config, resume, show=show)
        if config.masking_samples and set(config.attacks) - {"clean"}:
            masking = check_masking(
                samples,
                find_right(samples, resume),
                eps,
                norm=config.norm,
                seed=config.seed,
                max_samples=config.masking_samples,
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
        pool_fingerprint=pool.fingerprint,
    )


def _run_attacks(
    samples: EvaluatedSamples, eps: float, config: EvaluationConfig, resume: ResumeFile, *, show: bool
) -> tuple[dict[str, Tensor], list[str]]:
    clean = find_right(samples, resume, show=show)
    right: dict[str, Tensor] = {}
    warnings: list[str] = []
    for name in config.attacks:
        gradient = ATTACKS[name].gradient
        if gradient is not None:
            right[name] = find_robust(
                name, gradient, samples, clean, eps, resume, norm=config.norm, seed=config.seed, show=show
            )
        elif name == "autoattack":
            right[name], after = run_autoattack(
                samples, clean, eps, resume, norm=config.norm, seed=config.seed, show=show
            )
            by_square = int(after["fab-t"].sum()) - int(after["square"].sum())
            if by_square > SQUARE_TOLERATED * samples.count:
                warnings.append(
                    f"a sign of gradient masking: after AutoAttack's gradient attacks the black-box one breaks "
                    f"{by_square} more of {samples.count} samples; do not trust the robust accuracy"
                )
        else:
            right[name] = clean
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
