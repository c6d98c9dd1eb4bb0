"""What a report is about: rows of comparable results, each with the files of its seeds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """One setting, trained with one or more seeds; ``paper`` holds accuracies that were published for it."""

    name: str
    seeds: tuple[Seed, ...]
    baseline: bool = False
    paper: Mapping[str, float] = field(default_factory=dict)
    eps: float | None = None
    norm: str | None = None


@dataclass(frozen=True)
class Study:
    """Rows, and what a reader should know about them: ``facts`` are names and values, ``notes`` sentences."""

    title: str
    rows: tuple[Row, ...]
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def joined(studies: list[Study]) -> Study:
    """Put studies behind each other; rows of the same name get their study's title in front."""
    names = [row.name for study in studies for row in study.rows]
    rows, facts, notes = [], [], []
    for study in studies:
        for row in study.rows:
            name = f"{study.title}: {row.name}" if names.count(row.name) > 1 and len(studies) > 1 else row.name
            rows.append(Row(name, row.seeds, row.baseline, row.paper, row.eps, row.norm))
        facts += [(f"{study.title}: {name}" if len(studies) > 1 else name, value) for name, value in study.facts]
        notes += study.notes
    return Study(" and ".join(dict.fromkeys(study.title for study in studies)), tuple(rows), tuple(facts), tuple(notes))
