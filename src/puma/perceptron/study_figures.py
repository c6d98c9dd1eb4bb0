"""Drawing: points with error bars over seeds, theory as lines of the same colour, on logarithmic axes."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from puma.drawing import MARKERS, SEQUENCE
from puma.perceptron.problem import Array
from puma.perceptron.study_design import FigureLine, FigurePanel, StudyFigure, StudyResults, remove_attack
from puma.perceptron.theory import crossover_alpha

_NONE = "#000000"  # no pruning is black; the rest is a sequence
STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.labelsize": 9.5,
    "axes.titlesize": 9.5,
    "legend.fontsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "puma",
}
_TICKS = (0.5, 1, 2, 4, 8, 16, 32, 64)  # of the logarithmic axis of alpha
_KEEPS_OF_CROSSOVER = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # points of its line


def draw_study_figure(figure: StudyFigure, results: StudyResults, folder: Path) -> list[Path]:
    """Draw a figure and write it as PNG and SVG."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        canvas = draw_crossover(figure) if figure.name == "crossover" else draw_panels(figure, results)
        FigureCanvasAgg(canvas)
        paths = [folder / f"{figure.name}.png", folder / f"{figure.name}.svg"]
        canvas.savefig(paths[0], dpi=150, metadata={"Software": None})
        canvas.savefig(paths[1], metadata={"Date": None})
    return paths


def draw_panels(figure: StudyFigure, results: StudyResults) -> Canvas:
    """Draw the panels of a figure side by side, with one legend below them."""
    canvas = Canvas(figsize=(7.2, 4.0))
    axes = canvas.subplots(1, len(figure.panels), squeeze=False)[0]
    labels: dict[str, Line2D] = {}
    for panel, axis in zip(figure.panels, axes, strict=True):
        for position, line in enumerate(panel.series):
            handle = _draw_line(axis, panel, line, position, results)
            labels.setdefault(line_label(figure, panel, line), handle)
        _decorate_axis(axis, panel, results)
    if figure.panels[0].kind == "ratio":
        low = min(axis.get_ylim()[0] for axis in axes)
        high = max(axis.get_ylim()[1] for axis in axes)
        for axis in axes:
            axis.set_ylim(low, high)
    if any(results.theory(line) for panel in figure.panels for line in panel.series):
        labels["theory"] = Line2D([], [], color="0.4", lw=1.2)
    canvas.suptitle(figure.title, fontsize=10.5)
    canvas.tight_layout(rect=(0, 0.14 if len(labels) > 6 else 0.08, 1, 1.0), w_pad=2.0)
    columns = len(labels) if len(labels) <= 6 else (len(labels) + 1) // 2
    canvas.legend(
        labels.values(), labels.keys(), loc="lower center", ncol=columns, frameon=False,
        columnspacing=1.3, handletextpad=0.4, bbox_to_anchor=(0.5, 0.0),
    )  # fmt: skip
    return canvas


def line_label(figure: StudyFigure, panel: FigurePanel, line: FigureLine) -> str:
    """Return the text of a line in the legend."""
    if panel.kind == "ratio":
        return f"$\\varepsilon = {line.eps:g}$"
    if line.pruning.strategy == "none":
        return "none pruned"
    if figure.name.startswith("probe"):
        return f"probe at {line.probe.angle:g}°"
    return f"{100 * line.pruning.keep:g} % kept"


def _draw_line(axis: Axes, panel: FigurePanel, line: FigureLine, position: int, results: StudyResults) -> Line2D:
    pruned = line.pruning.strategy != "none"
    shown = position - 1 if pruned else 2 * position
    colour = SEQUENCE[shown % len(SEQUENCE)] if pruned or panel.kind == "ratio" else _NONE
    marker = MARKERS[position % len(MARKERS)]
    _draw_theory(axis, panel, line, colour, results)
    alphas, means, bars = [], [], []
    for alpha in sorted(results.study.alphas):
        values = panel_values(panel, line, alpha, results)
        if len(values) > 0:
            alphas.append(alpha)
            means.append(float(values.mean()))
            bars.append(standard_error(values))
    measured = axis.errorbar(
        alphas, means, yerr=bars, ls="none", marker=marker, ms=4.5, mec="white", mew=0.4, color=colour,
        elinewidth=0.9, capsize=1.8, zorder=4 if pruned else 3,
    )  # fmt: skip
    if results.theory(line) is None:
        axis.plot(alphas, means, color=colour, lw=0.8, ls=":", zorder=2)
    handle = measured.lines[0]
    return Line2D([], [], color=handle.get_color(), marker=marker, ls="none", ms=5)


def panel_values(panel: FigurePanel, line: FigureLine, alpha: float, results: StudyResults) -> Array:
    """Return what a panel shows of a line, by seed: the errors, or their ratio to those without attack."""
    errors = results.errors(line, alpha)
    if errors is not None and panel.kind == "ratio":
        before = results.errors(remove_attack(line), alpha)
        errors = None if before is None else errors / before
    return np.empty(0) if errors is None else errors[np.isfinite(errors)]


def standard_error(values: Array) -> float:
    """Return the standard error of a mean, 0 for a single value."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def _draw_theory(axis: Axes, panel: FigurePanel, line: FigureLine, colour: str, results: StudyResults) -> None:
    curve = results.theory(line)
    if curve is None:
        return
    heights = np.array(curve.errors)
    if panel.kind == "ratio":
        before = results.theory(remove_attack(line))
        if before is None:
            return
        heights = heights / np.array(before.errors)
    axis.plot(curve.alphas, heights, color=colour, lw=1.2, zorder=5, alpha=0.9)


def _decorate_axis(axis: Axes, panel: FigurePanel, results: StudyResults) -> None:
    low, high = min(results.study.alphas), max(results.study.alphas)
    axis.set_title(panel.title)
    axis.set_xscale("log")
    axis.set_xlim(low / 1.15, high * 1.15)
    axis.xaxis.set_major_locator(FixedLocator([tick for tick in _TICKS if low <= tick <= high]))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel(r"$\alpha$ = kept samples per dimension")
    axis.grid(True, which="major", color="0.9", lw=0.6)
    axis.set_axisbelow(True)
    axis.set_yscale("log")
    if panel.kind == "ratio":
        axis.axhline(1, color="0.5", lw=0.8)
        axis.set_ylabel(r"error / error at $\varepsilon = 0$")
    else:
        axis.set_ylabel(r"error $1 - R$")


def draw_crossover(figure: StudyFigure) -> Canvas:
    """Draw the crossover of PE and no pruning against the kept fraction."""
    canvas = Canvas(figsize=(3.8, 3.0))
    axis = canvas.subplots()
    crossings = [crossover_alpha(keep) for keep in _KEEPS_OF_CROSSOVER]
    keeps = [100 * keep for keep in _KEEPS_OF_CROSSOVER]
    axis.plot(keeps, crossings, color=SEQUENCE[2], marker="o", ms=3.5, lw=1.2)
    axis.text(60, 1.72, "PE better", ha="center")
    axis.text(22, 1.25, "PE worse", ha="center")
    axis.set_xlabel("kept, % of the pool")
    axis.set_ylabel(r"$\alpha$ where PE breaks even")
    axis.set_title(figure.title)
    axis.set_xlim(0, 95)
    axis.set_ylim(0.9, 2.1)
    axis.grid(True, color="0.9", lw=0.6)
    canvas.tight_layout()
    return canvas
