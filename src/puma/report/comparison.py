"""Two margin files, or two plans, of the same samples side by side: where they agree and where they do not."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from puma.margins import Margins
from puma.planning import Plan
from puma.report.charts import draw_heat_map
from puma.report.rows import ReportStudy, open_margins, open_plan, seed_name
from puma.report.samples import name_margin_model, read_made_from
from puma.report.svg import Markup, make_table, make_tag
from puma.report.units import write_distance

_MOST_DIFFERENT = 10
_LOWEST = 0.01  # the share of samples that people look at first


@dataclass(frozen=True)
class ComparedPair:
    """Two files of one kind: what they are called on the page, and how they compare."""

    title: str
    words: Markup
    figures: list[Markup]
    tables: list[Markup]


def compare_two(study: ReportStudy) -> list[ComparedPair]:
    """Compare the margins, and the plans, of a study that has exactly two of either on the same samples."""
    found: list[ComparedPair] = []
    margins = _list_files(study, "margins")
    if len(margins) == 2:
        (one, first), (two, second) = margins.items()
        found += _compare_margins((first, second), (open_margins(one), open_margins(two)))
    plans = _list_files(study, "plan")
    if len(plans) == 2:
        (one, first), (two, second) = plans.items()
        found += _compare_plans((first, second), (open_plan(one), open_plan(two)))
    return found


def _list_files(study: ReportStudy, kind: str) -> dict[Path, str]:
    """Return the distinct files of a kind, each under the name of the first row that has it."""
    files: dict[Path, str] = {}
    for row in study.rows:
        for seed in row.seeds:
            path: Path | None = getattr(seed, kind)
            if path is not None:
                files.setdefault(path.resolve(), seed_name(row, seed))
    return files


def align_ids(one: NDArray[np.int64], two: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the samples that both have stand in either."""
    if np.array_equal(one, two):
        every = np.arange(len(one))
        return every, every
    _, first, second = np.intersect1d(one, two, assume_unique=True, return_indices=True)
    return first, second


def correlate_ranks(one: NDArray[np.floating], two: NDArray[np.floating]) -> float:
    """Return Spearman's rank correlation; NaN where one of them is constant."""
    ranks = [_rank(values) for values in (one, two)]
    spread = [float(rank.std()) for rank in ranks]
    if not all(spread):
        return float("nan")
    return float(((ranks[0] - ranks[0].mean()) * (ranks[1] - ranks[1].mean())).mean() / (spread[0] * spread[1]))


