"""Two margin files, or two plans, of the same samples side by side: where they agree and where they do not."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError
from puma.margins import Margins, compare_margins
from puma.planning import Plan
from puma.report.charts import draw_heat_map
from puma.report.rows import ReportStudy, open_margins, open_plan, seed_name
from puma.report.samples import name_margin_model, read_made_from
from puma.report.svg import Markup, join_markup, make_table, make_tag
from puma.report.units import USUAL_EPS, write_distance, write_radius

_MOST_DIFFERENT = 10  # samples shown: a look, not a list
_MOST_FILES = 6  # margin files that are compared, each with each: fifteen pairs


@dataclass(frozen=True)
class ComparedPair:
    """Files of one kind: what they are called on the page, how they compare, and that in a sentence."""

    title: str
    sentence: str
    words: Markup
    figures: list[Markup]
    tables: list[Markup]


def compare_files(study: ReportStudy) -> list[ComparedPair]:
    """Compare the margins of a study that are of the same samples, and the plans of one that has exactly two."""
    found: list[ComparedPair] = []
    margins = _list_files(study, "margins")
    if len(margins) > 1:
        eps = next((row.eps for row in study.rows if row.eps), None)
        tables = {name: open_margins(path) for path, name in list(margins.items())[:_MOST_FILES]}
        found += _compare_margins(tables, eps)
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


def _compare_margins(tables: dict[str, Margins], eps: float | None) -> list[ComparedPair]:
    title = "Margin files"
    origins = {name: (str(table.made_from.get("norm", "")), str(table.made_from.get("pool_fingerprint")))
               for name, table in tables.items()}  # fmt: skip
    origin, _ = Counter(origins.values()).most_common(1)[0]
    alike = {name: table for name, table in tables.items() if origins[name] == origin}
    if len(alike) < 2:
        names = " and ".join(list(tables)[:2]) if len(tables) == 2 else f"The {len(tables)} margin files"
        words = make_tag("p", f"{names} are of different pools or norms, so they are not compared.")
        return [ComparedPair(title, "", words, [], [])] if len(tables) == 2 else []
    norm = origin[0]
    try:
        pairs = compare_margins(alike, eps=eps or USUAL_EPS.get(norm, 0.5))
    except PumaError as error:
        return [ComparedPair(title, "", make_tag("p", f"The margin files cannot be compared: {error}"), [], [])]
    of = [f"{name} is of {name_margin_model(table.made_from)}, by {table.made_from.get('method')}"
          for name, table in alike.items()]  # fmt: skip
    left = len(tables) - len(alike)
    others = f" {left} of another pool or norm are left out." if left else ""
    rows = [
        [f"{pair.one} : {pair.two}", f"{pair.count:,}", f"{pair.rank_correlation:.3f}", f"{pair.sign_agreement:.1%}",
         f"{pair.plan_agreement:.1%}", f"{pair.strength_error:.1%}", f"{pair.ratio:.3f}"]
        for pair in pairs
    ]  # fmt: skip
    headers = ["files", "samples", "rank correlation", "same side", "same plan", "strengths differ by", "size ratio"]
    table = make_table(headers, rows, caption="How far the margin files agree")
    plan = [f"A plan is the one that drops the easiest {pairs[0].prune_easy:.0%} and attacks the others by their "
            "margin, up to ", write_radius(pairs[0].eps, norm), "; strengths differ by so much of that on average. "
            "The size ratio is the median of the second margin by the first."]  # fmt: skip
    heat, farthest = _draw_pair(alike, norm)
    sentence = (
        f"{pairs[0].one} and {pairs[0].two} put {pairs[0].sign_agreement:.1%} of the samples on the same side of the "
        f"boundary; the rank correlation of their margins is {pairs[0].rank_correlation:.3f}."
    )
    return [ComparedPair(title, sentence, make_tag("p", f"{'; '.join(of)}.{others}"), heat,
                         [join_markup(table, make_tag("p", *plan)), *farthest])]  # fmt: skip


def _draw_pair(tables: dict[str, Margins], norm: str) -> tuple[list[Markup], list[Markup]]:
    """Draw the first two files against each other, and list where they differ the most."""
    (first, one), (second, two) = list(tables.items())[:2]
    rows, others = align_ids(one.sample_id.numpy(), two.sample_id.numpy())
    margins = [one.margin.numpy()[rows].astype(float), two.margin.numpy()[others].astype(float)]
    known = np.isfinite(margins[0]) & np.isfinite(margins[1])
    if not known.any():
        return [], []
    values = (margins[0][known], margins[1][known])
    heat = draw_heat_map(
        "Margins against margins", values, (first, second), norm,
        "A sample is as far right as its margin in one file and as high as in the other.",
    )  # fmt: skip
    ids, labels = one.sample_id.numpy()[rows][known], one.label.numpy()[rows][known]
    step = np.abs(values[0] - values[1])
    count = min(_MOST_DIFFERENT, int((step > 0).sum()))
    if not count:
        return [heat], []
    most = np.argpartition(-step, count - 1)[:count]
    apart = [[f"{ids[row]}", f"{labels[row]}" if labels[row] >= 0 else "–",
              *(write_distance(float(margin[row]), norm) for margin in values)]
             for row in most[np.argsort(-step[most], kind="stable")]]  # fmt: skip
    return [heat], [make_table(["sample_id", "label", first, second], apart, caption="Where they differ the most")]


def _compare_plans(names: tuple[str, str], plans: tuple[Plan, Plan]) -> list[ComparedPair]:
    one, two = plans
    title = "Two plans"
    first, second = align_ids(one.sample_id.numpy(), two.sample_id.numpy())
    if one.pool_fingerprint != two.pool_fingerprint or not len(first):
        words = make_tag("p", f"{names[0]} and {names[1]} are for different pools, so they are not compared.")
        return [ComparedPair(title, "", words, [], [])]
    keep = [one.keep.numpy()[first], two.keep.numpy()[second]]
    strength = [one.strength.numpy()[first].astype(float), two.strength.numpy()[second].astype(float)]
    both = keep[0] & keep[1]
    counts = [
        [f"{names[0]}: kept", f"{int(both.sum()):,}", f"{int((keep[0] & ~keep[1]).sum()):,}"],
        [f"{names[0]}: pruned", f"{int((~keep[0] & keep[1]).sum()):,}", f"{int((~keep[0] & ~keep[1]).sum()):,}"],
    ]
    agreed = float((keep[0] == keep[1]).mean())
    differing = int((strength[0] != strength[1])[both].sum())
    sentence = f"{names[0]} and {names[1]} decide alike about {agreed:.1%} of {len(first):,} samples"
    words = make_tag(
        "p",
        f"{sentence}; of the {int(both.sum()):,} that both keep, {differing:,} are attacked with another strength.",
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
    return [ComparedPair(title, f"{sentence}.", words, figures, tables)]


def _list_differing(names: Sequence[str], plans: tuple[Plan, Plan]) -> list[Markup]:
    told = [read_made_from(plan) for plan in plans]
    rows = [[name, told[0].get(name, "–"), told[1].get(name, "–")] for name in dict.fromkeys([*told[0], *told[1]])
            if told[0].get(name) != told[1].get(name)]  # fmt: skip
    return [make_table(["setting", *names], rows, caption="Settings that differ")] if rows else []
