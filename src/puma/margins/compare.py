"""How alike margins of the same samples are: ranks, signs, and the plans that would come of them."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from puma.drawing import COLOURS
from puma.errors import PumaError, tell_missing
from puma.files import write_json
from puma.margins.margins_file import Margins

Column = NDArray[np.float32]
_DRAWN = 20_000  # points of a scatter: more only hide each other


@dataclass(frozen=True)
class MarginComparison:
    """How two files agree, over the samples that both have a margin of.

    A plan is the one that drops ``prune_easy`` of the samples with the highest margins and attacks the others by their
    margin, clipped to eps.
    """

    one: str
    two: str
    count: int  # samples that both know
    missing: int  # samples that only one of them knows
    rank_correlation: float  # Spearman's
    sign_agreement: float  # share of samples that both call right or both call wrong
    plan_agreement: float  # share of samples that both plans keep or both drop
    pruned_overlap: float  # of the samples that the first plan drops, the share that the second drops too
    strength_error: float  # mean difference of strengths over samples that both keep, as a share of eps
    ratio: float  # median of |second| / |first|
    prune_easy: float
    eps: float


def compare_margins(
    tables: Mapping[str, Margins], *, prune_easy: float = 0.2, eps: float = 8 / 255
) -> list[MarginComparison]:
    """Compare every pair of tables, in order; tables of other samples or norms raise."""
    if len(tables) < 2:
        raise PumaError(f"comparing needs at least two files of margins, got {len(tables)}.")
    if not 0 < prune_easy < 1:
        raise PumaError(f"prune_easy must lie in (0, 1), got {prune_easy}.")
    if not (math.isfinite(eps) and eps > 0):
        raise PumaError(f"eps must be positive, got {eps}.")
    aligned = align_margins(tables)
    return [
        compare_columns(one, two, (first, second), prune_easy=prune_easy, eps=eps)
        for (first, one), (second, two) in itertools.combinations(aligned.items(), 2)
    ]


def align_margins(tables: Mapping[str, Margins]) -> dict[str, Column]:
    """Return the margins of the samples that all tables have, in one order; NaN where a table has none."""
    pools = {str(table.made_from.get("pool", "")) for table in tables.values()}
    if len(pools - {""}) > 1:
        raise PumaError("the files hold margins of different pools; compare those of one pool.")
    norms = sorted({str(table.made_from.get("norm", "unknown")) for table in tables.values()})
    if len(norms) > 1:
        raise PumaError(f"the files hold margins in different norms ({', '.join(norms)}); compare those of one norm.")
    ids = [table.sample_id.numpy() for table in tables.values()]
    common = ids[0]
    if not all(np.array_equal(common, other) for other in ids[1:]):
        for other in ids[1:]:
            common = np.intersect1d(common, other)
    if not len(common):
        raise PumaError("the files have no samples in common; compare margins of the same pool.")
    columns = {}
    for (name, table), own in zip(tables.items(), ids, strict=True):
        order = np.argsort(own, kind="stable")
        rows = order[np.searchsorted(own, common, sorter=order)]
        columns[name] = table.margin.numpy()[rows]
    return columns


def compare_columns(
    one: Column, two: Column, names: tuple[str, str] = ("one", "two"), *, prune_easy: float, eps: float
) -> MarginComparison:
    """Compare margins of the same samples, row by row."""
    known = ~np.isnan(one) & ~np.isnan(two)
    first, second = one[known].astype(np.float64), two[known].astype(np.float64)
    if not len(first):
        raise PumaError(f"{names[0]} and {names[1]} have no sample of which both know the margin.")
    dropped_one, dropped_two = _drop_highest(first, prune_easy), _drop_highest(second, prune_easy)
    kept = ~dropped_one & ~dropped_two
    strengths = [values[kept].clip(-eps, eps) for values in (first, second)]
    finite = np.isfinite(first) & np.isfinite(second) & (first != 0)
    ratios = np.abs(second[finite] / first[finite])
    return MarginComparison(
        one=names[0],
        two=names[1],
        count=len(first),
        missing=int((np.isnan(one) ^ np.isnan(two)).sum()),
        rank_correlation=rank_correlation(first, second),
        sign_agreement=float(((first > 0) == (second > 0)).mean()),
        plan_agreement=float((dropped_one == dropped_two).mean()),
        pruned_overlap=float(dropped_two[dropped_one].mean()) if dropped_one.any() else math.nan,
        strength_error=float(np.abs(strengths[0] - strengths[1]).mean() / eps) if kept.any() else math.nan,
        ratio=float(np.median(ratios)) if len(ratios) else math.nan,
        prune_easy=prune_easy,
        eps=eps,
    )


def _drop_highest(margin: NDArray[np.float64], fraction: float) -> NDArray[np.bool_]:
    """Return which samples a plan drops; of equal margins the later ones."""
    dropped = np.zeros(len(margin), dtype=bool)
    count = math.floor(fraction * len(margin) + 1e-9)
    if count:
        dropped[np.argsort(margin, kind="stable")[-count:]] = True
    return dropped


def rank_correlation(one: NDArray[np.floating], two: NDArray[np.floating]) -> float:
    """Return Spearman's rank correlation; equal values share their mean rank, one that is constant gives NaN."""
    if len(one) < 2:
        return math.nan
    first, second = _rank_values(one), _rank_values(two)
    if first.std() == 0 or second.std() == 0:
        return math.nan
    return float(np.corrcoef(first, second)[0, 1])


