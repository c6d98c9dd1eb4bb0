"""The figures of a report: which rows, seeds and files are drawn, and what is said about them."""

import math
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


def draw_trade_offs(results: list[RowResult]) -> Markup:
    """Draw accuracy against robustness, and the changes from the baseline."""
    robust = choose_robust_attack([result.estimates() for result in results]) or "cw"
    points = []
    for index, result in enumerate(results):
        estimates, pair = result.estimates(), _paper_pair(result, robust)
        if pair or ("clean" in estimates and robust in estimates):
            points.append(TradeOffPoint(result.row.name, index, estimates.get("clean"), estimates.get(robust), pair))
    if not points:
        return join_markup()
    changed = _draw_changes(results, robust)
    return make_tag(
        "div", draw_trade_off(points, title_attack(robust)), *([changed] if changed else []), class_="figures"
    )


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


def draw_training(results: list[RowResult]) -> Markup:
    """Draw what the runs recorded over samples seen; nothing where they recorded nothing."""
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
    if not figures:
        return join_markup()
    names = [(index, result.row.name) for index, result in enumerate(results) if any(result.metrics)]
    seeds = "Thin lines of one colour and dash are the seeds of a row."
    return join_markup(make_tag("p", seeds), make_row_legend(names), make_tag("div", *figures, class_="figures"))


def _has_numbers(line: dict[str, Any], name: str) -> bool:
    return all(isinstance(line.get(key), (int, float)) and math.isfinite(line[key]) for key in ("samples", name))


def draw_margins(study: ReportStudy, samples: SampleTable) -> Markup:
    """Draw and tell how margins and strengths are distributed."""
    margin, norm = samples.margin, samples.norm
    known = np.isfinite(margin)
    parts = []
    if known.any():
        marks = {"0, the boundary": 0.0, **({f"eps {samples.eps:.4g}": samples.eps} if samples.eps else {})}
        marks |= {f"threshold {value:.4g} ({name})": value for name, value in samples.thresholds.items()}
        kept, pruned = margin[known & samples.keep], margin[known & ~samples.keep]
        parts.append(
            draw_margin_histogram(
                samples.name, kept.astype(float), pruned.astype(float), marks, norm, planned=samples.plan is not None
            )
        )
    if samples.strength is not None and samples.keep.any():
        strength = samples.strength[samples.keep].astype(float)
        parts.append(draw_strength_histogram(samples.name, strength, samples.eps, norm))
    several = _draw_outlines(study, norm)
    return join_markup(
        make_tag("p", *_describe_margins(study, samples, known)),
        make_tag("div", *parts, *([several] if several else []), class_="figures"),
    )


def _describe_margins(study: ReportStudy, samples: SampleTable, known: NDArray[np.bool_]) -> list[str]:
    margin = samples.margin
    what = "margins" if samples.table else "a plan"
    rivals = sum(any(seed.margins if samples.table else seed.plan for seed in row.seeds) for row in study.rows)
    which = f", the first of {rivals} rows with {what}" if rivals > 1 else ""
    if samples.table is None:
        return [
            f"Shown is {samples.name}{which}. No margins were found, so this is from the plan alone. ",
            *samples.notes,
        ]
    wrong = int((margin < 0).sum())
    words = [f"Shown is {samples.name}{which}: {len(samples):,} samples, {wrong:,} with a margin below 0. "]
    if samples.eps:
        words.append(f"eps is {samples.eps:.6g}. ")
    for name, value in samples.thresholds.items():
        easy, kept = name == "easy", margin[samples.keep]
        beyond = int((kept > value).sum() if easy else (kept < value).sum())
        words.append(f"{name.capitalize()} samples are pruned {'from' if easy else 'up to'} a margin of {value:.6g}")
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
