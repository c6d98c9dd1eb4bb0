"""Robust accuracy as the radius grows, and its picture."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from puma.errors import tell_missing
from puma.evaluation.metrics_file import Count, count_right
from puma.evaluation.under_attack import (
    EvaluatedSamples,
    GradientAttack,
    ResumeFile,
    choose_rows,
    find_right,
    find_robust,
)
from puma.models import frozen
from puma.pools import Pool
from puma.progress import progress_bar

MULTIPLES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
_ATTACK = GradientAttack("cw", 20)


def measure_curve(
    samples: EvaluatedSamples, radii: Sequence[float], *, norm: str = "linf", seed: int = 0, show: bool = False
) -> dict[float, Count]:
    """Count what stays right at growing radii; a sample broken at one radius counts as broken at all larger ones."""
    with frozen(samples.model), progress_bar("curve", len(radii), unit="radii", enabled=show) as advance:
        right = find_right(samples, ResumeFile())
        counts = {0.0: count_right(right)}
        for eps in sorted(radii):
            right = find_robust("", _ATTACK, samples, right, eps, ResumeFile(), norm=norm, seed=seed)
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
