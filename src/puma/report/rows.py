"""What a report is about: rows of comparable results, the files of their seeds, and what those files hold."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any

from puma.errors import PumaError
from puma.evaluation import ATTACKS, Count, EvaluationMetrics, read_evaluation
from puma.margins import Margins, read_margins, read_margins_footer
from puma.planning import Plan
from puma.pools import Pool, open_pools
from puma.progress import progress_bar
from puma.report.statistics import (
    AccuracyDifference,
    AccuracyEstimate,
    estimate_accuracy,
    subtract_estimates,
    subtract_paired,
)
from puma.training import RunFolder, RunInputs, TrainConfig

Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class SeedFiles:
    """Where the results of one seed lie; None for what there is not."""

    seed: int
    run: Path | None = None
    pools: tuple[Path, ...] = ()
    plan: Path | None = None
    margins: Path | None = None
    evaluation: Path | None = None


@dataclass(frozen=True)
class ReportRow:
    """One setting, trained with one or more seeds; ``paper`` holds accuracies that were published for it.

    A row is compared with a baseline of its own ``study`` (its place among those on the page) and ``group``. On a page
    of several studies the name begins with its study's ``heading``.
    """

    name: str
    seeds: tuple[SeedFiles, ...]
    baseline: bool = False
    paper: Mapping[str, float] = field(default_factory=dict)
    eps: float | None = None
    norm: str | None = None
    study: int = 0
    group: str = ""
    heading: str = ""

    @property
    def short_name(self) -> str:
        """The name as it stands below the heading."""
        return self.name.removeprefix(f"{self.heading}: ") if self.heading else self.name


@dataclass(frozen=True)
class ReportStudy:
    """Rows, and what a reader should know about them: ``facts`` are names and values, ``notes`` sentences.

    ``place`` is the name of the folder it was read from. ``own`` are the facts that studies put together do not share,
    by heading.
    """

    title: str
    rows: tuple[ReportRow, ...]
    facts: Facts = ()
    notes: tuple[str, ...] = ()
    place: str = ""
    own: tuple[tuple[str, Facts], ...] = ()


def seed_name(row: ReportRow, seed: SeedFiles) -> str:
    """Name one seed of a row, where it has several."""
    return f"{row.name}, seed {seed.seed} (of {len(row.seeds)})" if len(row.seeds) > 1 else row.name


def join_studies(studies: list[ReportStudy]) -> ReportStudy:
    """Put studies behind each other; each keeps its own baseline, and every row gets a name of its own."""
    if len(studies) == 1:
        return replace(studies[0], rows=_number_names(studies[0].rows))
    titles = _distinguish_titles(studies)
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
    return ReportStudy(
        title, _number_names(rows), shared, tuple(notes), own=tuple((name, facts) for name, facts in own if facts)
    )


def _distinguish_titles(studies: list[ReportStudy]) -> list[str]:
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


def _number_names(rows: Iterable[ReportRow]) -> tuple[ReportRow, ...]:
    seen: dict[str, int] = {}
    named = []
    for row in rows:
        seen[row.name] = seen.get(row.name, 0) + 1
        named.append(row if seen[row.name] == 1 else replace(row, name=f"{row.name} ({seen[row.name]})"))
    return tuple(named)


@contextmanager
def tell_damage(name: str) -> Iterator[None]:
    """Turn what a reader of a damaged file trips over, be it deep inside a library, into one sentence."""
    try:
        yield
    except (PumaError, OSError):
        raise
    except Exception as error:
        raise PumaError(f"{name} is damaged ({type(error).__name__}: {error}); make it again.") from error


def open_run(folder: Path) -> tuple[TrainConfig, RunInputs]:
    """Read what a run was begun with."""
    with tell_damage(str(RunFolder(folder).config)):
        config, inputs = RunFolder(folder).read()
        texts = [*inputs.pools, inputs.plan or "", inputs.pool_fingerprint]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"pools, plan and pool_fingerprint must be text, got {texts}")
        return config, inputs


def open_plan(path: Path) -> Plan:
    """Read a plan."""
    with tell_damage(str(path)):
        return Plan.open(path)


def open_pool(paths: Sequence[Path]) -> Pool:
    """Open pools as one; labels that are no class of it raise."""
    names = ", ".join(map(str, paths))
    with tell_damage(names):
        pool = open_pools(paths)
        if len(pool) and not 0 <= pool.labels.min() <= pool.labels.max() < pool.num_classes:
            found = f"{pool.labels.min()}..{pool.labels.max()}"
            raise PumaError(
                f"{names} is damaged: labels must be 0..{pool.num_classes - 1}, got {found}; import it again."
            )
        return pool


def open_evaluation(path: Path) -> EvaluationMetrics:
    """Read an evaluation; one at a radius that is none raises."""
    with tell_damage(str(path)):
        metrics = read_evaluation(path)
    if not 0 <= metrics.eps < _LARGEST_EPS:
        raise PumaError(f"{path} is damaged: eps must be a radius, got {metrics.eps}; evaluate again.")
    return metrics


def open_margins(path: Path) -> Margins:
    """Read margins; those without a sample raise. The last few are kept: several parts of a page ask for them."""
    with tell_damage(str(path)):
        written = path.stat()
        table = _keep_margins(path.resolve(), (written.st_mtime_ns, written.st_size))
    if not len(table):
        raise PumaError(f"{path} holds no sample; measure the margins again.")
    return table


@lru_cache(maxsize=2)
def _keep_margins(path: Path, _version: tuple[int, int]) -> Margins:
    """Read margins once for as long as the file stays as it is."""
    return read_margins(path)


def forget_margins() -> None:
    """Give the memory of margins back."""
    _keep_margins.cache_clear()


def read_margins_origin(path: Path) -> dict[str, Any]:
    """Return what margins were made from; a file that does not tell its pool raises."""
    with tell_damage(str(path)):
        described = read_margins_footer(path)
        if not isinstance(described.get("pool_fingerprint"), str):
            raise PumaError(f"{path} does not say which pool it was measured on; measure the margins again.")
        return described


Metrics = list[dict[str, Any]]
_LARGEST_EPS = 1e6  # L2 of the largest images; beyond is damage


@dataclass(frozen=True)
class RowResult:
    """One row: its evaluations, the lines its runs recorded, and the settings it was trained with.

    ``notes`` tell what of it could not be read.
    """

    row: ReportRow
    evaluations: tuple[EvaluationMetrics, ...]
    metrics: tuple[Metrics, ...]
    config: TrainConfig | None
    notes: tuple[str, ...] = ()

    @property
    def tested(self) -> set[tuple[float, str, str]]:
        """On what the row was evaluated: eps, norm and test set."""
        return {(evaluated.eps, evaluated.norm, evaluated.pool_fingerprint) for evaluated in self.evaluations}

    def by_seed(self, attack: str) -> dict[int, Count]:
        """Counts under an attack by seed, of those that were evaluated with it."""
        seeds = [seed.seed for seed in self.row.seeds if seed.evaluation]
        counts = {seed: evaluated.counts.get(attack) for seed, evaluated in zip(seeds, self.evaluations, strict=True)}
        return {seed: count for seed, count in counts.items() if count is not None and count.total}

    def estimates(self) -> dict[str, AccuracyEstimate]:
        """Accuracy under each attack that any seed was evaluated with."""
        found = {attack: estimate_accuracy(counts) for attack, counts in self._counts().items()}
        return {attack: value for attack, value in found.items() if value is not None}

    def _counts(self) -> dict[str, list[Count]]:
        attacks = dict.fromkeys(attack for evaluated in self.evaluations for attack in evaluated.counts)
        return {
            attack: [evaluated.counts[attack] for evaluated in self.evaluations if attack in evaluated.counts]
            for attack in attacks
        }

    def by_class(self, attack: str) -> dict[str, Count]:
        """Counts of each class under an attack, added up over seeds."""
        added: dict[str, Count] = {}
        for evaluated in self.evaluations:
            for name, count in evaluated.classes.get(attack, {}).items():
                before = added.get(name, Count(0, 0))
                added[name] = Count(before.right + count.right, before.total + count.total)
        return added


def read_results(study: ReportStudy, *, show: bool = False) -> list[RowResult]:
    """Read every row's files."""
    results = []
    with progress_bar("report: results", len(study.rows), unit="rows", enabled=show) as advance:
        for row in study.rows:
            runs = [seed.run for seed in row.seeds if seed.run]
            config = open_run(runs[0])[0] if runs else None
            results.append(
                RowResult(
                    row,
                    tuple(open_evaluation(seed.evaluation) for seed in row.seeds if seed.evaluation),
                    tuple(RunFolder(run).read_metrics() for run in runs if RunFolder(run).metrics.is_file()),
                    config,
                    tuple(sentence for run in runs for sentence in _count_lost_lines(run)),
                )
            )
            advance(1)
    return results


