"""The numbers of a report as tables: rows side by side, and classes."""

import numpy as np

from puma.evaluation.counts import Count
from puma.report.comparison import ATTACK_NAMES, Difference, Estimate, robust_attack
from puma.report.markup import Markup, markup, table, tag
from puma.report.results import RowResult, attacks_of, differences
from puma.report.samples import Samples

MOST_CLASSES = 200


def comparison(results: list[RowResult]) -> Markup:
    """A row each: accuracy under every attack with interval, the paper's, the difference to the baseline."""
    attacks = attacks_of(results)
    against = differences(results)
    headers = ["row", "seeds"]
    for attack in attacks:
        headers.append(f"{ATTACK_NAMES.get(attack, attack)}, %")
        headers += ["paper, %"] if _told(results, attack) else []
        headers += ["to baseline, points"] if against else []
    rows = []
    for result in results:
        estimates = result.estimates()
        if not estimates and not result.row.paper:
            continue
        name = f"{result.row.name} (baseline)" if result.row.baseline else result.row.name
        cells: list[str] = [name, str(len(result.evaluations) or "-")]
        for attack in attacks:
            cells.append(_estimated(estimates.get(attack)))
            if _told(results, attack):
                cells.append(_paper(result, attack))
            if against:
                cells.append(_against(against.get(result.row.name, {}).get(attack), baseline=result.row.baseline))
        rows.append(cells)
    return markup(table(headers, rows, caption="Accuracy and robustness of the rows"), tag("p", how_sure(results)))


def how_sure(results: list[RowResult]) -> str:
    """Say what the intervals are."""
    several = sorted({e.seeds for result in results for e in result.estimates().values() if e.seeds > 1})
    single = sorted({e.images for result in results for e in result.estimates().values() if e.seeds == 1})
    radii = sorted({f"{e.eps:.6g} ({e.norm})" for result in results for e in result.evaluations})
    words = [f"Robustness is at eps {' or '.join(radii)}." if radii else ""]
    if len(radii) > 1:
        words.append("Rows at different eps cannot be compared.")
    if single:
        counts = " or ".join(f"{count:,}" for count in single)
        words.append(f"In rows of one seed the interval is Wilson's 95 % interval of {counts} test images: "
                     f"it does not tell what another seed would give.")  # fmt: skip
    if several:
        words.append("In rows of several seeds the number is their mean, ± their standard deviation, and the interval "
                     "Student's 95 % interval of that mean.")  # fmt: skip
    words.append("A difference is called within noise where its 95 % interval holds 0: Student's over pairs of "
                 "the same seeds, or, where rows do not share several, put together from those of both.")  # fmt: skip
    return " ".join(filter(None, words))


def _told(results: list[RowResult], attack: str) -> bool:
    return any(attack in result.row.paper for result in results)


def _paper(result: RowResult, attack: str) -> str:
    value = result.row.paper.get(attack)
    return "-" if value is None else f"{100 * value:.2f}"


def _estimated(value: Estimate | None) -> str:
    if value is None:
        return "-"
    spread = "" if value.spread is None else f" ± {100 * value.spread:.2f}"
    return markup(
        tag("strong", f"{100 * value.mean:.2f}"), spread, " ",
        tag("small", f"[{100 * value.low:.2f}, {100 * value.high:.2f}]"),
    )  # fmt: skip


def _against(value: Difference | None, *, baseline: bool) -> str:
    if value is None:
        return "0 (itself)" if baseline else "-"
    verdict = "within noise" if value.within_noise else "more than noise"
    return markup(f"{_signed(value.mean)} ", tag("small", f"[{_signed(value.low)}, {_signed(value.high)}] {verdict}"))


def _signed(share: float) -> str:
    return f"{100 * share:+.2f}".replace("-", "−")


def classes(results: list[RowResult], samples: Samples | None) -> Markup | None:
    """A line per class: what is kept of it, its median margin, accuracy and robustness in every row."""
    robust = robust_attack([result.estimates() for result in results])
    told = [(result, attack) for result in results for attack in ("clean", robust) if attack]
    told = [(result, attack) for result, attack in told if result.by_class(attack)]
    kept, margin = _of_samples(samples)
    by_class = [result.by_class(attack) for result, attack in told]
    names = list(dict.fromkeys([*kept, *(name for counts in by_class for name in counts)]))
    if not names:
        return None
    headers = ["class", *(["kept", "median margin"] if kept else [])]
    headers += [f"{result.row.name}: {ATTACK_NAMES.get(attack, attack)}" for result, attack in told]
    rows = [
        [name, *([kept.get(name, "-"), margin.get(name, "-")] if kept else []),
         *(_share(counts.get(name)) for counts in by_class)]
        for name in names[:MOST_CLASSES]
    ]  # fmt: skip
    left = len(names) - MOST_CLASSES
    more = [tag("p", f"The first {MOST_CLASSES} of {len(names):,} classes are shown.")] if left > 0 else []
    seeds = [tag("p", "Counts of several seeds are added up.")] if any(len(r.evaluations) > 1 for r in results) else []
    return markup(table(headers, rows, caption="What is kept of each class, and how the rows do on it"), *more, *seeds)


def _of_samples(samples: Samples | None) -> tuple[dict[str, str], dict[str, str]]:
    if samples is None or samples.labels is None:
        return {}, {}
    kept, margin = {}, {}
    order = np.argsort(samples.labels, kind="stable")
    ends = np.searchsorted(samples.labels[order], np.arange(len(samples.class_names) + 1))
    for label, name in enumerate(samples.class_names):
        mine = order[ends[label] : ends[label + 1]]
        if len(mine):
            number = int(samples.keep[mine].sum())
            kept[name] = f"{number / len(mine):.1%} ({number:,} of {len(mine):,})" if samples.plan else "-"
            values = samples.table.margin[mine]
            known = values[~np.isnan(values)]
            margin[name] = f"{np.median(known):+.4f}" if len(known) else "-"
    return kept, margin


def _share(count: Count | None) -> str:
    return f"{count.accuracy:.1%}" if count and count.total else "-"
