"""Signs that gradients mislead the attacks, so that a robust accuracy is not to be believed (Athalye et al., 2018).

The curve of robust accuracy over growing radii is one of them: it must fall to nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Generator, Tensor, nn

from puma.attacks import fgsm, find_norm
from puma.errors import tell_missing
from puma.evaluation.metrics_file import Count, count_right
from puma.evaluation.under_attack import (
    NORM_NAMES,
    EvaluatedSamples,
    GradientAttack,
    ResumeFile,
    choose_rows,
    find_right,
    find_robust,
    judge_batch,
    load_autoattack,
    run_one_attack,
)
from puma.models import frozen
from puma.pools import Pool
from puma.progress import progress_bar

LARGE = {"linf": 0.5, "l2": 20.0}  # at 0.5 every image can become grey; 20 is about as far in L2 for 32 px
_DRAWS = 20  # random points per sample: a ball that gradients describe well is not left by so few
_QUERIES = 300  # of Square: enough to beat masked gradients, a seventeenth of the standard's cost
_TOLERATED = 0.02  # share of samples by which attacks may differ by their random starts
MULTIPLES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)  # of eps: dense around it, and far beyond
_CURVE_ATTACK = GradientAttack("cw", 20)  # half the steps of the accuracy's, since it runs at ten radii
_LARGE_LEFT = 0.05  # share of samples that a net of constant logits may keep


@dataclass(frozen=True)
class MaskingCheck:
    """How many of ``samples`` (all right when clean) stay right: each attack alone, at eps and at a large eps."""

    samples: int
    gradient: int
    single_step: int
    gradient_and_random: int
    gradient_and_square: int | None
    large_eps: float
    large: int

    def warnings(self) -> list[str]:
        """Say what is suspicious; nothing if nothing is."""
        tolerated = max(1.0, _TOLERATED * self.samples)
        found = []
        if self.gradient - self.gradient_and_random > tolerated:
            found.append(
                f"random points of the ball break {self.gradient - self.gradient_and_random} of {self.samples} samples "
                "that the gradient attack does not"
            )
        if self.gradient_and_square is not None and self.gradient - self.gradient_and_square > tolerated:
            found.append(
                f"a black-box attack (Square) breaks {self.gradient - self.gradient_and_square} of {self.samples} "
                "samples that the gradient attack does not"
            )
        if self.gradient - self.single_step > tolerated:
            found.append(
                f"a single step leaves {self.single_step} of {self.samples} samples, many small ones {self.gradient}"
            )
        if self.large > max(1.0, _LARGE_LEFT * self.samples):
            found.append(
                f"at eps {self.large_eps:g}, where every image can be changed at will, {self.large} of {self.samples} "
                "samples stay right"
            )
        return [f"a sign of gradient masking: {sentence}; do not trust the robust accuracy" for sentence in found]


def check_masking(
    samples: EvaluatedSamples,
    clean: Tensor,
    eps: float,
    *,
    norm: str = "linf",
    seed: int = 0,
    max_samples: int = 128,
    black_box: bool = True,
) -> MaskingCheck:
    """Attack the first ``max_samples`` right samples in several ways that agree where gradients can be trusted."""
    chosen = torch.zeros_like(clean)
    chosen[clean.nonzero().squeeze(1)[:max_samples]] = True
    attack = GradientAttack("cw", 20)
    gradient = find_robust("", attack, samples, chosen, eps, ResumeFile(), norm=norm, seed=seed)
    large_eps = max(LARGE[norm], eps)
    large = find_robust("", attack, samples, chosen, large_eps, ResumeFile(), norm=norm, seed=seed)
    random, square = gradient.clone(), gradient.clone()
    suite = None
    if black_box:
        suite = load_autoattack().AutoAttack(samples.model, norm=NORM_NAMES[norm], eps=eps, seed=seed)
        suite.square.n_queries = _QUERIES
    generator = Generator().manual_seed(seed)
    single = chosen.clone()
    for positions, images, labels in samples.batches(chosen.nonzero().squeeze(1)):
        single[positions] = judge_batch(samples, fgsm(samples.model, images, labels, eps, norm=norm), labels)
    for positions, images, labels in samples.batches(gradient.nonzero().squeeze(1)):
        radius = torch.full((len(images),), eps)
        for _ in range(_DRAWS):
            noise = find_norm(norm).random_start(images.cpu(), radius, generator)
            noise = noise.sign() * eps if norm == "linf" else noise
            moved = (images + noise.to(images.device)).clamp(0, 1)
            random[positions] &= judge_batch(samples, moved, labels)
        if suite is not None:
            suite.square.device = images.device
            square[positions] &= judge_batch(samples, run_one_attack("square", suite, images, labels), labels)
    return MaskingCheck(
        samples=int(chosen.sum()),
        gradient=int(gradient.sum()),
        single_step=int(single.sum()),
        gradient_and_random=int(random.sum()),
        gradient_and_square=int(square.sum()) if suite is not None else None,
        large_eps=large_eps,
        large=int(large.sum()),
    )


def measure_curve(
    samples: EvaluatedSamples, radii: Sequence[float], *, norm: str = "linf", seed: int = 0, show: bool = False
) -> dict[float, Count]:
    """Count what stays right at growing radii; a sample broken at one radius counts as broken at all larger ones."""
    with frozen(samples.model), progress_bar("curve", len(radii), unit="radii", enabled=show) as advance:
        right = find_right(samples, ResumeFile())
        counts = {0.0: count_right(right)}
        for eps in sorted(radii):
            right = find_robust("", _CURVE_ATTACK, samples, right, eps, ResumeFile(), norm=norm, seed=seed)
            counts[eps] = count_right(right)
            advance(1)
    return counts


def measure_pool_curve(
    model: nn.Module,
    pool: Pool,
    eps: float,
    *,
    max_samples: int,
    norm: str = "linf",
    device: torch.device | None = None,
    batch_size: int = 256,
    seed: int = 0,
    show: bool = False,
) -> dict[float, Count]:
    """Measure the curve on ``max_samples`` of a pool, from 0 to eight times ``eps``."""
    place = device or torch.device("cpu")
    rows = choose_rows(pool, max_samples)
    samples = EvaluatedSamples.from_pool(model.to(place), pool, rows, place, batch_size)
    return measure_curve(samples, [eps * factor for factor in MULTIPLES], norm=norm, seed=seed, show=show)


def draw_curve(counts: dict[float, Count], eps: float, path: Path, *, norm: str = "linf") -> Path:
    """Draw the curve with its 95 % band and the radius of the evaluation marked."""
    with tell_missing("report"):
        from matplotlib.figure import Figure

    radii = sorted(counts)
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    low, high = zip(*(counts[radius].interval for radius in radii), strict=True)
    axes.fill_between(radii, low, high, alpha=0.2, linewidth=0)
    axes.plot(radii, [counts[radius].accuracy for radius in radii], marker="o", markersize=4)
    axes.axvline(eps, color="grey", linestyle="--", linewidth=1)
    axes.annotate(f"eps = {eps:.4g}", (eps, 1.0), xytext=(4, -4), textcoords="offset points", va="top", color="grey")
    axes.set(
        xlabel=f"radius ({'L-infinity' if norm == 'linf' else 'L2'}, pixels in [0, 1])",
        ylabel="accuracy under PGD-20 on the C&W loss",
        ylim=(0, 1),
        xlim=(0, max(radii)),
        title=f"{counts[radii[0]].total:,} images, 95 % interval",
    )
    axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path
