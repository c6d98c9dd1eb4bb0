"""``puma perceptron``: the study of pruning in adversarial training on the perceptron."""

import os
from pathlib import Path
from typing import Annotated

import tyro

from puma.errors import PumaError, tell_missing
from puma.perceptron import (
    ALPHAS,
    FIGURES,
    KEEPS,
    DescentLoss,
    FigureName,
    GradientDescent,
    PerceptronStudy,
    Probe,
    StudentName,
    StudyClaim,
    TeacherKind,
    needed_curves,
    needed_points,
    run_study,
)


def study_perceptron(
    out: Path = Path("perceptron-output"),
    figures: tuple[FigureName, ...] = FIGURES,
    alphas: tuple[float, ...] = ALPHAS,
    keeps: tuple[float, ...] = KEEPS,
    seeds: int = 10,
    dimension: Annotated[int, tyro.conf.arg(aliases=["-K"])] = 200,
    students: tuple[StudentName, ...] = ("logistic",),
    teacher: TeacherKind = "axis",
    ridge: float = 1e-5,
    loss: DescentLoss = "hinge",
    steps: int = 3000,
    rate: float = 0.3,
    batch: int = 0,
    probe_angle: float = 0.0,
    probe_signed: bool = False,
    jobs: int = os.cpu_count() or 1,
    dry_run: bool = False,
    check: bool = False,
) -> None:
    """Study pruning in adversarial training on the perceptron: theory, students, figures, claims.

    Args:
        out: where results.parquet, theory.parquet, figures/, claims.md and the cache go.
        figures: which figures to make; the first four are the paper's.
        alphas: samples after pruning, per dimension.
        keeps: kept fractions of the pool.
        seeds: how many repetitions.
        dimension: number of features (K).
        students: logistic (converged), maxmargin (hard margin), gd (FGSM and gradient steps).
        teacher: along an axis, or in a random dense direction.
        ridge: strength of the L2 penalty of the logistic student.
        loss: loss of the gd student.
        steps: gradient steps of the gd student.
        rate: learning rate of the gd student.
        batch: samples per step of the gd student, 0 for all.
        probe_angle: angle in degrees between the teacher and the probe that measures margins.
        probe_signed: rank by the signed margin to the probe, so that its mistakes count as hardest.
        jobs: number of processes; the numbers do not depend on it.
        dry_run: only tell what would be computed.
        check: fail when one of the nine checks does not hold or was not measured.
    """
    study = PerceptronStudy(
        figures=figures,
        alphas=alphas,
        keeps=keeps,
        seeds=seeds,
        dimension=dimension,
        students=students,
        teacher=teacher,
        probe=Probe(probe_angle, probe_signed),
        ridge=ridge,
        descent=GradientDescent(loss, steps, rate, batch),
    )
    if dry_run:
        points, curves = needed_points(study), needed_curves(study)
        print(study)
        print(f"{len(points):,} students to train and {len(curves)} theory curves, into {out}")
        return
    report = run_study(study, out, jobs=jobs)
    print_claims(report.claims)
    print(f"\nwritten to {out}: {', '.join(path.name for path in report.files)}")
    failed = [claim for claim in report.claims if claim.is_check and claim.verdict != "holds"]
    if check and failed:
        names = "; ".join(f"{claim.number} ({claim.quantity}): {claim.verdict}" for claim in failed)
        raise PumaError(f"{len(failed)} checks failed: {names}.")


def print_claims(claims: list[StudyClaim]) -> None:
    """Print the measured claims as a table."""
    with tell_missing("cli"):
        from rich.console import Console
        from rich.table import Table

    table = Table("", "claim", "measured", "value", "holds if", "verdict", box=None, pad_edge=False)
    previous = ""
    for claim in claims:
        if claim.verdict == "not measured":
            continue
        value = f"{claim.value:.4g}" if claim.value is not None else ""
        statement = claim.statement if claim.statement != previous else ""
        previous = claim.statement
        table.add_row(claim.number, statement, claim.quantity, value, claim.criterion, claim.verdict)
    console = Console()
    if not console.is_terminal:
        console.width = 160
    console.print(table)
    missing = sum(claim.verdict == "not measured" for claim in claims)
    if missing:
        print(f"{missing} rows were not measured: this study has other figures, alphas or keeps.")
