"""The figures of experiments: lines over a horizontal axis, or histograms of margins."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from puma.drawing import COLOURS, MARKERS
from puma.errors import tell_missing
from puma.experiments.presets import ExperimentSetting
from puma.experiments.results import ResultSummary
from puma.experiments.spec import Experiment
from puma.margins import count_histograms, draw_picture, read_margins

_PANELS = {
    "lines": {"clean_accuracy": "accuracy", "robust_accuracy": "robustness (C&W)"},
    "curves": {"held_out_clean_accuracy": "held-out accuracy", "held_out_robust_accuracy": "held-out robustness"},
}


def draw_figure(
    experiment: Experiment,
    lines: Sequence[ResultSummary],
    margins: Mapping[str, Path],
    path: Path,
    setting: ExperimentSetting,
) -> Path:
    """Draw the figure of an experiment: its lines, or the margins of the first seed of every row."""
    if experiment.figure == "histogram":
        return draw_margins(margins, path, setting)
    panels = _PANELS[experiment.figure]
    title = f"{experiment.title} (preset {setting.preset}, {setting.dataset})"
    return draw_lines(lines, panels, path, title=title, axis=experiment.axis)


def draw_lines(lines: Sequence[ResultSummary], panels: dict[str, str], path: Path, *, title: str, axis: str) -> Path:
    """Draw a panel per quantity and a line per row; bars are the spread over seeds."""
    with tell_missing("report"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(panels), 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    names = list(dict.fromkeys(line.row for line in lines if line.quantity in panels and line.at is not None))
    for axes, (quantity, label) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for index, name in enumerate(names):
            points = sorted(
                (line for line in lines if (line.row, line.quantity) == (name, quantity) and line.at is not None),
                key=lambda line: line.at or 0.0,
            )
            axes.errorbar(
                [line.at for line in points],
                [100 * line.mean for line in points],
                yerr=[100 * (line.spread or 0.0) for line in points],
                color=COLOURS[index % len(COLOURS)],
                marker=MARKERS[index % len(MARKERS)],
                markersize=5,
                linewidth=1.4,
                capsize=2,
                label=name,
            )
        axes.set(xlabel=axis, ylabel=f"{label}, %")
        axes.grid(alpha=0.3)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.suptitle(title, fontsize=11)
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path


def draw_margins(margins: Mapping[str, Path], path: Path, setting: ExperimentSetting) -> Path:
    """Draw the margins of every row over each other."""
    tables = {row: read_margins(file) for row, file in margins.items()}
    linf = setting.nets["main"].attack.norm == "linf"
    unit, label = (255.0, "margin x 255 (L_inf)") if linf else (1.0, "margin (L2)")
    draw_picture(count_histograms(tables), path, eps=setting.eps, unit=unit, label=label)
    return path
