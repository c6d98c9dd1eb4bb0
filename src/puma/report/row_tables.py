"""The numbers of a report as tables: what was run, rows side by side, classes."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from puma.errors import PumaError
from puma.evaluation import Count, title_attack
from puma.pools import Origin
from puma.report.rows import (
    ReportStudy,
    RowResult,
    SeedFiles,
    compare_rows,
    list_attacks,
    open_plan,
    open_pool,
    read_margins_origin,
)
from puma.report.samples import SampleTable, describe_plan, name_margin_model
from puma.report.statistics import AccuracyDifference, AccuracyEstimate, choose_robust_attack
from puma.report.svg import Markup, join_markup, make_table, make_tag
from puma.report.units import write_distance, write_radius
from puma.training import config_to_dict

MOST_CLASSES = 200  # lines of a table: more are not read
_MOST_BESIDE, _LONGEST_BESIDE = 6, 40  # columns and characters of a header: a wider table is not put beside another
MOST_PAIRS = 12  # confused classes: what a reader takes in beside the table of ten classes
Column = tuple[str, dict[str, str]]  # a header, and a cell for every class


def compare_in_table(results: list[RowResult]) -> Markup:
    """A row each: accuracy under every attack with interval, the paper's, the difference to the baseline."""
    attacks = list_attacks(results)
    against = compare_rows(results)
    headers = ["row", "seed numbers"]
    for attack in attacks:
        headers.append(f"{title_attack(attack)}, %")
        headers += ["paper, %"] if _has_paper(results, attack) else []
        headers += ["to baseline, points"] if against else []
    rows, headings = [], []
    for result in results:
        estimates = result.estimates()
        if not estimates and not result.row.paper:
            continue
        name = result.row.short_name
        name += " (baseline)" if result.row.baseline and name != "baseline" else ""
        cells: list[str] = [name, list_seeds(seed.seed for seed in result.row.seeds if seed.evaluation)]
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


def describe_intervals(results: list[RowResult]) -> Markup:
    """Say what the intervals are."""
    several = sorted({e.seeds for result in results for e in result.estimates().values() if e.seeds > 1})
    single = sorted({e.images for result in results for e in result.estimates().values() if e.seeds == 1})
    radii = sorted({(e.eps, e.norm) for result in results for e in result.evaluations})
    told = [join_markup(write_radius(eps, norm), f" ({norm})") for eps, norm in radii]
    words: list[str] = []
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
    start = ["Robustness is at eps ", *_join_with(" or ", told), ". "] if told else []
    return join_markup(*start, " ".join(words))


def _join_with(sign: str, parts: Sequence[str]) -> list[str]:
    return [piece for part in parts for piece in (sign, part)][1:]


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
    confused = tabulate_confusions(samples) if samples else None
    seeds = (
        [make_tag("p", "Counts of several seeds are added up.")] if any(len(r.evaluations) > 1 for r in results) else []
    )
    if not tables:
        return confused
    if confused is None:
        return join_markup(*tables, *seeds)
    narrow = all(
        len(group) <= _MOST_BESIDE and len(header) <= _LONGEST_BESIDE for group in groups for header, _ in group
    )
    beside = make_tag("div", make_tag("div", *tables, *seeds), make_tag("div", confused),
                      class_="beside" if narrow else None)  # fmt: skip
    origins = tabulate_origins(samples) if samples else None
    return join_markup(beside, *([origins] if origins else []))


