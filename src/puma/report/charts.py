"""The charts of a report, from plain numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from puma.drawing import BINS, bin_edges, count_in_bins
from puma.report.statistics import AccuracyDifference, AccuracyEstimate
from puma.report.svg import (
    BOTTOM,
    COLOURS,
    HEIGHT,
    LEFT,
    RIGHT,
    STEPS,
    TOP,
    WIDTH,
    ChartFrame,
    Markup,
    Write,
    draw_line,
    draw_mark,
    draw_path,
    draw_text,
    format_short,
    legend_key,
    line_classes,
    make_figure,
    make_tag,
    widen_range,
)

_MOST_POINTS = 300  # of a line: no more can be seen, and the page stays small
_CELLS, _LEVELS = 32, 6  # of a heat map: as fine as the page shows, as many shades as can be told apart
Numbers = NDArray[np.floating]
Counts = NDArray[np.int64]
Interval = AccuracyEstimate | AccuracyDifference


@dataclass(frozen=True)
class TradeOffPoint:
    """One row in the trade-off: accuracy across, robustness up; ``paper`` is the published pair."""

    name: str
    index: int
    accuracy: Interval | None
    robustness: Interval | None
    paper: tuple[float, float] | None


def draw_trade_off(points: Sequence[TradeOffPoint], robustness: str) -> Markup:
    """Accuracy against robustness, a mark per row with its intervals, the paper's hollow."""
    note = "Up and right is better; the bars are 95 % intervals."
    return _draw_scatter("Accuracy against robustness", points, ("accuracy", robustness), _format_percent, note)


def draw_changes(points: Sequence[TradeOffPoint]) -> Markup:
    """Return the same as differences to the baseline, so that results on other images can be compared."""
    told = ": what can be compared with the paper even where the images differ"
    note = f"In points{told if any(point.paper for point in points) else ''}; the bars are 95 % intervals."
    return _draw_scatter(
        "Change from the baseline", points, ("accuracy", "robustness"), _format_points, note, origin=True
    )


def _draw_scatter(
    title: str,
    points: Sequence[TradeOffPoint],
    labels: tuple[str, str],
    write: Write,
    note: str,
    *,
    origin: bool = False,
) -> Markup:
    pairs = [(point, point.accuracy, point.robustness) for point in points if point.accuracy and point.robustness]
    papers = [(point, point.paper) for point in points if point.paper]
    across = [end for _, x, _ in pairs if x for end in (x.low, x.high)] + [x for _, (x, _) in papers]
    up = [end for _, _, y in pairs if y for end in (y.low, y.high)] + [y for _, (_, y) in papers]
    zero = [0.0] if origin else []
    frame = ChartFrame(widen_range(across + zero), widen_range(up + zero))
    parts = frame.axes(*labels, write_x=write, write_y=write)
    if origin:
        parts.append(draw_line(LEFT, frame.up(0), WIDTH - RIGHT, frame.up(0), "axis"))
        parts.append(draw_line(frame.across(0), TOP, frame.across(0), HEIGHT - BOTTOM, "axis"))
    for point, x, y in pairs:
        if x and y:
            parts += _draw_cross(frame, point, x, y, write)
    for point, (right, robust) in papers:
        words = f"{point.name}, paper: accuracy {write(right)}, robustness {write(robust)}"
        parts.append(draw_mark(point.index, frame.across(right), frame.up(robust), hollow=True, title=words))
    legend = [legend_key(point.name, draw_mark(point.index, 14, 7)) for point in points]
    if papers:
        legend.append(legend_key("hollow: the paper's", draw_mark(papers[0][0].index, 14, 7, hollow=True)))
    return make_figure(title, parts, legend=legend, note=note)


def _draw_cross(
    frame: ChartFrame,
    point: TradeOffPoint,
    accuracy: Interval,
    robustness: Interval,
    write: Write,
) -> list[Markup]:
    x, y, kind = frame.across(accuracy.mean), frame.up(robustness.mean), f"interval s{point.index % COLOURS}"
    words = (
        f"{point.name}: accuracy {write(accuracy.mean)} [{write(accuracy.low)}, {write(accuracy.high)}], "
        f"robustness {write(robustness.mean)} [{write(robustness.low)}, {write(robustness.high)}]"
    )
    return [
        draw_line(frame.across(accuracy.low), y, frame.across(accuracy.high), y, kind),
        draw_line(x, frame.up(robustness.low), x, frame.up(robustness.high), kind),
        draw_mark(point.index, x, y, title=words),
    ]


