"""How margins are distributed: quantiles, shares, histograms of one or more files on common bins."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puma.drawing import BINS, COLOURS, LINE_STYLES, bin_edges, count_in_bins
from puma.errors import PumaError, tell_missing
from puma.files import write_json
from puma.margins.margins_file import Margins
from puma.margins.search.engine import Status

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)  # both tails, since pruning is about them
_BAR = 50  # characters: with its number it fits a terminal of 80
_LEARNED = 0.1  # of the way from a guess to no error: below it a model has learned next to nothing


@dataclass(frozen=True)
class MarginSummary:
    """What one file holds. Quantiles and histogram are of the samples with a margin, found or predicted."""

    count: int
    statuses: Mapping[str, int]
    quantiles: Mapping[float, float]
    share_wrong: float
    share_below_eps: float
    eps: float
    norm: str
    method: str


@dataclass(frozen=True)
class MarginHistograms:
    """Counts of several files on the same bins, by name."""

    edges: Sequence[float]
    counts: Mapping[str, Sequence[int]]


def summarise_margins(margins: Margins, eps: float) -> MarginSummary:
    """Summarise one file; ``eps`` is the attack's radius to compare with."""
    return summarise_values(margins.margin.numpy(), margins.status.numpy(), margins.made_from, eps)


def summarise_values(
    margin: NDArray[np.float32], status: NDArray[np.int8], made_from: Mapping[str, Any], eps: float
) -> MarginSummary:
    """Summarise margins and their statuses; few bytes a sample, so that fifty million need no large machine."""
    measured = margin[np.isin(status, (Status.CROSSED, Status.PREDICTED))]
    unknown = int(np.isnan(margin).sum())
    known = max(len(margin) - unknown, 0)
    places: Iterable[float] = np.quantile(measured.astype(np.float64), QUANTILES) if len(measured) else []
    return MarginSummary(
        count=len(margin),
        statuses={kind.name: int((status == kind).sum()) for kind in Status},
        quantiles=dict(zip(QUANTILES, map(float, places), strict=False)),
        share_wrong=int((margin < 0).sum()) / known if known else float("nan"),
        share_below_eps=int((margin < eps).sum()) / known if known else float("nan"),
        eps=eps,
        norm=str(made_from["norm"]),
        method=str(made_from["method"]),
    )


def count_histograms(tables: Mapping[str, Margins], bins: int = BINS) -> MarginHistograms:
    """Count the margins of several files on common bins; the outer bins also take the one percent beyond them."""
    found = {name: _select_found(table) for name, table in tables.items()}
    everything = np.concatenate(list(found.values()))
    if not len(everything):
        raise PumaError("there are no measured margins to draw: no search found a boundary.")
    if len({table.made_from["norm"] for table in tables.values()}) > 1:
        raise PumaError("the files hold margins in different norms; compare those of one norm.")
    edges = bin_edges(everything, bins)
    counts = {name: count_in_bins(margin, edges).tolist() for name, margin in found.items()}
    return MarginHistograms(edges.tolist(), counts)


def _select_found(margins: Margins) -> NDArray[np.float64]:
    return margins.margin[margins.known].double().numpy()


def warn_of_model(margin: NDArray[np.float32], classes: int) -> list[str]:
    """Sentences about a model that is wrong on most of what it was to measure, or hardly better than a guess."""
    known = margin[~np.isnan(margin)]
    right = float((known > 0).mean()) if len(known) else 1.0
    chance = 1 / classes
    if right < chance + _LEARNED * (1 - chance):
        what = f"hardly better than a guess among {classes} classes ({chance:.1%})"
    elif right < 0.5:
        what = "wrong on most of them"
    else:
        return []
    return [
        f"the margin model is right on {right:.1%} of the samples, {what}: its margins say little about them; "
        "check that model, weights, mean and std, and the order of the classes belong to these images"
    ]


def describe_margins(summary: MarginSummary, name: str) -> str:
    """Return a summary as lines of text."""
    unit = 255 if summary.norm == "linf" else 1
    suffix = "/255" if unit == 255 else ""
    ended = ", ".join(f"{n:,} {status.lower().replace('_', ' ')}" for status, n in summary.statuses.items() if n)
    lines = [
        f"{name}: {summary.count:,} samples, {summary.method}, {summary.norm}",
        f"  searches     {ended}",
        f"  wrong        {summary.share_wrong:6.1%}  (margin < 0)",
        f"  below eps    {summary.share_below_eps:6.1%}  (margin < {summary.eps * unit:g}{suffix})",
    ]
    if summary.quantiles:
        header = " ".join(f"{q:>8.0%}" for q in summary.quantiles)
        values = " ".join(f"{value * unit:8.2f}" for value in summary.quantiles.values())
        lines += [f"  quantile     {header}", f"  margin{suffix:<6} {values}"]
    return "\n".join(lines)


def draw_in_terminal(drawn: MarginHistograms, unit: float) -> str:
    """Return histograms as bars of characters, one line per bin, the first file only."""
    counts = next(iter(drawn.counts.values()))
    most = max([*counts, 1])
    return "\n".join(
        f"  {left * unit:8.2f} |{'█' * round(_BAR * count / most)}{' ' if count else ''}{count or ''}"
        for left, count in zip(drawn.edges, counts, strict=False)
    )


def draw_picture(drawn: MarginHistograms, path: Path, *, eps: float, unit: float, label: str) -> None:
    """Draw histograms over each other, zero and eps marked."""
    with tell_missing("report"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    edges = np.array(drawn.edges) * unit
    alone = len(drawn.counts) == 1
    for index, (name, counts) in enumerate(drawn.counts.items()):
        colour, style = COLOURS[index % len(COLOURS)], LINE_STYLES[index % len(LINE_STYLES)]
        shares = np.array(counts) / max(sum(counts), 1)
        axes.stairs(shares, edges, fill=alone, color=colour, linestyle=style, linewidth=1.8, label=name)
    axes.axvline(0, color="black", linewidth=1, label="boundary")
    axes.axvline(eps * unit, color="black", linewidth=1, linestyle="--", label="eps")
    axes.set_xlabel(label)
    axes.set_ylabel("share of samples")
    long = max(map(len, drawn.counts)) > 24
    figure.legend(loc="outside lower center", frameon=False, ncols=1 if long else min(len(drawn.counts) + 2, 5))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def save_histograms(drawn: MarginHistograms, path: Path) -> None:
    """Write the bins and counts as JSON: the numbers behind the figure."""
    write_json(path, asdict(drawn))
