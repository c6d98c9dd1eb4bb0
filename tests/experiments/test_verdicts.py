from dataclasses import replace
from pathlib import Path

import pytest

from puma.experiments import PAPER, Experiment
from puma.experiments.results import ResultLine, ResultOrigin, summarise_results, write_results_file
from puma.experiments.verdicts import (
    CLAIMS,
    Claim,
    Relation,
    Verdict,
    find_efficiency,
    format_verdicts,
    judge_claims,
    judge_difference,
)

HIGHER = Claim("tab-x", "more accurate", "a", "b")
BASE = {0: 0.50, 1: 0.60, 2: 0.70}


def test_the_interval_is_students_of_the_paired_differences() -> None:
    found = judge_difference(HIGHER, "digits", {0: 0.52, 1: 0.63, 2: 0.74}, BASE)
    assert found.difference == pytest.approx(0.03)
    assert found.interval is not None
    half = 4.302653 * 0.01 / 3**0.5  # Student's factor of two degrees of freedom, deviation 0.01
    assert found.interval == pytest.approx((0.03 - half, 0.03 + half), abs=1e-6)
    assert (found.verdict, found.seeds) == ("holds", 3)


@pytest.mark.parametrize(
    ("relation", "steps", "verdict"),
    [
        ("higher", (0.02, 0.03, 0.04), "holds"),
        ("higher", (-0.02, -0.03, -0.04), "does not"),
        ("higher", (-0.02, 0.03, 0.04), "undecided"),
        ("lower", (-0.02, -0.03, -0.04), "holds"),
        ("lower", (0.02, 0.03, 0.04), "does not"),
        ("same", (0.001, 0.0, -0.001), "holds"),
        ("same", (0.02, 0.03, 0.04), "does not"),
        ("same", (-0.02, 0.03, 0.04), "undecided"),
    ],
)
def test_verdicts(relation: Relation, steps: tuple[float, ...], verdict: Verdict) -> None:
    ours = {seed: BASE[seed] + step for seed, step in enumerate(steps)}
    assert judge_difference(replace(HIGHER, relation=relation), "digits", ours, BASE).verdict == verdict


def test_a_difference_that_has_to_be_large() -> None:
    ours = {seed: value - 0.1 - 0.001 * seed for seed, value in BASE.items()}
    for by, verdict in ((0.05, "holds"), (0.2, "does not"), (0.101, "undecided")):
        claim = replace(HIGHER, relation="lower", by=by)
        assert judge_difference(claim, "digits", ours, BASE).verdict == verdict


def test_only_seeds_that_both_have_count_and_one_decides_nothing() -> None:
    found = judge_difference(HIGHER, "digits", {0: 0.9, 7: 0.1}, BASE)
    assert (found.verdict, found.seeds, found.interval) == ("undecided", 1, None)
    assert judge_difference(HIGHER, "digits", {7: 0.1}, BASE).verdict == "not testable here"


def test_rows_are_found_by_data_set_and_those_of_changed_runs_left_out(tmp_path: Path) -> None:
    for dataset, changed, gain in (("digits", "", 0.1), ("cifar10", "", -0.1), ("mnist", "eps 0.1", 0.1)):
        origin = ResultOrigin("tab-x", "small", dataset, changed)
        lines = [
            ResultLine(origin, row, "clean_accuracy", seed, 0.5 + extra + 0.001 * seed * extra)
            for row, extra in (("a", gain), ("b", 0.0))
            for seed in (0, 1)
        ]
        write_results_file(tmp_path / "tab-x.csv", origin, lines)
    for preset in ("smoke", "cifar10-eps2"):
        origin = ResultOrigin("tab-x", preset, "cifar10")
        lines = [ResultLine(origin, row, "clean_accuracy", 0, 0.5) for row in ("a", "b")]
        write_results_file(tmp_path / "tab-x.csv", origin, lines)
    verdicts = judge_claims(tmp_path, [HIGHER, Claim("tab-y", "never run", "a", "b")])
    assert [(verdict.dataset, verdict.verdict) for verdict in verdicts] == [
        ("digits", "holds"),
        ("cifar10", "does not"),
        ("cifar10-eps2", "undecided"),
        ("", "not testable here"),
    ]
    told = format_verdicts(verdicts)
    assert told.startswith("4 comparisons: 1 holds, 1 does not, 1 undecided, 1 not testable here.")
    assert "| more accurate (digits) | holds | +10.00 |" in told


def test_claims_are_about_rows_that_exist() -> None:
    for claim in CLAIMS:
        experiment = PAPER.get(claim.experiment)
        if isinstance(experiment, Experiment):
            places = {(row.label, row.at) for row in experiment.rows}
            at = claim.at if claim.against_at is None else claim.against_at
            assert {(claim.row, claim.at), (claim.against, at)} <= places, claim
    assert {claim.experiment for claim in CLAIMS} == {*PAPER}


def test_the_share_of_samples_is_read_off_between_two_points() -> None:
    origin = ResultOrigin("tab-x", "small", "digits", "")
    curves = {
        ("ours", 0): {100.0: 0.4, 200.0: 0.6, 400.0: 0.7},
        ("base", 0): {100.0: 0.3, 200.0: 0.4, 400.0: 0.5},
        ("ours", 1): {100.0: 0.4, 400.0: 0.45},
        ("base", 1): {400.0: 0.5},
        ("ours", 2): {400.0: 0.9},  # the baseline has no such seed
    }
    lines = summarise_results(
        ResultLine(origin, row, "accuracy", seed, value, at=at)
        for (row, seed), points in curves.items()
        for at, value in points.items()
    )
    assert find_efficiency(lines, "ours", "base", "accuracy") == [pytest.approx(150 / 400), None]
