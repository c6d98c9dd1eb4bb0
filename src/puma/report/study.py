"""What a report is about: rows of comparable results, each with the files of its seeds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Seed:
    """Where the results of one seed lie; None for what there is not."""

    seed: int
    run: Path | None = None
    pools: tuple[Path, ...] = ()
    plan: Path | None = None
    margins: Path | None = None
    evaluation: Path | None = None


@dataclass(frozen=True)
class Row:
    """One setting, trained with one or more seeds; ``paper`` holds accuracies that were published for it.

    A row is compared with a baseline of its own ``study`` (its place among those on the page) and ``group``. On a page
    of several studies the name begins with its study's ``heading``.
    """

    name: str
    seeds: tuple[Seed, ...]
    baseline: bool = False
    paper: Mapping[str, float] = field(default_factory=dict)
    eps: float | None = None
    norm: str | None = None
    study: int = 0
    group: str = ""
    heading: str = ""

    @property
    def short(self) -> str:
        """The name as it stands below the heading."""
        return self.name.removeprefix(f"{self.heading}: ") if self.heading else self.name


@dataclass(frozen=True)
class Study:
    """Rows, and what a reader should know about them: ``facts`` are names and values, ``notes`` sentences.

    ``place`` is the name of the folder it was read from. ``own`` are the facts that studies put together do not share,
    by heading.
    """

    title: str
    rows: tuple[Row, ...]
    facts: Facts = ()
    notes: tuple[str, ...] = ()
    place: str = ""
    own: tuple[tuple[str, Facts], ...] = ()


def seed_name(row: Row, seed: Seed) -> str:
    """Name one seed of a row, where it has several."""
    return f"{row.name}, seed {seed.seed} (of {len(row.seeds)})" if len(row.seeds) > 1 else row.name


def joined(studies: list[Study]) -> Study:
    """Put studies behind each other; each keeps its own baseline, and every row gets a name of its own."""
    if len(studies) == 1:
        return replace(studies[0], rows=_named(studies[0].rows))
    titles = _titles(studies)
    titled = list(zip(titles, studies, strict=True))
    rows = [
        replace(row, name=f"{title}: {row.name}", study=index, heading=title)
        for index, (title, study) in enumerate(titled)
        for row in study.rows
    ]
    described = [study.facts for study in studies if study.facts]
    shared = tuple(fact for fact in described[0] if all(fact in facts for facts in described)) if described else ()
    own = [(title, tuple(fact for fact in study.facts if fact not in shared)) for title, study in titled]
    notes = [note for study in studies for note in study.notes]
    title = " and ".join(titles) if len(titles) < 3 else f"{titles[0]} and {len(titles) - 1} more"
    return Study(title, _named(rows), shared, tuple(notes), own=tuple((name, facts) for name, facts in own if facts))


def _titles(studies: list[Study]) -> list[str]:
    """Tell studies of one title apart: by preset and dataset, else by their folders, else by number."""
    plain = [study.title for study in studies]
    settings = [[value for name, value in study.facts if name in ("preset", "dataset")] for study in studies]
    by_settings = [f"{title} ({', '.join(words)})" if words else title
                   for title, words in zip(plain, settings, strict=True)]  # fmt: skip
    by_place = [f"{study.title} ({study.place})" if study.place else study.title for study in studies]
    chosen = []
    for names in zip(plain, by_settings, by_place, strict=True):
        tellers = zip(names, (plain, by_settings, by_place), strict=True)
        chosen.append(next((name for name, others in tellers if others.count(name) == 1), names[2]))
    seen: dict[str, int] = {}
    for index, title in enumerate(chosen):
        seen[title] = seen.get(title, 0) + 1
        chosen[index] = title if seen[title] == 1 else f"{title} ({seen[title]})"
    return chosen


def _named(rows: Iterable[Row]) -> tuple[Row, ...]:
    seen: dict[str, int] = {}
    named = []
    for row in rows:
        seen[row.name] = seen.get(row.name, 0) + 1
        named.append(row if seen[row.name] == 1 else replace(row, name=f"{row.name} ({seen[row.name]})"))
    return tuple(named)
