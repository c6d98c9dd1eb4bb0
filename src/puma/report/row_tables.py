"""The numbers of a report as tables: what was run, rows side by side, classes."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from puma.errors import PumaError
from puma.evaluation import Count, title_attack
from puma.pools import Origin
from puma.report.rows import ReportStudy, RowResult, SeedFiles, compare_rows, list_attacks, open_plan, open_pool
from puma.report.samples import SampleTable, describe_plan
from puma.report.statistics import AccuracyDifference, AccuracyEstimate, choose_robust_attack
from puma.report.svg import Markup, join_markup, make_table, make_tag
from puma.training import config_to_dict

MOST_CLASSES = 200
Column = tuple[str, dict[str, str]]  # a header, and a cell for every class


def compare_in_table(results: list[RowResult]) -> Markup:
    """A row each: accuracy under every attack with interval, the paper's, the difference to the baseline."""
    attacks = list_attacks(results)
    against = compare_rows(results)
    headers = ["row", "seeds"]
    for attack in attacks:
        headers.append(f"{title_attack(attack)}, %")
        headers += ["paper, %"] if _has_paper(results, attack) else []
        headers += ["to baseline, points"] if against else []
    rows, headings = [], []
    for result in results:
        estimates = result.estimates()
        if not estimates and not result.row.paper:
            continue
        name = f"{result.row.short_name} (baseline)" if result.row.baseline else result.row.short_name
        cells: list[str] = [name, str(len(result.evaluations) or "-")]
        for attack in attacks:
            cells.append(_format_estimate(estimates.get(attack)))
            if _has_paper(results, attack):
                cells.append(_format_paper(result, attack))
            if against:
                cells.append(
                    _format_difference(against.get(result.row.name, {}).get(attack), baseline=result.row.baseline)
                )
        rows.append(cells)
        headings.append(result.row.heading)
    shown = make_table(headers, rows, caption="Accuracy and robustness of the rows", headings=headings)
    return join_markup(shown, make_tag("p", describe_intervals(results)))


def describe_intervals(results: list[RowResult]) -> str:
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


def _has_paper(results: list[RowResult], attack: str) -> bool:
    return any(attack in result.row.paper for result in results)


def _format_paper(result: RowResult, attack: str) -> str:
    value = result.row.paper.get(attack)
    return "-" if value is None else f"{100 * value:.2f}"


def _format_estimate(value: AccuracyEstimate | None) -> str:
    if value is None:
        return "-"
    spread = "" if value.spread is None else f" ± {100 * value.spread:.2f}"
    return join_markup(
        make_tag("strong", f"{100 * value.mean:.2f}"), spread, " ",
        make_tag("small", f"[{100 * value.low:.2f}, {100 * value.high:.2f}]"),
    )  # fmt: skip


def _format_difference(value: AccuracyDifference | None, *, baseline: bool) -> str:
    if value is None:
        return "0 (itself)" if baseline else "-"
    verdict = "within noise" if value.within_noise else "more than noise"
    interval = f"[{_format_signed(value.low)}, {_format_signed(value.high)}] "
    return join_markup(
        f"{_format_signed(value.mean)} ", make_tag("small", interval), make_tag("small", verdict, class_="verdict")
    )


def _format_signed(share: float) -> str:
    return f"{100 * share:+.2f}".replace("-", "−")


def tabulate_classes(results: list[RowResult], samples: SampleTable | None) -> Markup | None:
    """A line per class: what is kept of it, its median margin, accuracy and robustness in every row.

    Rows on other classes have a table of their own.
    """
    robust = choose_robust_attack([result.estimates() for result in results])
    columns = _list_sample_columns(samples)
    for result in results:
        for attack in ("clean", robust) if robust else ("clean",):
            counts = {name: _format_share(count) for name, count in result.by_class(attack).items()}
            columns.append((f"{result.row.name}: {title_attack(attack)}", counts))
    groups = _group_columns([column for column in columns if column[1]])
    tables = [_class_table(group, index, len(groups)) for index, group in enumerate(groups)]
    seeds = (
        [make_tag("p", "Counts of several seeds are added up.")] if any(len(r.evaluations) > 1 for r in results) else []
    )
    return join_markup(*tables, *seeds) if tables else None


def _group_columns(columns: list[Column]) -> list[list[Column]]:
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
    shown = make_table(["class", *(header for header, _ in columns)], rows, caption=f"The rows by class{which}")
    left = len(names) - MOST_CLASSES
    return join_markup(
        shown, *([make_tag("p", f"The first {MOST_CLASSES} of {len(names):,} classes are shown.")] if left > 0 else [])
    )


def _list_sample_columns(samples: SampleTable | None) -> list[Column]:
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


def _format_share(count: Count | None) -> str:
    return f"{count.accuracy:.1%}" if count and count.total else "-"


_SHOWN = ("model", "loss", "samples_seen", "batch_size", "beta", "attack.eps", "attack.norm", "attack.steps",
          "optimizer.lr", "compute.device", "compute.precision")  # fmt: skip