def draw_run_curves(title: str, lines: Sequence[tuple[int, Sequence[tuple[float, float]]]], *, shares: bool) -> Markup:
    """Return a quantity over samples seen: lines of (row's index, points)."""
    everything = [point for _, points in lines for point in points]
    across = (0.0, max(x for x, _ in everything) or 1.0)
    frame = ChartFrame(across, widen_range([y for _, y in everything]))
    parts = frame.axes("samples seen", "", write_x=format_short, write_y=_format_percent if shares else format_short)
    for index, points in lines:
        step = -(-len(points) // _MOST_POINTS)
        places = [(frame.across(x), frame.up(y)) for x, y in points[::-step][::-1]]
        single = len(places) == 1
        parts.append(draw_mark(index, *places[0]) if single else draw_path(places, f"{line_classes(index)} thin"))
    return make_figure(title, parts)


def make_row_legend(names: Sequence[tuple[int, str]]) -> Markup:
    """Return a legend of rows as lines."""
    items = [make_tag("li", legend_key(name, draw_line(1, 7, 27, 7, line_classes(index)))) for index, name in names]
    return make_tag("ul", *items, class_="legend")


def draw_margin_histogram(
    name: str, kept: Numbers, pruned: Numbers, marks: Mapping[str, float], norm: str, *, planned: bool = True
) -> Markup:
    """Kept samples filled, pruned ones hatched on top of them, with values of interest marked."""
    inside = [value for value in marks.values() if np.isfinite(value)]
    edges = bin_edges(np.concatenate([kept, pruned]))
    low, high = min([edges[0], *inside]), max([edges[-1], *inside])
    first, second = count_in_bins(kept, edges), count_in_bins(pruned, edges)
    frame = ChartFrame(widen_range([float(low), float(high)], 0.03), (0.0, 1.12 * float((first + second).max())))
    parts = [_HATCH, *frame.axes(f"margin ({norm})", "samples", write_x=format_short, write_y=format_short,
                                 x_steps=norm == "linf")]  # fmt: skip
    word = "kept" if planned else "samples"
    parts += _draw_bars(frame, edges, np.zeros_like(first), first, "bar kept", word, steps=norm == "linf")
    parts += _draw_bars(frame, edges, first, second, "bar pruned", "pruned", steps=norm == "linf")
    parts += _mark_beyond(frame, edges, np.concatenate([kept, pruned]), first + second)
    keys = []
    for index, (words, value) in enumerate(marks.items()):
        if np.isfinite(value):
            place = frame.across(value)
            parts.append(draw_line(place, TOP, place, HEIGHT - BOTTOM, f"marked m{index}"))
            keys.append(legend_key(words, draw_line(14, 0, 14, 14, f"marked m{index}")))
    legend = [*keys, legend_key(f"{word} ({len(kept):,})", _legend_box("bar kept"))]
    if len(pruned):
        legend.append(legend_key(f"pruned ({len(pruned):,})", _legend_box("bar pruned")))
    return make_figure(f"Margins of {name}", parts, legend=legend, note="Below 0 the model is wrong about the sample.")


def draw_margin_outlines(margins: Sequence[tuple[int, str, Numbers]], norm: str) -> Markup:
    """Histograms of several files over each other, as shares of each."""
    edges = bin_edges(np.concatenate([values for _, _, values in margins]))
    shares = [(index, count_in_bins(values, edges) / max(len(values), 1)) for index, _, values in margins]
    frame = ChartFrame((float(edges[0]), float(edges[-1])), (0.0, 1.1 * float(max(share.max() for _, share in shares))))
    parts = frame.axes(
        f"margin ({norm})", "share", write_x=format_short, write_y=_format_percent, x_steps=norm == "linf"
    )
    for index, share in shares:
        steps = [(frame.across(float(edge)), frame.up(float(value)))
                 for place, value in enumerate(share) for edge in edges[place : place + 2]]  # fmt: skip
        parts.append(draw_path(steps, line_classes(index)))
    zero = frame.across(0.0)
    parts.append(draw_line(zero, TOP, zero, HEIGHT - BOTTOM, "marked m0"))
    legend = [
        legend_key(f"{name} ({len(values):,})", draw_line(1, 7, 27, 7, line_classes(index)))
        for index, name, values in margins
    ]
    return make_figure("Margins of several rows", parts, legend=legend)


def draw_heat_map(title: str, pairs: tuple[Numbers, Numbers], labels: tuple[str, str], norm: str, note: str) -> Markup:
    """Draw one quantity of every sample against another: the darker, the more samples; the diagonal is agreement."""
    edges = bin_edges(np.concatenate(pairs), _CELLS)
    across, up = (values.astype(np.float64).clip(edges[0], edges[-1]) for values in pairs)
    counts = np.histogram2d(across, up, bins=[edges, edges])[0]
    ends = (float(edges[0]), float(edges[-1]))
    frame = ChartFrame(ends, ends)
    steps = norm == "linf"
    short = [label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 1]}…" for label in labels]
    parts = frame.axes(*short, write_x=format_short, write_y=format_short, x_steps=steps, y_steps=steps)
    width, height = frame.across(float(edges[1])) - LEFT, HEIGHT - BOTTOM - frame.up(float(edges[1]))
    levels = np.ceil(_LEVELS * np.log1p(counts) / np.log1p(max(counts.max(), 1))).astype(int)
    for level in range(1, _LEVELS + 1):
        cells = [f"M{frame.across(float(edges[x])):.1f} {frame.up(float(edges[y + 1])):.1f}h{width:.1f}v{height:.1f}"
                 f"h-{width:.1f}z" for x, y in np.argwhere(levels == level)]  # fmt: skip
        if cells:
            parts.append(make_tag("path", d="".join(cells), class_=f"cell c{level}"))
    diagonal = [(frame.across(end), frame.up(end)) for end in ends]
    parts.append(draw_line(*diagonal[0], *diagonal[1], "marked m1"))
    most = int(counts.max())
    legend = [legend_key(f"1 to {most:,} samples, by the logarithm", *(
        make_tag("rect", x=4.5 * level - 4, y=1, width=4.5, height=12, class_=f"cell c{level}")
        for level in range(1, _LEVELS + 1))), legend_key("equal", draw_line(2, 13, 26, 1, "marked m1"))]  # fmt: skip
    return make_figure(title, parts, legend=legend, note=note)