def _rank(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return ranks from 0 on; equal values share their mean."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts + 1) / 2)[where]
    return ranks


def _compare_margins(names: tuple[str, str], tables: tuple[Margins, Margins]) -> list[ComparedPair]:
    one, two = tables
    norms = [str(table.made_from.get("norm", "")) for table in tables]
    pools = [table.made_from.get("pool_fingerprint") for table in tables]
    first, second = align_ids(one.sample_id.numpy(), two.sample_id.numpy())
    title = "Two margin files"
    if norms[0] != norms[1] or pools[0] != pools[1] or not len(first):
        why = "norms" if norms[0] != norms[1] else "pools"
        words = make_tag("p", f"{names[0]} and {names[1]} are of different {why}, so they are not compared.")
        return [ComparedPair(title, words, [], [])]
    margins = [one.margin.numpy()[first].astype(float), two.margin.numpy()[second].astype(float)]
    known = np.isfinite(margins[0]) & np.isfinite(margins[1])
    told = [f"{name} is of {name_margin_model(table.made_from)}, by {table.made_from.get('method')}"
            for name, table in zip(names, tables, strict=True)]  # fmt: skip
    both = f"They have {len(first):,} samples in common, {int(known.sum()):,} of them with a boundary found in both."
    words = make_tag("p", f"{told[0]}; {told[1]}. {both}")
    if not known.any():
        return [ComparedPair(title, words, [], [])]
    values = [margin[known] for margin in margins]
    count = max(1, round(_LOWEST * len(values[0])))
    lowest = [set(np.argpartition(margin, count - 1)[:count].tolist()) for margin in values]
    same = one.prediction.numpy()[first] == two.prediction.numpy()[second]
    step = np.abs(values[0] - values[1])
    rows: list[list[str]] = [
        ["rank correlation (Spearman)", f"{correlate_ranks(values[0], values[1]):.3f}"],
        ["the same side of the boundary", f"{((values[0] < 0) == (values[1] < 0)).mean():.1%}"],
        ["the same prediction", f"{same.mean():.1%}"],
        [f"of the lowest {_LOWEST:.0%}, in both", f"{len(lowest[0] & lowest[1]) / count:.1%} of {count:,}"],
        ["median difference, either way", write_distance(float(np.median(step)), norms[0], signed=False)],
        [f"median margin, {names[0]}", write_distance(float(np.median(values[0])), norms[0])],
        [f"median margin, {names[1]}", write_distance(float(np.median(values[1])), norms[0])],
    ]
    heat = draw_heat_map(
        "Margins against margins", (values[0], values[1]), names, norms[0],
        "A sample is as far right as its margin in one file and as high as in the other.",
    )  # fmt: skip
    table = make_table(["measure", "value"], rows, caption="How far the two files agree")
    ids, labels = one.sample_id.numpy()[first][known], one.label.numpy()[first][known]
    most = np.argsort(-step, kind="stable")[:_MOST_DIFFERENT]
    apart = [[f"{ids[row]}", f"{labels[row]}" if labels[row] >= 0 else "–",
              *(write_distance(float(margin[row]), norms[0]) for margin in values)] for row in most]  # fmt: skip
    farthest = make_table(["sample_id", "label", *names], apart, caption="Where they differ the most")
    return [ComparedPair(title, words, [heat], [table, farthest])]


def _compare_plans(names: tuple[str, str], plans: tuple[Plan, Plan]) -> list[ComparedPair]:
    one, two = plans
    title = "Two plans"
    first, second = align_ids(one.sample_id.numpy(), two.sample_id.numpy())
    if one.pool_fingerprint != two.pool_fingerprint or not len(first):
        words = make_tag("p", f"{names[0]} and {names[1]} are for different pools, so they are not compared.")
        return [ComparedPair(title, words, [], [])]
    keep = [one.keep.numpy()[first], two.keep.numpy()[second]]
    strength = [one.strength.numpy()[first].astype(float), two.strength.numpy()[second].astype(float)]
    both = keep[0] & keep[1]
    counts = [
        [f"{names[0]}: kept", f"{int(both.sum()):,}", f"{int((keep[0] & ~keep[1]).sum()):,}"],
        [f"{names[0]}: pruned", f"{int((~keep[0] & keep[1]).sum()):,}", f"{int((~keep[0] & ~keep[1]).sum()):,}"],
    ]
    agreed = float((keep[0] == keep[1]).mean())
    differing = int((strength[0] != strength[1])[both].sum())
    words = make_tag(
        "p",
        f"{names[0]} and {names[1]} decide alike about {agreed:.1%} of {len(first):,} samples; of the "
        f"{int(both.sum()):,} that both keep, {differing:,} are attacked with another strength.",
    )
    tables = [make_table(["", f"{names[1]}: kept", f"{names[1]}: pruned"], counts, caption="What the two plans keep")]
    tables += _list_differing(names, plans)
    norm = read_made_from(one).get("margins.norm") or read_made_from(two).get("margins.norm") or ""
    figures = []
    if differing:
        figures.append(draw_heat_map(
            "Strengths against strengths", (strength[0][both], strength[1][both]), names, norm,
            "Of the samples that both keep.",
        ))  # fmt: skip
    return [ComparedPair(title, words, figures, tables)]


def _list_differing(names: Sequence[str], plans: tuple[Plan, Plan]) -> list[Markup]:
    told = [read_made_from(plan) for plan in plans]
    rows = [[name, told[0].get(name, "–"), told[1].get(name, "–")] for name in dict.fromkeys([*told[0], *told[1]])
            if told[0].get(name) != told[1].get(name)]  # fmt: skip
    return [make_table(["setting", *names], rows, caption="Settings that differ")] if rows else []