_LONG = 28  # characters: a longer value gets a line of its own


def describe_study(study: ReportStudy, results: list[RowResult]) -> Markup:
    """Return the section's content."""
    parts: list[Markup] = []
    images = [_describe_images(result.row.seeds[0]) if result.row.seeds else "-" for result in results]
    alike = len(images) > 1 and len(set(images)) == 1 and images[0] != "-"
    facts = [*study.facts, *_list_shared_settings(results, study), *_list_versions(results, study)]
    facts += [("training images", images[0])] if alike else []
    if facts:
        parts.append(make_tag("dl", *(_make_fact(name, value) for name, value in facts)))
    for heading, own in study.own:
        parts += [make_tag("h3", heading), make_tag("dl", *(_make_fact(name, value) for name, value in own))]
    notes = [*study.notes, *(f"{r.row.name}: {words}." for r in results for e in r.evaluations for words in e.warnings)]
    if notes:
        parts.append(make_tag("ul", *(make_tag("li", note) for note in dict.fromkeys(notes)), class_="notes"))
    rows = [
        [result.row.short_name, _list_seeds(result), *([] if alike else [pool]), _describe_plan(result)]
        for result, pool in zip(results, images, strict=True)
    ]
    headers = ["row", "seeds", *([] if alike else ["training images"]), "plan"]
    headings = [result.row.heading for result in results]
    parts.append(
        make_table(headers, rows, caption="The rows of this report", numbers_from=len(headers), headings=headings)
    )
    parts += _make_settings(results)
    return join_markup(*parts)


def _make_fact(name: str, value: str) -> Markup:
    return make_tag("div", make_tag("dt", name), make_tag("dd", value), class_="wide" if len(value) > _LONG else None)


def _list_seeds(result: RowResult) -> str:
    return ", ".join(str(seed.seed) for seed in result.row.seeds)


def _describe_plan(result: RowResult) -> str:
    plans = [(seed.seed, seed.plan) for seed in result.row.seeds if seed.plan]
    if plans:
        seed, plan = plans[0]
        which = f"seed {seed} (of {len(plans)}): " if len({path for _, path in plans}) > 1 else ""
        return which + describe_plan(open_plan(plan))
    if result.config is None:
        return "-"
    online = result.config.online.mode
    return (
        "none: every sample at full strength" if online == "off" else f"none: decided while training, online {online}"
    )


def _describe_images(seed: SeedFiles) -> str:
    if not seed.pools:
        return "-"
    try:
        pool = open_pool(seed.pools)
    except (PumaError, OSError):
        return "the pool cannot be opened"
    generated = int((pool.origin == Origin.GENERATED).sum())
    height, width, _ = pool.image_shape
    real = f"{len(pool) - generated:,} real"
    mixed = f"{real} and {generated:,} generated" if generated else real
    return f"{mixed}, {height} x {width} px, {pool.num_classes} classes"


def _list_told(study: ReportStudy) -> set[str]:
    return {name for facts in (study.facts, *(own for _, own in study.own)) for name, _ in facts}


def _list_versions(results: list[RowResult], study: ReportStudy) -> list[tuple[str, str]]:
    told = _list_told(study)
    found = {name: value for result in results for e in result.evaluations for name, value in e.versions.items()}
    return [(name, value) for name, value in found.items() if name not in told]


def _list_shared_settings(results: list[RowResult], study: ReportStudy) -> list[tuple[str, str]]:
    told = _list_told(study)
    shown = [name for name in _SHOWN if name.rpartition(".")[2] not in told]
    flat = [dict(flatten_settings(config_to_dict(result.config))) for result in results if result.config]
    return [
        (name, _format_setting(flat[0][name]))
        for name in shown
        if flat and all(c.get(name) == flat[0][name] for c in flat)
    ]


def _format_setting(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _make_settings(results: list[RowResult]) -> Iterator[Markup]:
    flat = {
        result.row.name: dict(flatten_settings(config_to_dict(result.config))) for result in results if result.config
    }
    if not flat:
        return
    first, *others = flat.values()
    differing = [name for name in first if name != "seed" and any(other.get(name) != first[name] for other in others)]
    if differing:
        rows = [[name, *(str(config.get(name, "-")) for config in flat.values())] for name in differing]
        yield make_table(["setting", *flat], rows, caption="Settings that differ between rows")
    alike = [[name, str(value)] for name, value in first.items() if name not in differing and name != "seed"]
    inner = make_table(["setting", "value"], alike, caption="Settings that all rows share")
    yield make_tag("details", make_tag("summary", f"All {len(alike)} settings that the rows share"), inner)


def flatten_settings(settings: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings with dots in their names instead of nested."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flatten_settings(value, f"{start}{name}.")
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from flatten_settings(dataclasses.asdict(value), f"{start}{name}.")
        else:
            yield start + name, value
