"""The sections that show what was measured: trade-off, training, margins and strengths, classes."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puma.evaluation import title_attack
from puma.report import charts, tables
from puma.report.comparison import robust_attack
from puma.report.curves import PANELS
from puma.report.markup import Markup, markup, tag
from puma.report.reading import open_margins
from puma.report.results import RowResult, baseline_of, differences
from puma.report.samples import Samples
from puma.report.study import Study, seed_name


def measured(study: Study, results: list[RowResult], samples: Samples | None) -> dict[str, Markup]:
    """Sections by name, in the order of the page; what there are no files for is left out."""
    sections = {}
    if any(result.evaluations or result.row.paper for result in results):
        sections["Accuracy and robustness"] = markup(_trade_off(results), tables.comparison(results))
    drawn = _curves(results)
    if drawn:
        sections["Training"] = drawn
    if samples is not None:
        sections["Margins and strengths" if samples.table else "Strengths"] = _margins(study, samples)
    by_class = tables.classes(results, samples)
    if by_class:
        sections["Classes"] = by_class
    return sections


def _trade_off(results: list[RowResult]) -> Markup:
    robust = robust_attack([result.estimates() for result in results]) or "cw"
    points = []
    for index, result in enumerate(results):
        estimates, pair = result.estimates(), _published(result, robust)
        if pair or ("clean" in estimates and robust in estimates):
            points.append(charts.Point(result.row.name, index, estimates.get("clean"), estimates.get(robust), pair))
    if not points:
        return markup()
    changed = _changes(results, robust)
    return tag("div", charts.trade_off(points, title_attack(robust)), *([changed] if changed else []), class_="figures")


def _changes(results: list[RowResult], robust: str) -> Markup | None:
    """Differences to the baseline, and the paper's where it tells them."""
    ours = differences(results)
    points = []
    for index, result in enumerate(results):
        baseline, own = baseline_of(result, results), ours.get(result.row.name, {})
        origin = None if baseline is None else _published(baseline, robust)
        theirs = _published(result, robust)
        if "clean" in own and robust in own:
            pair = (theirs[0] - origin[0], theirs[1] - origin[1]) if theirs and origin else None
            points.append(charts.Point(result.row.name, index, own["clean"], own[robust], pair))
    return charts.changes(points) if points else None


def _published(result: RowResult, robust: str) -> tuple[float, float] | None:
    """Return what was published under the same attack."""
    paper = result.row.paper
    return (paper["clean"], paper[robust]) if {"clean", robust} <= paper.keys() else None


def _curves(results: list[RowResult]) -> Markup:
    figures = []
    for name, title in PANELS.items():
        lines = [
            (index, points)
            for index, result in enumerate(results)
            for metrics in result.metrics
            if (points := [(float(line["samples"]), float(line[name])) for line in metrics if _numbers(line, name)])
        ]
        if lines:
            figures.append(charts.curves(title.capitalize(), lines, shares="accuracy" in name or "share" in name))
    if not figures:
        return markup()
    names = [(index, result.row.name) for index, result in enumerate(results) if any(result.metrics)]
    seeds = "Thin lines of one colour and dash are the seeds of a row."
    return markup(tag("p", seeds), charts.row_keys(names), tag("div", *figures, class_="figures"))


def _numbers(line: dict[str, Any], name: str) -> bool:
    return all(isinstance(line.get(key), (int, float)) and math.isfinite(line[key]) for key in ("samples", name))


def _margins(study: Study, samples: Samples) -> Markup:
    margin, norm = samples.margin, samples.norm
    known = np.isfinite(margin)
    parts = []
    if known.any():
        marks = {"0, the boundary": 0.0, **({f"eps {samples.eps:.4g}": samples.eps} if samples.eps else {})}
        marks |= {f"threshold {value:.4g} ({name})": value for name, value in samples.thresholds.items()}
        kept, pruned = margin[known & samples.keep], margin[known & ~samples.keep]
        parts.append(
            charts.margin_histogram(
                samples.name, kept.astype(float), pruned.astype(float), marks, norm, planned=samples.plan is not None
            )
        )
    if samples.strength is not None and samples.keep.any():
        strength = samples.strength[samples.keep].astype(float)
        parts.append(charts.strength_histogram(samples.name, strength, samples.eps, norm))
    several = _outlines(study, norm)
    return markup(
        tag("p", *_margin_words(study, samples, known)),
        tag("div", *parts, *([several] if several else []), class_="figures"),
    )


def _margin_words(study: Study, samples: Samples, known: NDArray[np.bool_]) -> list[str]:
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


def _outlines(study: Study, norm: str) -> Markup | None:
    """Histograms over each other, where rows have margins of their own."""
    seen: dict[Path, tuple[int, str]] = {}
    for index, row in enumerate(study.rows):
        for seed in [seed for seed in row.seeds if seed.margins][:1]:
            if seed.margins:
                seen.setdefault(seed.margins.resolve(), (index, seed_name(row, seed)))
    drawn = []
    for path, (index, name) in seen.items() if len(seen) > 1 else ():
        table = open_margins(path)
        values = table.margin[np.isfinite(table.margin)].astype(float)
        if str(table.made_from.get("norm", "")) == norm and len(values):
            drawn.append((index, name, values))
    return charts.margin_outlines(drawn, norm) if len(drawn) > 1 else None