def tabulate_confusions(samples: SampleTable) -> Markup | None:
    """Which labels are taken for which classes, by the net that was measured: the most frequent pairs."""
    labels, table = samples.labels, samples.table
    if labels is None or table is None:
        return None
    predicted, names = table.prediction.numpy(), samples.class_names
    wrong = np.flatnonzero((labels != predicted) & (predicted >= 0) & (predicted < len(names)))
    if not len(wrong):
        return make_tag("p", f"{samples.name}: the net that was measured takes no sample for another class.")
    pairs, where, counts = np.unique(
        labels[wrong] * len(names) + predicted[wrong], return_inverse=True, return_counts=True
    )
    sizes, rows = np.bincount(labels, minlength=len(names)), []
    for place in np.argsort(-counts, kind="stable")[:MOST_PAIRS]:
        label, other = divmod(int(pairs[place]), len(names))
        margin = samples.margin[wrong[where == place]]
        known = margin[np.isfinite(margin)]
        lowest = write_distance(float(known.min()), samples.norm) if len(known) else "–"
        rows.append([f"{names[label]} → {names[other]}", f"{counts[place]:,}", f"{counts[place] / sizes[label]:.1%}",
                     lowest])  # fmt: skip
    headers = ["label → prediction", "samples", "of the label", "lowest margin"]
    caption = f"What {samples.margin_model} takes for what"
    which = f"The first {MOST_PAIRS} of {len(pairs):,} pairs. " if len(pairs) > MOST_PAIRS else ""
    share = f"{len(wrong):,} of {len(labels):,} samples ({len(wrong) / len(labels):.1%})"
    words = f"{which}{share} are taken for another class."
    return join_markup(make_table(headers, rows, caption=caption), make_tag("p", words))


def tabulate_origins(samples: SampleTable) -> Markup | None:
    """Real and generated samples side by side; nothing where there is one kind only."""
    generated = samples.generated
    if generated is None or generated.all() or not generated.any():
        return None
    rows = []
    for name, mine in (("real", ~generated), ("generated", generated)):
        margin = samples.margin[mine]
        known = margin[~np.isnan(margin)]
        cells: list[str] = [name, f"{int(mine.sum()):,}", f"{mine.mean():.1%}"]
        cells += [f"{samples.keep[mine].mean():.1%}"] if samples.plan else []
        if samples.table:
            cells.append(f"{(known < 0).mean():.1%}" if len(known) else "–")
            cells.append(write_distance(float(np.median(known)), samples.norm) if len(known) else "–")
        rows.append(cells)
    headers = ["origin", "samples", "of all", *(["kept"] if samples.plan else [])]
    headers += ["margin below 0", "median margin"] if samples.table else []
    return make_table(headers, rows, caption=f"Real and generated samples of {samples.name}")


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
            margin[name] = write_distance(float(np.median(known)), samples.norm) if len(known) else "-"
    columns = [(f"kept, {samples.name}", kept)] if samples.plan else []
    return [*columns, *([(f"median margin, {samples.name}", margin)] if samples.table else [])]


def _format_share(count: Count | None) -> str:
    return f"{count.accuracy:.1%}" if count and count.total else "-"


_SHOWN = ("model", "loss", "samples_seen", "batch_size", "generated_fraction", "beta", "attack.eps",
          "attack.norm", "attack.steps", "optimizer.lr", "compute.device", "compute.precision")  # fmt: skip


_LONG = 28  # characters: a longer value gets a line of its own


def describe_study(study: ReportStudy, results: list[RowResult]) -> Markup:
    """Return the section's content: the rows, and behind a fold what they were run with."""
    images = [describe_images(result.row.seeds[0]) if result.row.seeds else "-" for result in results]
    alike = len(images) > 1 and len(set(images)) == 1 and images[0] != "-"
    facts: list[tuple[str, str]] = [
        *study.facts,
        *_list_shared_settings(results, study),
        *_list_versions(results, study),
    ]
    facts = [(name, _format_fact(name, value, results)) for name, value in facts]
    facts += [("training images", images[0])] if alike else []
    models = [_name_margin_model(result) for result in results]
    rows = [
        [result.row.short_name, list_seeds(seed.seed for seed in result.row.seeds if seed.run or seed.evaluation),
         *([] if alike else [pool]), *([model or "–"] if any(models) else []), _describe_plan(result)]
        for result, pool, model in zip(results, images, models, strict=True)
    ]  # fmt: skip
    headers = [
        "row",
        "seed numbers",
        *([] if alike else ["training images"]),
        *(["margins of"] if any(models) else []),
        "plan",
    ]
    headings = [result.row.heading for result in results]
    table = make_table(headers, rows, caption="The rows of this report", numbers_from=len(headers), headings=headings)
    folded: list[Markup] = []
    if facts:
        folded.append(make_tag("dl", *(_make_fact(name, value) for name, value in facts)))
    for heading, own in study.own:
        folded += [make_tag("h3", heading), make_tag("dl", *(_make_fact(name, value) for name, value in own))]
    folded += _make_settings(results)
    fold = make_tag("details", make_tag("summary", "Settings, versions and command"), *folded) if folded else None
    return join_markup(table, *([fold] if fold else []))


