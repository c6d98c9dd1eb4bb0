"""Accuracy of a model, clean and under attack: exact counts of samples."""

import math
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from puma.attacks import check_radius, to_tensors
from puma.errors import PumaError, unknown_name
from puma.evaluation.masking import MaskingCheck, check_masking
from puma.evaluation.metrics_file import Count, EvaluationMetrics, count_by_class, count_right
from puma.evaluation.under_attack import (
    ATTACKS,
    EvaluatedSamples,
    ResumeFile,
    choose_rows,
    find_right,
    find_robust,
    load_autoattack,
    run_autoattack,
)
from puma.files import LINKS_KEY, Link, hash_json, write_links
from puma.models import fingerprint_model, frozen
from puma.pools import Pool, to_unit

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
    model_fingerprint: str = ""
    key: str = ""

    def counts(self) -> dict[str, Count]:
        """Counts over all samples, by attack."""
        return {name: count_right(flags) for name, flags in self.right.items()}

    def classes(self) -> dict[str, dict[str, Count]]:
        """Counts by attack, then by class."""
        return {name: count_by_class(flags, self.labels, self.class_names) for name, flags in self.right.items()}

    def to_metrics(self, *, model_path: str = "", links: Sequence[Link] = (), **more: Any) -> EvaluationMetrics:
        """Return what a file says of it, with what else is known, such as the model's name.

        ``model_path`` is where the model lies, where its name does not tell that.
        """
        made_from = (
            Link("model", "model", self.model_fingerprint, model_path or str(more.get("model", ""))),
            Link("pool", "pool", self.pool_fingerprint, str(more.get("pool", ""))),
            *links,
        )
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
                "key": self.key,
                LINKS_KEY: write_links(made_from),
                **more,
            },
        )


def evaluate(
    model: nn.Module,
    images: Tensor | NDArray[Any] | Pool,
    labels: Tensor | NDArray[Any] | Sequence[int] | None = None,
    eps: float | None = None,
    *,
    attacks: Sequence[str] = ("clean", "cw"),
    norm: str = "linf",
    batch_size: int = 256,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, float]:
    """Return the share of images that a model gets right, clean and under each attack of radius ``eps``.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))  # or yours: pixels in, logits out
        >>> images, labels = torch.rand(6, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2])
        >>> accuracy = puma.evaluate(model, images, labels, 8 / 255, attacks=("clean", "pgd20", "cw"))
        >>> list(accuracy), 0 <= accuracy["cw"] <= accuracy["clean"] <= 1
        (['clean', 'pgd20', 'cw'], True)
        >>> pool = puma.Pool.from_tensors(images, labels)
        >>> sorted(puma.evaluate(model, pool, eps=8 / 255))
        ['clean', 'cw']

    Args:
        model: maps images in [0, 1] to logits; evaluated in eval mode and left as it was.
        images: (n, ...) floats within [0, 1] or uint8, as a tensor or numpy array; or a pool, which has its labels.
        labels: whole numbers (n,).
        eps: radius, such as 8/255.
        attacks: any of ``clean``, ``cw`` (PGD-40 on the C&W loss), ``pgd20`` (PGD-20 on cross-entropy) and
            ``autoattack``. A sample counts as right under an attack only if it is right without one.
        norm: ``linf`` or ``l2``.
        batch_size: images at a time.
        seed: of the attacks' random starts.
        progress: show it.
    """
    if not isinstance(model, nn.Module):
        raise PumaError(f"model must be a torch.nn.Module, got {type(model).__name__}; puma.load_model loads one.")
    if eps is None:
        raise PumaError("say how strong the attacks are with eps, such as eps=8/255.")
    names = (attacks,) if isinstance(attacks, str) else tuple(attacks)
    config = EvaluationConfig(attacks=names, norm=norm, batch_size=batch_size, seed=seed, masking_samples=0)
    shape = images.image_shape if isinstance(images, Pool) else getattr(images, "shape", ())[1:]
    check_evaluation_config(config, eps, math.prod(shape) or None)
    if isinstance(images, Pool):
        if labels is not None:
            raise PumaError("a pool has labels of its own; leave labels out.")
        place = next((value.device for value in model.parameters()), torch.device("cpu"))
        samples = EvaluatedSamples.from_pool(model, images, choose_rows(images, 0), place, batch_size)
    else:
        pixels, targets = to_tensors(images, labels)
        pixels = to_unit(pixels) if pixels.dtype == torch.uint8 else pixels
        samples = EvaluatedSamples.from_tensors(model, pixels.float(), targets, batch_size)
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
    key: str | None = None,
    show: bool = False,
) -> Evaluation:
    """Evaluate on a pool; with a ``state_path``, an evaluation cut short goes on where it was.

    ``key`` is what ``identify_evaluation`` gives, for those who know it already.
    """
    check_evaluation_config(config, eps, math.prod(pool.image_shape))
    place = device or torch.device("cpu")
    rows = choose_rows(pool, config.max_samples, first=config.first)
    model = model.to(place)
    samples = EvaluatedSamples.from_pool(model, pool, rows, place, config.batch_size)
    fingerprint = fingerprint_model(model, pool.image_shape)
    key = key or _hash_settings(fingerprint, pool, eps, config)
    resume = ResumeFile() if state_path is None else ResumeFile.open(state_path, key)
    masking = None
    with frozen(model):
        odd = samples.warn_of_classes(pool.num_classes)
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
    warnings = odd + warnings
    return Evaluation(
        eps=eps,
        config=config,
        labels=torch.from_numpy(pool.labels[rows]),
        class_names=pool.class_names,
        right=right,
        masking=masking,
        warnings=tuple(warnings),
        pool_fingerprint=pool.fingerprint,
        model_fingerprint=fingerprint,
        key=key,
    )


def identify_evaluation(model: nn.Module, pool: Pool, eps: float, config: EvaluationConfig) -> str:
    """Hash what the counts of an evaluation depend on: model, pool and settings; not which attacks are asked for."""
    return _hash_settings(fingerprint_model(model, pool.image_shape), pool, eps, config)


def _hash_settings(fingerprint: str, pool: Pool, eps: float, config: EvaluationConfig) -> str:
    return hash_json(
        {
            "model": fingerprint,
            "pool": pool.fingerprint,
            "rows": len(choose_rows(pool, config.max_samples, first=config.first)),
            "first": config.first,
            "eps": eps,
            "norm": config.norm,
            "seed": config.seed,
            "batch": config.batch_size,
        }
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


def check_evaluation_config(config: EvaluationConfig, eps: float, pixels: int | None = None) -> None:
    """Raise on anything that cannot be evaluated, before anything is; ``pixels`` is how many an image has."""
    for name in config.attacks:
        if name not in ATTACKS:
            raise unknown_name("attack", name, list(ATTACKS))
    if not config.attacks:
        raise PumaError(f"no attack given; known: {', '.join(ATTACKS)}.")
    if not (eps > 0 and np.isfinite(eps)):
        raise PumaError(f"eps must be positive, got {eps}; for 8/255 write 0.03137.")
    if config.norm not in ("linf", "l2"):
        raise unknown_name("norm", config.norm, ["linf", "l2"])
    check_radius(eps, norm=config.norm, pixels=pixels)
    if config.batch_size < 1 or config.max_samples < 0 or config.masking_samples < 0:
        raise PumaError("batch_size must be positive, max_samples and masking_samples not negative.")
    if "autoattack" in config.attacks or config.masking_samples:
        load_autoattack()
