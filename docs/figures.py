"""Draw the pictures of docs/concepts.md: ``python docs/figures.py`` (a few seconds).

A toy problem with two pixels per image, whose margins, plan and strengths are PUMA's own.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from torch import Tensor, nn

import puma

CLASSES = ("#0072b2", "#d55e00")  # told apart by everybody, and drawn with different marks
MARKS = ("o", "s")
GREY = "#666666"
EPS = 0.1
GAP = 0.04
PRUNED = 0.25


class Wave(nn.Module):
    """Two classes: above and below a wave across the square."""

    def forward(self, points: Tensor) -> Tensor:
        """Return logits for points (n, 2)."""
        height = points[:, 1] - wave(points[:, 0])
        return torch.stack([height, -height], dim=1)


def wave(across: Tensor) -> Tensor:
    """Height of the decision boundary."""
    return 0.5 + 0.13 * torch.sin(5.5 * across + 0.4)


@dataclass(frozen=True)
class Toy:
    """Points with labels, what PUMA measures of them, and what it plans."""

    points: Tensor
    labels: Tensor
    margin: Tensor
    boundary: Tensor
    keep: Tensor
    strength: Tensor


def toy() -> Toy:
    """Scatter points that are apart from each other over the square; a few near the boundary have the wrong label."""
    draws = torch.rand(4000, 2, generator=torch.Generator().manual_seed(5)) * 0.92 + 0.04
    chosen: list[Tensor] = []
    for point in draws:
        if len(chosen) < 44 and all(float((point - other).norm()) > 0.085 for other in chosen):
            chosen.append(point)
    points = torch.stack(chosen)
    height = Wave()(points)[:, 0]
    labels = (height < 0).long()
    near = (height.abs() < 0.15).nonzero().squeeze(1)[::4]
    labels[near] = 1 - labels[near]
    found = puma.measure_margins(Wave(), points, labels, method="tight", norm="l2", boundary=True)
    assert bool(found.crossed.all())
    assert found.boundary is not None
    return Toy(
        points,
        labels,
        found.margin,
        found.boundary,
        puma.prune(found.margin, PRUNED),
        puma.adaptive_strength(found.margin, EPS),
    )


def square(axes: Axes, title: str) -> None:
    """Draw the boundary and its two sides, without ticks: only distances matter."""
    across = torch.linspace(0, 1, 200)
    height = wave(across)
    axes.fill_between(across, height, 1, color=CLASSES[0], alpha=0.1, linewidth=0)
    axes.fill_between(across, 0, height, color=CLASSES[1], alpha=0.1, linewidth=0)
    axes.plot(across, height, color="black", linewidth=1.6)
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[], aspect="equal")
    axes.set_title(title, fontsize=11)


def marks(axes: Axes, points: Tensor, labels: Tensor, *, hollow: bool = False, faint: bool = False) -> None:
    """Draw samples: colour and mark say the label."""
    for label, (colour, mark) in enumerate(zip(CLASSES, MARKS, strict=True)):
        at = points[labels == label]
        axes.scatter(
            at[:, 0], at[:, 1], s=34, marker=mark, zorder=3, linewidths=1.3, alpha=0.45 if faint else 1.0,
            facecolors="white" if hollow else colour, edgecolors=colour,
        )  # fmt: skip


def arrow(axes: Axes, start: Tensor, end: Tensor, *, dashed: bool = False, colour: str = "black") -> None:
    """Draw a thin arrow."""
    shape = {"arrowstyle": "-|>,head_width=0.16,head_length=0.3", "color": colour, "linewidth": 1.1}
    shape |= {"linestyle": (0, (2, 1.5)) if dashed else "-", "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", place(end), place(start), arrowprops=shape, zorder=2)


def place(point: Tensor) -> tuple[float, float]:
    """Return a point (2,) as plain numbers."""
    return float(point[0]), float(point[1])


def draw_margins(toy: Toy) -> Figure:
    """What a signed margin is: the way to the boundary, out of the label's side or into it."""
    figure, (axes,) = canvas(1)
    square(axes, "")
    marks(axes, toy.points, toy.labels)
    for start, end, margin in zip(toy.points, toy.boundary, toy.margin, strict=True):
        arrow(axes, start, end, dashed=bool(margin < 0), colour=GREY if margin > 0 else "black")
    wrong, near = int(toy.margin.argmin()), int((toy.margin - 0.14).abs().argmin())
    for row, offset in ((int(toy.margin.argmax()), (9, 8)), (wrong, (-64, -16)), (near, (9, 4))):
        axes.annotate(
            f"margin {float(toy.margin[row]):+.2f}",
            place(toy.points[row]),
            xytext=offset,
            textcoords="offset points",
            fontsize=9.5,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5},
            zorder=4,
        )
    axes.text(0.985, 0.975, "the model says: blue circle", va="top", ha="right", fontsize=10, color=CLASSES[0])
    axes.text(0.985, 0.025, "the model says: orange square", ha="right", fontsize=10, color=CLASSES[1])
    return figure


