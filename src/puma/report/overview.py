"""What was run: facts, notes, the rows and their plans in words, settings."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from puma.errors import PumaError
from puma.pools import Origin
from puma.report.markup import Markup, markup, table, tag
from puma.report.planned import plan_in_words
from puma.report.reading import open_plan, open_pool
from puma.report.results import RowResult
from puma.report.study import Seed, Study
from puma.training.config import to_dict

_SHOWN = ("model", "loss", "samples_seen", "batch_size", "beta", "attack.eps", "attack.norm", "attack.steps",
          "optimizer.lr", "compute.device", "compute.precision")  # fmt: skip


_LONG = 28  # characters: a longer value gets a line of its own


def overview(study: Study, results: list[RowResult]) -> Markup:
    """Return the section's content."""
    parts: list[Markup] = []
    images = [_trained_on(result.row.seeds[0]) if result.row.seeds else "-" for result in results]
    alike = len(images) > 1 and len(set(images)) == 1 and images[0] != "-"
    facts = [*study.facts, *_settings_shared(results, study), *_versions(results, study)]
    facts += [("training images", images[0])] if alike else []
    if facts:
        parts.append(tag("dl", *(_fact(name, value) for name, value in facts)))
    for heading, own in study.own:
        parts += [tag("h3", heading), tag("dl", *(_fact(name, value) for name, value in own))]
    notes = [*study.notes, *(f"{r.row.name}: {words}." for r in results for e in r.evaluations for words in e.warnings)]
    if notes:
        parts.append(tag("ul", *(tag("li", note) for note in dict.fromkeys(notes)), class_="notes"))
    rows = [
        [result.row.short, _seeds(result), *([] if alike else [pool]), _plan(result)]
        for result, pool in zip(results, images, strict=True)
    ]
    headers = ["row", "seeds", *([] if alike else ["training images"]), "plan"]
    headings = [result.row.heading for result in results]
    parts.append(table(headers, rows, caption="The rows of this report", numbers_from=len(headers), headings=headings))
    parts += _settings(results)
    return markup(*parts)


def _fact(name: str, value: str) -> Markup:
    return tag("div", tag("dt", name), tag("dd", value), class_="wide" if len(value) > _LONG else None)


def _seeds(result: RowResult) -> str:
    return ", ".join(str(seed.seed) for seed in result.row.seeds)


def _plan(result: RowResult) -> str:
    plans = [(seed.seed, seed.plan) for seed in result.row.seeds if seed.plan]
    if plans:
        seed, plan = plans[0]
        which = f"seed {seed} (of {len(plans)}): " if len({path for _, path in plans}) > 1 else ""
        return which + plan_in_words(open_plan(plan))
    if result.config is None:
        return "-"
    online = result.config.online.mode
    return (
        "none: every sample at full strength" if online == "off" else f"none: decided while training, online {online}"
    )


def _trained_on(seed: Seed) -> str:
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


def _told(study: Study) -> set[str]:
    return {name for facts in (study.facts, *(own for _, own in study.own)) for name, _ in facts}


def _versions(results: list[RowResult], study: Study) -> list[tuple[str, str]]:
    told = _told(study)
    found = {name: value for result in results for e in result.evaluations for name, value in e.versions.items()}
    return [(name, value) for name, value in found.items() if name not in told]


def _settings_shared(results: list[RowResult], study: Study) -> list[tuple[str, str]]:
    told = _told(study)
    shown = [name for name in _SHOWN if name.rpartition(".")[2] not in told]
    flat = [dict(flattened(to_dict(result.config))) for result in results if result.config]
    return [(name, _plain(flat[0][name])) for name in shown if flat and all(c.get(name) == flat[0][name] for c in flat)]


def _plain(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _settings(results: list[RowResult]) -> Iterator[Markup]:
    flat = {result.row.name: dict(flattened(to_dict(result.config))) for result in results if result.config}
    if not flat:
        return
    first, *others = flat.values()
    differing = [name for name in first if name != "seed" and any(other.get(name) != first[name] for other in others)]
    if differing:
        rows = [[name, *(str(config.get(name, "-")) for config in flat.values())] for name in differing]
        yield table(["setting", *flat], rows, caption="Settings that differ between rows")
    alike = [[name, str(value)] for name, value in first.items() if name not in differing and name != "seed"]
    inner = table(["setting", "value"], alike, caption="Settings that all rows share")
    yield tag("details", tag("summary", f"All {len(alike)} settings that the rows share"), inner)


def flattened(settings: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings with dots in their names instead of nested."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{start}{name}.")
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from flattened(dataclasses.asdict(value), f"{start}{name}.")
        else:
            yield start + name, value
