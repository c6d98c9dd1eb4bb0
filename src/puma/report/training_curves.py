"""Training curves of several runs, over each other."""

from collections.abc import Sequence
from pathlib import Path

from puma.drawing import COLOURS, LINE_STYLES
from puma.errors import PumaError, tell_missing
from puma.training import RunFolder

PANELS = {
    "held_out_clean_accuracy": "held-out accuracy",
    "held_out_robust_accuracy": "held-out robust accuracy",
    "clean_accuracy": "accuracy on training batches",
    "attacked_accuracy": "accuracy on attacked batches",
    "loss": "loss",
    "online_pruned_share": "pruned share (online)",
    "online_strength_mean": "mean strength (online)",
    "online_negative_share": "share of negative strengths (online)",
}


def draw_curves(runs: Sequence[Path], out: Path) -> list[str]:
    """Draw what the runs recorded over samples seen, a panel per quantity; return the panels' names."""
    with tell_missing("report"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    names = [run.name for run in runs]
    alike = len(set(names)) < len(names)
    lines = {str(run) if alike else run.name: RunFolder(run).read_metrics() for run in runs}
    shown = [name for name in PANELS if any(name in line for metrics in lines.values() for line in metrics)]
    if not shown:
        raise PumaError(f"nothing is recorded yet in {', '.join(lines)}.")
    columns = min(len(shown), 3)
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(4.4 * columns, 3.2 * rows + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, name in zip(axes, shown, strict=False):
        for index, (run, metrics) in enumerate(lines.items()):
            points = [line for line in metrics if name in line]
            samples = [line["samples"] / 1000 for line in points]
            colour, style = COLOURS[index % len(COLOURS)], LINE_STYLES[index % len(LINE_STYLES)]
            panel.plot(samples, [line[name] for line in points], style, color=colour, label=run.replace("$", r"\$"))
        panel.set(title=PANELS[name], xlabel="thousand samples seen")
        panel.grid(alpha=0.3)
    for panel in axes[len(shown) :]:
        panel.set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 4), frameon=False)
    figure.savefig(out, dpi=120)
    return shown