def _count_lost_lines(run: Path) -> Iterator[str]:
    """Say how many recorded lines cannot be read; the last may be in the middle of being written."""
    folder = RunFolder(run)
    if folder.metrics.is_file():
        with folder.metrics.open("rb") as file:
            lost = sum(1 for line in file if line.strip()) - len(folder.read_metrics())
        if lost > 1:
            yield f"{lost:,} lines of {folder.metrics} cannot be read and are left out of the curves."


def find_baseline(result: RowResult, results: list[RowResult]) -> RowResult | None:
    """Return the first baseline of the row's study and group that was evaluated as the row was."""
    baselines = [other for other in results if other.row.baseline and _place(other) == _place(result)]
    return next((other for other in baselines if other is result or _comparable(other, result)), None)


def _place(result: RowResult) -> tuple[int, str]:
    return result.row.study, result.row.group


def _comparable(one: RowResult, other: RowResult) -> bool:
    """Whether both were evaluated at one eps, in one norm and on one test set, the same."""
    return len(one.tested) == 1 and one.tested == other.tested


def compare_rows(results: list[RowResult]) -> dict[str, dict[str, AccuracyDifference]]:
    """How rows differ from their baseline, by row and attack; rows without one, and baselines, are left out."""
    found = {}
    for result in results:
        baseline = find_baseline(result, results)
        if baseline is not None and baseline is not result:
            shared = [attack for attack in result.estimates() if attack in baseline.estimates()]
            found[result.row.name] = {attack: compare_pair(result, baseline, attack) for attack in shared}
    return found


def compare_pair(result: RowResult, baseline: RowResult, attack: str) -> AccuracyDifference:
    """Compare seed by seed where both rows have the same several seeds, else as independent."""
    ours, theirs = result.by_seed(attack), baseline.by_seed(attack)
    if len(ours) > 1 and ours.keys() == theirs.keys():
        return subtract_paired([ours[seed] for seed in sorted(ours)], [theirs[seed] for seed in sorted(ours)])
    return subtract_estimates(result.estimates()[attack], baseline.estimates()[attack])


def list_attacks(results: list[RowResult]) -> list[str]:
    """Attacks that any row was evaluated with, in the order they are told: clean, C&W, AutoAttack, others."""
    seen: list[str] = reduce(lambda names, result: names + list(result.estimates()), results, list[str]())
    known = [name for name in ATTACKS if name in seen]
    return known + [name for name in dict.fromkeys(seen) if name not in known]