def list_notes(study: ReportStudy, results: list[RowResult]) -> list[str]:
    """Sentences that a reader should know: what is missing or unknown, and what evaluations warn of."""
    warned = [f"{result.row.name}: {words}." for result in results for e in result.evaluations for words in e.warnings]
    lost = [note for result in results for note in result.notes]
    return list(dict.fromkeys([*study.notes, *lost, *warned]))


def _format_fact(name: str, value: str, results: list[RowResult]) -> str:
    """Write a radius among the facts as people do; other facts stay as they are."""
    if name not in ("eps", "attack.eps"):
        return value
    norms = {str(result.row.norm) for result in results}
    try:
        return write_radius(float(value), norms.pop()) if len(norms) == 1 else value
    except ValueError:
        return value


def _name_margin_model(result: RowResult) -> str:
    names = [name_margin_model(read_margins_origin(seed.margins)) for seed in result.row.seeds if seed.margins]
    more = f" and {len(set(names)) - 1} more" if len(set(names)) > 1 else ""
    return f"{names[0]}{more}" if names else ""


def _make_fact(name: str, value: str) -> Markup:
    return make_tag("div", make_tag("dt", name), make_tag("dd", value), class_="wide" if len(value) > _LONG else None)


def list_seeds(seeds: Iterable[int]) -> str:
    """Write seeds as numbers, those behind each other as a range: 0, 1 or 0 to 9; a dash where there are none."""
    ordered = sorted(set(seeds))
    if len(ordered) > 3 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]} to {ordered[-1]}"
    return ", ".join(map(str, ordered)) or "–"


def _describe_plan(result: RowResult) -> str:
    plans = [(seed.seed, seed.plan) for seed in result.row.seeds if seed.plan]
    if plans:
        seed, plan = plans[0]
        which = f"seed {seed} (of {len(plans)}): " if len({path for _, path in plans}) > 1 else ""
        return join_markup(which, describe_plan(open_plan(plan), result.row.norm))
    if result.config is None:
        return "-"
    online = result.config.online.mode
    return (
        "none: every sample at full strength" if online == "off" else f"none: decided while training, online {online}"
    )


def describe_images(seed: SeedFiles) -> str:
    """Say how many images of which origin, size and classes a seed was trained on."""
    if not seed.pools:
        return "-"
    try:
        pool = open_pool(seed.pools)
    except (PumaError, OSError):
        return "the pool cannot be opened"
    generated = int((pool.origin == Origin.GENERATED).sum())
    height, width, _ = pool.image_shape
    real = f"{len(pool) - generated:,} real"
    mixed = f"{real} and {generated:,} generated ({generated / len(pool):.0%})" if generated else real
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
        if flat and flat[0].get(name) is not None and all(c.get(name) == flat[0][name] for c in flat)
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
    yield inner


def flatten_settings(settings: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings with dots in their names instead of nested."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flatten_settings(value, f"{start}{name}.")
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from flatten_settings(dataclasses.asdict(value), f"{start}{name}.")
        else:
            yield start + name, value
