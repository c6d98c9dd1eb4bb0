"""The figures of a report: which rows, seeds and files are drawn, and what is said about them."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puma.evaluation import title_attack
from puma.report.charts import (
    TradeOffPoint,
    draw_changes,
    draw_margin_histogram,
    draw_margin_outlines,
    draw_run_curves,
    draw_strength_histogram,
    draw_trade_off,
    make_row_legend,
)
from puma.report.rows import ReportStudy, RowResult, compare_rows, find_baseline, open_margins, seed_name
from puma.report.samples import SampleTable
from puma.report.statistics import choose_robust_attack
from puma.report.svg import Markup, join_markup, make_tag
from puma.report.training_curves import PANELS
from puma.report.units import write_distance, write_radius

_LARGEST = 1e15  # no count or loss is larger; NaN is not smaller either


def draw_trade_offs(results: list[RowResult]) -> list[Markup]:
    """Draw accuracy against robustness, and the changes from the baseline."""
    robust = choose_robust_attack([result.estimates() for result in results]) or "cw"
    points = []
    for index, result in enumerate(results):
        estimates, pair = result.estimates(), _paper_pair(result, robust)
        if pair or ("clean" in estimates and robust in estimates):
            points.append(TradeOffPoint(result.row.name, index, estimates.get("clean"), estimates.get(robust), pair))
    if not points:
        return []
    changed = _draw_changes(results, robust)
    return [draw_trade_off(points, title_attack(robust)), *([changed] if changed else [])]


def _draw_changes(results: list[RowResult], robust: str) -> Markup | None:
    """Differences to the baseline, and the paper's where it tells them."""
    ours = compare_rows(results)
    points = []
    for index, result in enumerate(results):
        baseline, own = find_baseline(result, results), ours.get(result.row.name, {})
        origin = None if baseline is None else _paper_pair(baseline, robust)
        theirs = _paper_pair(result, robust)
        if "clean" in own and robust in own:
            pair = (theirs[0] - origin[0], theirs[1] - origin[1]) if theirs and origin else None
            points.append(TradeOffPoint(result.row.name, index, own["clean"], own[robust], pair))
    return draw_changes(points) if points else None


def _paper_pair(result: RowResult, robust: str) -> tuple[float, float] | None:
    """Return what was published under the same attack."""
    paper = result.row.paper
    return (paper["clean"], paper[robust]) if {"clean", robust} <= paper.keys() else None


def draw_training(results: list[RowResult]) -> tuple[Markup, list[Markup]]:
    """Draw what the runs recorded over samples seen, with a legend for all; nothing where they recorded nothing."""
    figures = []
    for name, title in PANELS.items():
        lines = [
            (index, points)
            for index, result in enumerate(results)
            for metrics in result.metrics
            if (points := [(float(line["samples"]), float(line[name])) for line in metrics if _has_numbers(line, name)])
        ]
        if lines:
            figures.append(draw_run_curves(title.capitalize(), lines, shares="accuracy" in name or "share" in name))
    names = [(index, result.row.name) for index, result in enumerate(results) if any(result.metrics)]
    seeds = "Thin lines of one colour and dash are the seeds of a row."
    return join_markup(make_tag("p", seeds), make_row_legend(names)), figures


def _has_numbers(line: dict[str, Any], name: str) -> bool:
    """Whether a line has both as numbers that can be drawn; JSON may hold integers beyond any float."""
    values = [line.get(key) for key in ("samples", name)]
    return all(isinstance(value, (int, float)) and abs(value) < _LARGEST for value in values)


def draw_margins(study: ReportStudy, samples: SampleTable) -> tuple[Markup, list[Markup]]:
    """Tell and draw how margins and strengths are distributed."""
    margin, norm = samples.margin, samples.norm
    known = np.isfinite(margin)
    figures = []
    if known.any():
        marks: dict[str, float] = {"0, the boundary": 0.0}
        if samples.eps:
            marks[join_markup("eps ", write_radius(samples.eps, norm))] = samples.eps
        for name, value in samples.thresholds.items():
            marks[join_markup("threshold ", write_distance(value, norm), f" ({name})")] = value
        kept, pruned = margin[known & samples.keep], margin[known & ~samples.keep]
        figures.append(
            draw_margin_histogram(
                samples.name, kept.astype(float), pruned.astype(float), marks, norm, planned=samples.plan is not None
            )
        )
    if samples.strength is not None and samples.keep.any():
        strength = samples.strength[samples.keep].astype(float)
        figures.append(draw_strength_histogram(samples.name, strength, samples.eps, norm))
    several = _draw_outlines(study, norm)
    words = make_tag("p", *_describe_margins(study, samples, known))
    return words, [*figures, *([several] if several else [])]


def _describe_margins(study: ReportStudy, samples: SampleTable, known: NDArray[np.bool_]) -> list[str]:
    margin, norm = samples.margin, samples.norm
    what = "margins" if samples.table else "a plan"
    rivals = sum(any(seed.margins if samples.table else seed.plan for seed in row.seeds) for row in study.rows)
    which = f", the first of {rivals} rows with {what}" if rivals > 1 else ""
    if samples.table is None:
        return [
            f"Shown is {samples.name}{which}. No margins were found, so this is from the plan alone. ",
            *samples.notes,
        ]
    wrong = int((margin < 0).sum())
    method = samples.table.made_from.get("method", "unknown method")
    words = [f"Shown is {samples.name}{which}: {len(samples):,} samples, {wrong:,} with a margin below 0. "]
    words.append(f"The margins are those of {samples.margin_model}, by {method} in {norm}. ")
    if samples.eps:
        words += ["eps is ", write_radius(samples.eps, norm), ". "]
    for name, value in samples.thresholds.items():
        easy, kept = name == "easy", margin[samples.keep]
        beyond = int((kept > value).sum() if easy else (kept < value).sum())
        words += [f"{name.capitalize()} samples are pruned {'from' if easy else 'up to'} a margin of "]
        words.append(write_distance(value, norm))
        words.append(f"; {beyond:,} kept samples have a {'higher' if easy else 'lower'} one. " if beyond else ". ")
    if not known.all():
        words.append(f"The search found no boundary for {int((~known).sum()):,} samples; they are not drawn. ")
    words.append("The middle 99 % set the bins; those marked ≤ and ≥ also hold what lies beyond.")
    return words


def _draw_outlines(study: ReportStudy, norm: str) -> Markup | None:
    """Histograms over each other, where rows have margins of their own."""
    seen: dict[Path, tuple[int, str]] = {}
    for index, row in enumerate(study.rows):
        for seed in [seed for seed in row.seeds if seed.margins][:1]:
            if seed.margins:
                seen.setdefault(seed.margins.resolve(), (index, seed_name(row, seed)))
    drawn = []
    for path, (index, name) in seen.items() if len(seen) > 1 else ():
        table = open_margins(path)
        values = table.margin[table.margin.isfinite()].double().numpy()
        if str(table.made_from.get("norm", "")) == norm and len(values):
            drawn.append((index, name, values))
    return draw_margin_outlines(drawn, norm) if len(drawn) > 1 else None
