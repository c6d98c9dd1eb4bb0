"""Everything that the rows of a study measured, read from their files."""

from dataclasses import dataclass
from functools import reduce
from typing import Any

from puma.evaluation import ATTACKS, Count, EvaluationMetrics, read_evaluation
from puma.progress import progress_bar
from puma.report.comparison import Difference, Estimate, difference, estimate, paired_difference
from puma.report.curves import read_metrics
from puma.report.reading import open_run
from puma.report.study import Row, Study
from puma.training.config import TrainConfig
from puma.training.run_folder import RunFolder

Metrics = list[dict[str, Any]]


@dataclass(frozen=True)
class RowResult:
    """One row: its evaluations, the lines its runs recorded, and the settings it was trained with."""

    row: Row
    evaluations: tuple[EvaluationMetrics, ...]
    metrics: tuple[Metrics, ...]
    config: TrainConfig | None

    @property
    def tested(self) -> set[tuple[float, str, str]]:
        """On what the row was evaluated: eps, norm and test set."""
        return {(evaluated.eps, evaluated.norm, evaluated.pool_fingerprint) for evaluated in self.evaluations}

    def by_seed(self, attack: str) -> dict[int, Count]:
        """Counts under an attack by seed, of those that were evaluated with it."""
        seeds = [seed.seed for seed in self.row.seeds if seed.evaluation]
        counts = {seed: evaluated.counts.get(attack) for seed, evaluated in zip(seeds, self.evaluations, strict=True)}
        return {seed: count for seed, count in counts.items() if count is not None and count.total}

    def estimates(self) -> dict[str, Estimate]:
        """Accuracy under each attack that any seed was evaluated with."""
        found = {attack: estimate(counts) for attack, counts in self._counts().items()}
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


def read_results(study: Study, *, show: bool = False) -> list[RowResult]:
    """Read every row's files."""
    results = []
    with progress_bar("report: results", len(study.rows), unit="rows", enabled=show) as advance:
        for row in study.rows:
            runs = [seed.run for seed in row.seeds if seed.run]
            config = open_run(runs[0])[0] if runs else None
            results.append(
                RowResult(
                    row,
                    tuple(read_evaluation(seed.evaluation) for seed in row.seeds if seed.evaluation),
                    tuple(read_metrics(run) for run in runs if RunFolder(run).metrics.is_file()),
                    config,
                )
            )
            advance(1)
    return results


def baseline_of(result: RowResult, results: list[RowResult]) -> RowResult | None:
    """Return the first baseline of the row's study and group that was evaluated as the row was."""
    baselines = [other for other in results if other.row.baseline and _place(other) == _place(result)]
    return next((other for other in baselines if other is result or _comparable(other, result)), None)


def _place(result: RowResult) -> tuple[int, str]:
    return result.row.study, result.row.group


def _comparable(one: RowResult, other: RowResult) -> bool:
    """Whether both were evaluated at one eps, in one norm and on one test set, the same."""
    return len(one.tested) == 1 and one.tested == other.tested


def differences(results: list[RowResult]) -> dict[str, dict[str, Difference]]:
    """How rows differ from their baseline, by row and attack; rows without one, and baselines, are left out."""
    found = {}
    for result in results:
        baseline = baseline_of(result, results)
        if baseline is not None and baseline is not result:
            shared = [attack for attack in result.estimates() if attack in baseline.estimates()]
            found[result.row.name] = {attack: against(result, baseline, attack) for attack in shared}
    return found


def against(result: RowResult, baseline: RowResult, attack: str) -> Difference:
    """Compare seed by seed where both rows have the same several seeds, else as independent."""
    ours, theirs = result.by_seed(attack), baseline.by_seed(attack)
    if len(ours) > 1 and ours.keys() == theirs.keys():
        return paired_difference([ours[seed] for seed in sorted(ours)], [theirs[seed] for seed in sorted(ours)])
    return difference(result.estimates()[attack], baseline.estimates()[attack])


def attacks_of(results: list[RowResult]) -> list[str]:
    """Attacks that any row was evaluated with, in the order they are told: clean, C&W, AutoAttack, others."""
    seen: list[str] = reduce(lambda names, result: names + list(result.estimates()), results, list[str]())
    known = [name for name in ATTACKS if name in seen]
    return known + [name for name in dict.fromkeys(seen) if name not in known]