def _rank_values(values: NDArray[np.floating]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks


def format_comparisons(comparisons: Sequence[MarginComparison], unit: float) -> str:
    """Return comparisons as a table of text."""
    first = comparisons[0]
    suffix = "/255" if unit == 255 else ""
    width = max(len(f"{pair.one} : {pair.two}") for pair in comparisons)
    lines = [
        f"plans that drop {first.prune_easy:.0%}, strengths up to {first.eps * unit:g}{suffix}",
        f"{'':{width}}  {'samples':>10} {'rank corr.':>10} {'signs':>7} {'plan':>7} {'pruned':>7} {'strength':>9} "
        f"{'ratio':>6}",
    ]
    lines += [
        f"{f'{pair.one} : {pair.two}':{width}}  {pair.count:>10,} {pair.rank_correlation:>10.4f} "
        f"{pair.sign_agreement:>7.2%} {pair.plan_agreement:>7.2%} {pair.pruned_overlap:>7.2%} "
        f"{pair.strength_error:>9.2%} {pair.ratio:>6.3f}"
        for pair in comparisons
    ]
    lines.append("plan: kept or dropped alike; pruned: of those the first drops; strength: mean difference of eps")
    return "\n".join(lines)


def save_comparisons(comparisons: Sequence[MarginComparison], path: Path) -> None:
    """Write comparisons as JSON."""
    write_json(path, {"pairs": [asdict(pair) for pair in comparisons]})


def draw_scatter(tables: Mapping[str, Margins], path: Path, *, eps: float, unit: float, label: str) -> None:
    """Draw every file against the first, sample by sample; the diagonal is agreement."""
    with tell_missing("report"):
        from matplotlib.figure import Figure

    aligned = align_margins(tables)
    (first, base), *others = aligned.items()
    chosen = np.random.default_rng(0).permutation(len(base))[:_DRAWN]
    figure = Figure(figsize=(4.4 * len(others), 4.4), layout="constrained")
    panels = figure.subplots(1, len(others), squeeze=False)[0]
    finite = np.concatenate([values[np.isfinite(values)] for values in aligned.values()])
    low, high = (np.quantile(finite, (0.001, 0.999)) if len(finite) else np.array([0.0, 1.0])) * unit
    for index, (axes, (name, values)) in enumerate(zip(panels, others, strict=True)):
        axes.plot([low, high], [low, high], color="black", linewidth=0.8)
        for place in (-eps * unit, eps * unit):
            axes.axvline(place, color="0.7", linewidth=0.8, linestyle="--")
            axes.axhline(place, color="0.7", linewidth=0.8, linestyle="--")
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(base[chosen] * unit, values[chosen] * unit, ".", markersize=1.5, alpha=0.4, color=colour)
        axes.set(xlim=(low, high), ylim=(low, high), xlabel=f"{first}: {label}", ylabel=f"{name}: {label}")
        axes.set_aspect("equal")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def draw_joint_margins(comparisons: Sequence[MarginComparison], path: Path) -> None:
    """Draw rank correlation and agreement of plans of every pair, as two maps with their numbers in them."""
    with tell_missing("report"):
        from matplotlib.figure import Figure

    names = list(dict.fromkeys(itertools.chain.from_iterable((pair.one, pair.two) for pair in comparisons)))
    size = max(3.2, 0.75 * len(names) + 1.6)
    figure = Figure(figsize=(2 * size + 1, size), layout="constrained")
    fraction = comparisons[0].prune_easy
    maps = {"rank correlation": "rank_correlation", f"plans alike, {fraction:.0%} dropped": "plan_agreement"}
    for axes, (title, quantity) in zip(figure.subplots(1, 2), maps.items(), strict=True):
        values = np.eye(len(names))
        for pair in comparisons:
            at = names.index(pair.one), names.index(pair.two)
            values[at] = values[at[::-1]] = getattr(pair, quantity)
        lowest = float(np.nanmin(values))
        axes.imshow(values, cmap="viridis", vmin=min(lowest, 0.99), vmax=1)
        for row, column in itertools.product(range(len(names)), repeat=2):
            value = values[row, column]
            dark = not value > (min(lowest, 0.99) + 1) / 2
            text = "1" if row == column else f"{value:.3f}"
            axes.text(column, row, text, ha="center", va="center", color="white" if dark else "black", fontsize=9)
        axes.set_xticks(range(len(names)), names, rotation=35, ha="right")
        axes.set_yticks(range(len(names)), names)
        axes.set_title(title, fontsize=11)
        for side in axes.spines.values():
            side.set_visible(False)
        axes.tick_params(length=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
