"""A verdict on every claim of the paper: the difference it is about, over the seeds in ``results/``."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from puma.experiments.results import ResultSummary, name_setting, read_results_file, summarise_results
from puma.report import student_quantile

Relation = Literal["higher", "lower", "same"]
Verdict = Literal["holds", "does not", "undecided", "not testable here"]

_SAME_WITHIN = 0.01  # accuracies the paper calls the same differ by less than a point
_ALIKE_WITHIN = 0.05  # medians of distributions that are called alike, relative; set after they were measured


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper as a comparison: ``quantity`` of ``row`` is higher than that of ``against``, say.

    Attributes:
        experiment: whose results show it; its lines at the presets small, small-real and those of CIFAR-10.
        text: the claim in words.
        row: the row it is about; "" for what cannot be tested here.
        against: what it is compared with.
        quantity: what is compared.
        relation: what the paper says of it.
        at: place on the horizontal axis of ``row``, for figures.
        against_at: that of ``against``; the same if not given.
        against_in: the experiment that ``against`` is a row of, where it is another.
        by: how large the difference has to be at least.
    """

    experiment: str
    text: str
    row: str = ""
    against: str = ""
    quantity: str = "clean_accuracy"
    relation: Relation = "higher"
    at: float | None = None
    against_at: float | None = None
    against_in: str = ""
    by: float = 0.0


@dataclass(frozen=True)
class ClaimVerdict:
    """What the seeds say: the mean difference, its 95 % interval (Student's, paired over seeds) where there are two."""

    claim: Claim
    dataset: str
    verdict: Verdict
    difference: float | None = None
    interval: tuple[float, float] | None = None
    seeds: int = 0


def _pair_claims(
    experiment: str, text: str, row: str, against: str, accuracy: Relation, robustness: Relation
) -> tuple[Claim, Claim]:
    """Return the claims about accuracy and about robustness of one row."""
    return (
        Claim(experiment, f"{text}: accuracy {accuracy}", row, against, "clean_accuracy", accuracy),
        Claim(experiment, f"{text}: robustness {robustness}", row, against, "robust_accuracy", robustness),
    )


def _figure_claims(experiment: str, series: str, name: str) -> tuple[Claim, Claim]:
    """Return the claims about growing prune fractions of one line of a figure."""
    return (
        Claim(experiment, f"{name}: accuracy rises with pruning (20 % against 0 %)", series, series, at=0.2,
              against_at=0.0),
        Claim(experiment, f"{name}: robustness then drops sharply (60 % against 0 %)", series, series,
              "robust_accuracy", "lower", 0.6, 0.0),
    )  # fmt: skip


def _perceptron_claim(
    figure: str, text: str, row: str, relation: Relation, alpha: float, against: str = "none", against_in: str = ""
) -> Claim:
    return Claim(figure, f"{text} (alpha {alpha:g})", row, against, "error", relation, alpha, alpha, against_in)


