"""The numbers of a report as tables: rows side by side, and classes."""

import numpy as np

from puma.evaluation import Count, title_attack
from puma.report.comparison import Difference, Estimate, robust_attack
from puma.report.markup import Markup, markup, table, tag
from puma.report.results import RowResult, attacks_of, differences
from puma.report.samples import Samples

MOST_CLASSES = 200
Column = tuple[str, dict[str, str]]  # a header, and a cell for every class


def comparison(results: list[RowResult]) -> Markup:
    """A row each: accuracy under every attack with interval, the paper's, the difference to the baseline."""
    attacks = attacks_of(results)
    against = differences(results)
    headers = ["row", "seeds"]
    for attack in attacks:
        headers.append(f"{title_attack(attack)}, %")
        headers += ["paper, %"] if _told(results, attack) else []
        headers += ["to baseline, points"] if against else []
    rows, headings = [], []
    for result in results:
        estimates = result.estimates()
        if not estimates and not result.row.paper:
            continue
        name = f"{result.row.short} (baseline)" if result.row.baseline else result.row.short
        cells: list[str] = [name, str(len(result.evaluations) or "-")]
        for attack in attacks:
            cells.append(_estimated(estimates.get(attack)))
            if _told(results, attack):
                cells.append(_paper(result, attack))
            if against:
                cells.append(_against(against.get(result.row.name, {}).get(attack), baseline=result.row.baseline))
        rows.append(cells)
        headings.append(result.row.heading)
    shown = table(headers, rows, caption="Accuracy and robustness of the rows", headings=headings)
    return markup(shown, tag("p", how_sure(results)))


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
    interval = f"[{_signed(value.low)}, {_signed(value.high)}] "
    return markup(f"{_signed(value.mean)} ", tag("small", interval), tag("small", verdict, class_="verdict"))


def _signed(share: float) -> str:
    return f"{100 * share:+.2f}".replace("-", "−")


def classes(results: list[RowResult], samples: Samples | None) -> Markup | None:
    """A line per class: what is kept of it, its median margin, accuracy and robustness in every row.

    Rows on other classes have a table of their own.
    """
    robust = robust_attack([result.estimates() for result in results])
    columns = _of_samples(samples)
    for result in results:
        for attack in ("clean", robust) if robust else ("clean",):
            counts = {name: _share(count) for name, count in result.by_class(attack).items()}
            columns.append((f"{result.row.name}: {title_attack(attack)}", counts))
    groups = _by_classes([column for column in columns if column[1]])
    tables = [_class_table(group, index, len(groups)) for index, group in enumerate(groups)]
    seeds = [tag("p", "Counts of several seeds are added up.")] if any(len(r.evaluations) > 1 for r in results) else []
    return markup(*tables, *seeds) if tables else None


def _by_classes(columns: list[Column]) -> list[list[Column]]:
    """Put columns about the same classes together; some may lack a few."""
    groups: list[list[Column]] = []
    for column in sorted(columns, key=lambda column: -len(column[1])):
        group = next((group for group in groups if column[1].keys() <= group[0][1].keys()), None)
        if group is None:
            groups.append([column])
        else:
            group.append(column)
    order = [header for header, _ in columns]
    ordered = [sorted(group, key=lambda column: order.index(column[0])) for group in groups]
    return sorted(ordered, key=lambda group: order.index(group[0][0]))


def _class_table(columns: list[Column], index: int, count: int) -> Markup:
    names = list(dict.fromkeys(name for _, cells in columns for name in cells))
    rows = [[name, *(cells.get(name, "-") for _, cells in columns)] for name in names[:MOST_CLASSES]]
    which = f" ({index + 1} of {count} sets of classes)" if count > 1 else ""
    shown = table(["class", *(header for header, _ in columns)], rows, caption=f"The rows by class{which}")
    left = len(names) - MOST_CLASSES
    return markup(
        shown, *([tag("p", f"The first {MOST_CLASSES} of {len(names):,} classes are shown.")] if left > 0 else [])
    )


def _of_samples(samples: Samples | None) -> list[Column]:
    if samples is None or samples.labels is None:
        return []
    kept, margin = {}, {}
    order = np.argsort(samples.labels, kind="stable")
    ends = np.searchsorted(samples.labels[order], np.arange(len(samples.class_names) + 1))
    for label, name in enumerate(samples.class_names):
        mine = order[ends[label] : ends[label + 1]]
        if len(mine):
            number = int(samples.keep[mine].sum())
            kept[name] = f"{number / len(mine):.1%} ({number:,} of {len(mine):,})"
            known = samples.margin[mine][~np.isnan(samples.margin[mine])]
            margin[name] = f"{np.median(known):+.4f}" if len(known) else "-"
    columns = [(f"kept, {samples.name}", kept)] if samples.plan else []
    return [*columns, *([(f"median margin, {samples.name}", margin)] if samples.table else [])]


def _share(count: Count | None) -> str:
    return f"{count.accuracy:.1%}" if count and count.total else "-"