def draw_strength_histogram(name: str, strength: Numbers, eps: float | None, norm: str) -> Markup:
    """How strongly the kept samples are attacked; counts on a logarithmic axis."""
    ends = [float(strength.min()), float(strength.max()), *([-eps, eps] if eps else [])]
    edges = np.linspace(min(ends), max(max(ends), min(ends) + 1e-6), BINS + 1)
    counts = count_in_bins(strength, edges)
    frame = ChartFrame(
        widen_range([float(edges[0]), float(edges[-1])], 0.03), (0.7, 2.0 * float(counts.max())), log=True
    )
    parts = frame.axes(
        f"strength ({norm})" if norm else "strength",
        "samples",
        write_x=format_short,
        write_y=format_short,
        x_steps=norm == "linf",
    )
    parts += _draw_bars(frame, edges, np.zeros_like(counts), counts, "bar kept", "kept", steps=norm == "linf")
    parts.append(draw_line(frame.across(0), TOP, frame.across(0), HEIGHT - BOTTOM, "marked m0"))
    note = "Of the kept samples, counted on a logarithmic axis; below 0 the attack helps the model."
    return make_figure(f"Strengths of {name}", parts, note=note)


def _draw_bars(
    frame: ChartFrame, edges: Numbers, below: Counts, counts: Counts, kind: str, word: str, *, steps: bool
) -> list[Markup]:
    parts = []
    for place, count in enumerate(counts):
        if count:
            left, right = frame.across(float(edges[place])), frame.across(float(edges[place + 1]))
            top, bottom = frame.up(float(below[place] + count)), frame.up(float(below[place]))
            ends = edges[place : place + 2]
            words = f"{ends[0]:.4f} to {ends[1]:.4f}"
            words += f" ({STEPS * ends[0]:.2f} to {STEPS * ends[1]:.2f} of {STEPS})" if steps else ""
            box = {"x": left, "y": top, "width": right - left, "height": bottom - top}
            parts.append(make_tag("rect", make_tag("title", f"{words}: {count:,} {word}"), class_=kind, **box))
    return parts


def _mark_beyond(frame: ChartFrame, edges: Numbers, values: Numbers, counts: Counts) -> list[Markup]:
    """Mark the outer bars that also hold what lies beyond them."""
    ends = [("≤", 0, bool((values < edges[0]).any())), ("≥", len(counts) - 1, bool((values > edges[-1]).any()))]
    return [
        draw_text(frame.across(float(edges[place : place + 2].mean())), frame.up(float(counts[place])) - 4, sign,
             "tick middle")
        for sign, place, beyond in ends if beyond
    ]  # fmt: skip


def _legend_box(kind: str) -> Markup:
    return make_tag("rect", x=2, y=1, width=24, height=12, class_=kind)


_LONGEST_LABEL = 40  # characters: what fits below the picture
_HATCH = make_tag(
    "defs",
    make_tag(
        "pattern",
        make_tag("rect", width=6, height=6, class_="hatch-ground"),
        make_tag("path", d="M-1 1L1 -1M0 6L6 0M5 7L7 5", class_="hatch-line"),
        id="hatch", width=6, height=6, patternUnits="userSpaceOnUse",
    ),
)  # fmt: skip


def _format_percent(value: float) -> str:
    return f"{100 * value:.4g}%"


def _format_points(value: float) -> str:
    return f"{100 * value:+.4g}" if abs(value) > 1e-9 else "0"