CLAIMS: tuple[Claim, ...] = (
    *_pair_claims("tab-summary", "PUMA against TRADES", "PUMA 20 %", "TRADES", "higher", "same"),
    _perceptron_claim("fig1", "few samples: PD lowers the error", "PD 50 %", "lower", 1.0),
    _perceptron_claim("fig1", "few samples: PE raises it", "PE 50 %", "higher", 1.0),
    _perceptron_claim("fig1", "many samples: PE lowers it", "PE 20 %", "lower", 8.0),
    _perceptron_claim("fig2", "a weak attack lowers the error without pruning", "none", "lower", 3.0, "none", "fig1"),
    _perceptron_claim("fig3", "a strong attack: PE falls behind, strongly pruned", "PE 1 %", "higher", 8.0),
    _perceptron_claim("fig3", "a strong attack: PE falls behind, moderately pruned", "PE 20 %", "higher", 8.0),
    _perceptron_claim("fig4", "filtered: PE helps again", "PE 20 %, filtered", "lower", 8.0, "none, filtered"),
    *_pair_claims("tab-double-pruning", "PE 22 % against no pruning", "PE 22 %", "no pruning", "higher", "lower"),
    *_pair_claims("tab-double-pruning", "PD 12 % against no pruning", "PD 12 %", "no pruning", "lower", "same"),
    *_pair_claims(
        "tab-double-pruning", "PE + PD against random pruning", "PE 22 % + PD 12 %", "random 22 %", "lower", "same"
    ),
    Claim("fig-pd", "PD 22 % is less accurate than no pruning at the end", "PD 22 %", "no pruning", relation="lower"),
    Claim("fig-pd", "PD 22 % is no more robust at the end", "PD 22 %", "no pruning", "robust_accuracy", "same"),
    Claim("fig-pe", "PE 22 % is more accurate than no pruning", "PE 22 %", "no pruning"),
    Claim("fig-pe", "PE 22 % is less robust than random 22 %", "PE 22 %", "random 22 %", "robust_accuracy", "lower"),
    *_figure_claims("fig-data-size", "few generated (200K in the paper)", "few images"),
    *_figure_claims("fig-data-size", "usual generated (1M in the paper)", "the usual number"),
    *_figure_claims("fig-data-size", "many generated (10M in the paper)", "many images"),
    *_figure_claims("fig-models", "main net (ResNet-18 in the paper)", "first net"),
    *_figure_claims("fig-models", "second net (PreActResNet-18 in the paper)", "second net"),
    *_figure_claims("fig-models", "third net (WRN-28-10 in the paper)", "third net"),
    *_pair_claims("tab-imagenet", "WordNet's large classes: PUMA 0 % against TRADES", "PUMA 0 %", "TRADES",
                  "higher", "lower"),
    *_pair_claims("tab-imagenet", "WordNet's large classes: PUMA 10 % against PUMA 0 %", "PUMA 10 %", "PUMA 0 %",
                  "higher", "lower"),
    *_pair_claims("tab-gap", "a gap of eps/8 against none", "gap eps/8", "no gap", "higher", "lower"),
    *_pair_claims("tab-epsilon", "3/4 eps against eps", "3/4 eps", "eps", "higher", "lower"),
    *_pair_claims("tab-epsilon", "5/4 eps against eps", "5/4 eps", "eps", "lower", "higher"),
    *_pair_claims("tab-online", "online without pruning against PUMA 0 %", "online, no pruning", "PUMA 0 %",
                  "higher", "lower"),
    Claim("tab-online", "online pruning at a fixed threshold collapses: accuracy 20 points lower or more",
          "online, pruned at 3.25 eps", "PUMA 0 %", relation="lower", by=0.2),
    Claim("tab-online", "online pruning at a fixed threshold collapses: robustness 20 points lower or more",
          "online, pruned at 3.25 eps", "PUMA 0 %", "robust_accuracy", "lower", by=0.2),
    *_pair_claims("tab-margin-difficult", "eps/8 for what is always wrong against eps for all",
                  "eps/8 if always wrong", "eps for all", "higher", "higher"),
    *_pair_claims("tab-margin-difficult", "the margin for what is always wrong against eps/8",
                  "margin if always wrong", "eps/8 if always wrong", "higher", "higher"),
    *_pair_claims("tab-margin-difficult", "the margin for all against that for what is always wrong",
                  "margin for all", "margin if always wrong", "same", "same"),
    *_pair_claims("tab-pruning-strategies", "PUMA by margin against random pruning", "PUMA 22 %, by margin",
                  "random 22 %, eps for all", "higher", "same"),
    *_pair_claims("tab-pruning-strategies", "pruning by margin against by difficulty", "PUMA 22 %, by margin",
                  "PUMA 22 %, by difficulty", "same", "higher"),
    *_pair_claims("tab-margin-model", "margins by a model of all images against one of real images",
                  "same net, same images", "same net, real images only", "higher", "same"),
    *_pair_claims("tab-margin-model", "iterated against the first round", "iterated: the row above",
                  "same net, same images", "same", "same"),
    *_pair_claims("tab-margin-model", "margins by a wide net against the same net", "wide net, same images",
                  "same net, same images", "lower", "lower"),
    *_pair_claims("tab-margin-model", "margins by a wide net of most images against the same net",
                  "wide net, most images", "same net, same images", "lower", "lower"),
    *_pair_claims("tab-margin-model", "margins by the widest net against the same net", "widest net, most images",
                  "same net, same images", "lower", "lower"),
    Claim("fig-margin-distribution", "Algorithm 1 and DeepFool give like margins (median)", "Algorithm 1", "DeepFool",
          "margin_q50", "same"),
)  # fmt: skip


def judge_claims(results: Path, claims: Sequence[Claim] = CLAIMS) -> list[ClaimVerdict]:
    """Judge every claim on every data set that its rows were measured on."""
    tables: dict[str, list[ResultSummary]] = {}
    for name in {name for claim in claims for name in (claim.experiment, claim.against_in) if name}:
        path = results / f"{name}.csv"
        summaries = summarise_results(read_results_file(path)) if path.is_file() else []
        tables[name] = [line for line in summaries if name_setting(line.origin) is not None]
    return [verdict for claim in claims for verdict in _judge_claim(claim, tables)]


def find_efficiency(lines: Sequence[ResultSummary], row: str, against: str, quantity: str) -> list[float | None]:
    """Return with which share of the samples ``row`` reaches what ``against`` ends with, by seed of both; None: never.

    Between two points of a curve the quantity is taken to rise evenly.
    """
    curves: dict[str, dict[int, list[tuple[float, float]]]] = {row: {}, against: {}}
    for line in lines:
        if line.row in curves and line.quantity == quantity and line.at is not None:
            for seed, value in line.by_seed.items():
                curves[line.row].setdefault(seed, []).append((line.at, value))
    found: list[float | None] = []
    for seed in sorted(curves[row].keys() & curves[against].keys()):
        end, goal = max(curves[against][seed])
        before = (0.0, 0.0)
        for at, value in sorted(curves[row][seed]):
            if value >= goal:
                rise = value - before[1]
                found.append((before[0] + (at - before[0]) * (goal - before[1]) / rise if rise else at) / end)
                break
            before = (at, value)
        else:
            found.append(None)
    return found


