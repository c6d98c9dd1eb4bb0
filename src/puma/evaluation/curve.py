"""Robust accuracy as the radius grows, and its picture."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from puma.evaluation.counts import Count, count
from puma.evaluation.gradient import GradientAttack, clean_right, right_under
from puma.evaluation.state import State
from puma.evaluation.subject import Subject, chosen_rows, subject_of_pool
from puma.models import frozen
from puma.pools import Pool
from puma.progress import progress_bar

MULTIPLES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
_ATTACK = GradientAttack("cw", 20)


def accuracy_curve(
    subject: Subject, radii: Sequence[float], *, norm: str = "linf", seed: int = 0, show: bool = False
) -> dict[float, Count]:
    """Count what stays right at growing radii; a sample broken at one radius counts as broken at all larger ones."""
    with frozen(subject.model), progress_bar("curve", len(radii), unit="radii", enabled=show) as advance:
        right = clean_right(subject, State())
        counts = {0.0: count(right)}
        for eps in sorted(radii):
            right = right_under("", _ATTACK, subject, right, eps, State(), norm=norm, seed=seed)
            counts[eps] = count(right)
            advance(1)
    return counts


def curve_of_pool(
    model: nn.Module,
    pool: Pool,
    eps: float,
    *,
    samples: int,
    norm: str = "linf",
    device: torch.device | None = None,
    batch_size: int = 256,
    seed: int = 0,
    show: bool = False,
) -> dict[float, Count]:
    """Measure the curve on ``samples`` of a pool, from 0 to eight times ``eps``."""
    place = device or torch.device("cpu")
    rows = chosen_rows(pool, samples)
    subject = subject_of_pool(model.to(place), pool, rows, place, batch_size)
    return accuracy_curve(subject, [eps * factor for factor in MULTIPLES], norm=norm, seed=seed, show=show)


def draw_curve(counts: dict[float, Count], eps: float, path: Path, *, norm: str = "linf") -> Path:
    """Draw the curve with its 95 % band and the radius of the evaluation marked."""
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