def draw_pruning(toy: Toy) -> Figure:
    """What pruning easy samples leaves."""
    figure, (before, after) = canvas(2)
    square(before, f"{len(toy.keep)} samples")
    marks(before, toy.points, toy.labels)
    square(after, f"{int(toy.keep.sum())} kept: those with the lowest margins")
    marks(after, toy.points[toy.keep], toy.labels[toy.keep])
    marks(after, toy.points[~toy.keep], toy.labels[~toy.keep], hollow=True, faint=True)
    return figure


def draw_balls(toy: Toy) -> Figure:
    """The ball in which each sample is moved: one radius for all, and each its own."""
    figure, (fixed, own) = canvas(2)
    square(fixed, "adversarial training: one radius for all")
    marks(fixed, toy.points, toy.labels)
    for point, label in zip(toy.points, toy.labels, strict=True):
        ball(fixed, point, EPS, CLASSES[int(label)])
    square(own, "PUMA: as far as the margin allows")
    marks(own, toy.points[toy.keep], toy.labels[toy.keep])
    marks(own, toy.points[~toy.keep], toy.labels[~toy.keep], hollow=True, faint=True)
    for row in toy.keep.nonzero().squeeze(1).tolist():
        strength = float(toy.strength[row])
        ball(own, toy.points[row], abs(strength), CLASSES[int(toy.labels[row])], dashed=strength < 0)
        if strength < 0:
            way = toy.boundary[row] - toy.points[row]
            arrow(own, toy.points[row], toy.points[row] + way / way.norm() * abs(strength))
    return figure


def ball(axes: Axes, centre: Tensor, radius: float, colour: str, *, dashed: bool = False) -> None:
    """Draw a ball; a dashed one is for moving towards the label."""
    axes.add_patch(Circle(place(centre), radius, facecolor=colour, alpha=0.13, linewidth=0))
    axes.add_patch(
        Circle(place(centre), radius, fill=False, edgecolor=colour, linewidth=1.2, linestyle="--" if dashed else "-")
    )


def draw_strength(toy: Toy) -> Figure:
    """Strength as a function of the margin, over how many samples there are."""
    figure = Figure(figsize=(7.4, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    margin = torch.linspace(-0.25, 0.55, 801)
    threshold = float(toy.margin[~toy.keep].min())
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.axvspan(threshold, 0.55, color=GREY, alpha=0.13, linewidth=0)
    axes.plot(margin, puma.adaptive_strength(margin, EPS), color=CLASSES[0], linewidth=2.4, label="gap 0 (Eq. 2)")
    axes.plot(
        margin,
        puma.adaptive_strength(margin, EPS, gap=GAP),
        "--",
        color=CLASSES[1],
        linewidth=2,
        label="with a gap (Eq. 3)",
    )
    axes.plot(
        toy.margin, torch.full_like(toy.margin, -0.143), "|", color="black", markersize=9, label="the toy's samples"
    )
    axes.set(xlim=(-0.25, 0.55), ylim=(-0.155, 0.145), xlabel="margin", ylabel="strength in training")
    axes.set_xticks([-EPS, 0, EPS, threshold], ["-eps", "0", "eps", "easiest\nquarter from here"])
    axes.set_yticks([-EPS, 0, EPS], ["-eps", "0", "eps"])
    for across, up, text in (
        (-0.24, 0.004, "wrong: moved towards\nits label, at most eps"),
        (0.115, 0.004, "right and close: attacked\nno farther than its margin"),
        (0.115, 0.108, "right and far: attacked with eps"),
        ((threshold + 0.55) / 2, 0.05, "pruned"),
    ):
        axes.text(across, up, text, fontsize=9.5, va="bottom", ha="center" if text == "pruned" else "left")
    axes.legend(loc="upper left", fontsize=9.5, framealpha=1)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def canvas(panels: int) -> tuple[Figure, list[Axes]]:
    """Return a figure with square panels side by side."""
    figure = Figure(figsize=(4.7 * panels, 4.7 if panels == 1 else 5.0), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])


def main(out: Path) -> None:
    """Write every picture."""
    out.mkdir(parents=True, exist_ok=True)
    drawn = toy()
    draws = {"margins": draw_margins, "pruning": draw_pruning, "balls": draw_balls, "strength": draw_strength}
    for name, draw in draws.items():
        draw(drawn).savefig(out / f"{name}.png", dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images" / "concepts")