def estimate_mean(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of two values or more, and the half width of its 95 % interval."""
    half = student_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), half


def _judge_claim(claim: Claim, tables: Mapping[str, Sequence[ResultSummary]]) -> list[ClaimVerdict]:
    ours = _find_values(tables[claim.experiment], claim.row, claim.quantity, claim.at)
    at = claim.at if claim.against_at is None else claim.against_at
    others = _find_values(tables[claim.against_in or claim.experiment], claim.against, claim.quantity, at)
    shared = [dataset for dataset in ours if dataset in others]
    if not shared:
        return [ClaimVerdict(claim, "", "not testable here")]
    return [judge_difference(claim, dataset, ours[dataset], others[dataset]) for dataset in shared]


def _find_values(
    lines: Sequence[ResultSummary], row: str, quantity: str, at: float | None
) -> dict[str, Mapping[int, float]]:
    """Return the values by seed of one row and quantity, by setting."""
    return {
        name_setting(line.origin) or "": line.by_seed
        for line in lines
        if (line.row, line.quantity, line.at) == (row, quantity, at)
    }


def judge_difference(
    claim: Claim, dataset: str, ours: Mapping[int, float], others: Mapping[int, float]
) -> ClaimVerdict:
    """Judge by the seeds that both rows have; a single seed decides nothing but whether distributions are alike."""
    seeds = sorted(ours.keys() & others.keys())
    if not seeds:
        return ClaimVerdict(claim, dataset, "not testable here")
    steps = [ours[seed] - others[seed] for seed in seeds]
    mean = statistics.fmean(steps)
    if claim.quantity.startswith("margin_"):
        relative = mean / statistics.fmean(others[seed] for seed in seeds)
        verdict: Verdict = "holds" if abs(relative) <= _ALIKE_WITHIN else "does not"
        return ClaimVerdict(claim, dataset, verdict, mean, None, len(seeds))
    if len(seeds) == 1:
        return ClaimVerdict(claim, dataset, "undecided", mean, None, 1)
    half = estimate_mean(steps)[1]
    low, high = mean - half, mean + half
    return ClaimVerdict(claim, dataset, _compare_interval(claim, low, high), mean, (low, high), len(seeds))


def _compare_interval(claim: Claim, low: float, high: float) -> Verdict:
    """Tell whether all of an interval agrees with the relation, none of it, or some."""
    if claim.relation == "same":
        if low > -_SAME_WITHIN and high < _SAME_WITHIN:
            return "holds"
        return "undecided" if low <= 0 <= high else "does not"
    if claim.relation == "lower":
        low, high = -high, -low
    if low > claim.by:
        return "holds"
    return "does not" if high < claim.by else "undecided"


def format_verdicts(verdicts: Sequence[ClaimVerdict]) -> str:
    """Return a table in Markdown, a line per claim and data set, and how many there are of each verdict."""
    kinds: tuple[Verdict, ...] = ("holds", "does not", "undecided", "not testable here")
    counted = ", ".join(f"{sum(verdict.verdict == kind for verdict in verdicts)} {kind}" for kind in kinds)
    lines = ["| claim | verdict | difference | 95 % interval | seeds | shown by |", "|---|---|---|---|---|---|"]
    for verdict in verdicts:
        claim = verdict.claim
        scale, digits, unit = _choose_unit(claim.quantity)
        difference = "" if verdict.difference is None else f"{scale * verdict.difference:+.{digits}f}{unit}"
        ends = [f"{scale * end:+.{digits}f}" for end in verdict.interval or ()]
        between, shown = " to ".join(ends), _name_rows(claim)
        place = f" ({verdict.dataset})" if verdict.dataset else ""
        lines.append(
            f"| {claim.text}{place} | {verdict.verdict} | {difference} | {between} | {verdict.seeds or ''} | {shown} |"
        )
    return "\n".join([f"{len(verdicts)} comparisons: {counted}.", "", *lines])


def _name_rows(claim: Claim) -> str:
    if not claim.row:
        return f"`{claim.experiment}`"
    if claim.row == claim.against and not claim.against_in:
        return f"`{claim.experiment}`: {claim.row}, {claim.at:g} - {claim.against_at:g}"
    place = f" of `{claim.against_in}`" if claim.against_in else ""
    return f"`{claim.experiment}`: {claim.row} - {claim.against}{place}"


def _choose_unit(quantity: str) -> tuple[float, int, str]:
    """Return factor, digits and unit that a difference is told in."""
    if quantity.startswith("margin_"):
        return 255.0, 2, "/255"
    return (1.0, 4, "") if quantity == "error" else (100.0, 2, "")
