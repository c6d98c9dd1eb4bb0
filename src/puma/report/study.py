"""What a report is about: rows of comparable results, each with the files of its seeds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path


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

    A row is compared with the baseline of its own ``study``.
    """

    name: str
    seeds: tuple[Seed, ...]
    baseline: bool = False
    paper: Mapping[str, float] = field(default_factory=dict)
    eps: float | None = None
    norm: str | None = None
    study: str = ""


@dataclass(frozen=True)
class Study:
    """Rows, and what a reader should know about them: ``facts`` are names and values, ``notes`` sentences."""

    title: str
    rows: tuple[Row, ...]
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def joined(studies: list[Study]) -> Study:
    """Put studies behind each other; each keeps its own baseline, and every row gets a name of its own."""
    if len(studies) == 1:
        return replace(studies[0], rows=_named(studies[0].rows))
    rows = [
        replace(row, name=f"{study.title}: {row.name}", study=study.title) for study in studies for row in study.rows
    ]
    facts = [(f"{study.title}: {name}", value) for study in studies for name, value in study.facts]
    notes = [note for study in studies for note in study.notes]
    title = " and ".join(dict.fromkeys(study.title for study in studies))
    return Study(title, _named(rows), tuple(facts), tuple(notes))


def _named(rows: Iterable[Row]) -> tuple[Row, ...]:
    seen: dict[str, int] = {}
    named = []
    for row in rows:
        seen[row.name] = seen.get(row.name, 0) + 1
        named.append(row if seen[row.name] == 1 else replace(row, name=f"{row.name} ({seen[row.name]})"))
    return tuple(named)
