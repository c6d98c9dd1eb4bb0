"""``puma demo``: the whole method on bundled images."""

import statistics
import webbrowser
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
from tyro.conf import arg

from puma.errors import PumaError
from puma.evaluation import Count, EvaluationConfig, read_evaluation
from puma.experiments import (
    OWN_GENERATOR,
    Experiment,
    ExperimentSetting,
    GeneratedImages,
    GeneratorSetting,
    Workspace,
    find_experiment,
    record_folder,
    run_experiment,
)
from puma.planning import Plan
from puma.pools import is_pool
from puma.report import (
    RECORD_FILE,
    AccuracyDifference,
    check_out,
    estimate_accuracy,
    read_record,
    subtract_estimates,
    subtract_paired,
    write_report,
)
from puma.training import find_recipe

EXTRA = 6000  # images that play the generated ones, or are generated
GENERATOR = GeneratorSetting("digits-8px-tiny", 120_000, EXTRA, tells_margins=False)  # learnt in half a minute
_DISTORTED = "digits-distorted"
SAMPLES_SEEN = 30_000  # of each training: all of it takes three minutes on two cores


def run_demo(
    *,
    out: Annotated[Path, arg(metavar="DIR", help="folder to write")] = Path("demo-output"),
    samples_seen: int = SAMPLES_SEEN,
    seeds: int = 3,
    generated: bool = False,
    open: bool = False,
) -> None:
    """Run the whole method on scikit-learn's digits: about three minutes on two cores.

    Makes extra digits by distorting the training digits, trains a TRADES model, measures how far it is from every
    image, plans which to drop and how strongly to attack the others, trains a second model by that plan for as long,
    attacks both, and writes a report. Cut short, the same command goes on.

    Args:
        samples_seen: length of each training.
        seeds: how often everything is repeated.
        generated: let a generator learn the training digits first, and train on its images instead of distorted ones.
        open: open the report in the browser.
    """
    if samples_seen < 1 or seeds < 1:
        raise PumaError(f"--samples-seen and --seeds must be positive, got {samples_seen} and {seeds}.")
    if is_pool(out):
        raise PumaError(f"{out} is a pool, and the demo makes its own; give another --out.")
    if out.is_file():
        raise PumaError(f"--out {out} is a file; give a folder.")
    check_out(out / "report.html", force=False)
    torch.set_num_threads(1)  # a net this small is slower with more
    workspace = Workspace(out, _demo_setting(samples_seen, generated=generated), data=out)
    command = f"puma demo --samples-seen {samples_seen} --seeds {seeds}{' --generated' if generated else ''}"
    print(
        (f"First a generator learns the digits and makes {GENERATOR.images:,} more. " if generated else "")
        + f"Two models for each of {seeds} seeds: TRADES, which also measures the margins, and PUMA, trained by the "
        f"plan that follows from them; each on {samples_seen:,} samples."
    )
    experiment = make_experiment()
    run_experiment(experiment, workspace, seeds, out, command=command)
    folder = record_folder(experiment, workspace)
    report = write_report([folder], out / "report.html", title="PUMA on handwritten digits")
    words = tell_outcome(workspace, folder)
    (out / "demo.txt").write_text(words + "\n", encoding="utf-8")
    print(f"\n{words}\n\nreport: {report.resolve()}")
    if open:
        webbrowser.open(report.resolve().as_uri())


def make_experiment() -> Experiment:
    """Return the baseline and the method; the other rows of the summary take it apart."""
    summary = find_experiment("tab-summary")
    assert isinstance(summary, Experiment)
    return replace(summary, rows=tuple(row for row in summary.rows if row.paper is not None))


def _demo_setting(samples_seen: int, *, generated: bool) -> ExperimentSetting:
    digits = find_recipe("small-digits")
    config = replace(
        digits,
        samples_seen=samples_seen,
        generated_fraction=0.7,
        held_out=140,
        evaluate_every=max(samples_seen // 8, 1),
        checkpoint_every=max(samples_seen // 4, 1),
    )
    images = GeneratedImages(OWN_GENERATOR, GENERATOR.images) if generated else GeneratedImages(_DISTORTED, EXTRA)
    return ExperimentSetting(
        preset="demo-generated" if generated else "demo",
        dataset="digits",
        real=0,
        generated={"usual": images},
        nets={"main": config},
        evaluation=EvaluationConfig(masking_samples=0),
        stands_in=False,
        generator=GENERATOR if generated else None,
        changed="" if samples_seen == SAMPLES_SEEN else f"samples_seen {samples_seen}",
    )


def tell_outcome(workspace: Workspace, folder: Path) -> str:
    """Say what happened: what the plan did, accuracy and robustness before and after, whether chance explains it."""
    baseline, ours = read_record(folder / RECORD_FILE).rows
    assert ours.seeds[0].plan is not None
    plan = Plan.open(ours.seeds[0].plan)
    kept = plan.strength[plan.keep]
    weaker, helped = int((kept.abs() < workspace.setting.eps * (1 - 1e-6)).sum()), int((kept < 0).sum())
    made = workspace.setting.generated["usual"]
    kind = "generated" if made.pool == OWN_GENERATOR else "distorted copies of digits"
    lines = [
        f"Of {len(plan):,} training images ({made.count:,} of them {kind}) the plan of the first seed "
        f"prunes the {int((~plan.keep).sum()):,} easiest; of the others it attacks {weaker:,} less strongly than eps, "
        f"and {helped:,} towards their label."
    ]
    for attack, name in (("clean", "accuracy"), ("cw", "robustness")):
        before, after = (
            [read_evaluation(seed.evaluation).counts[attack] for seed in row.seeds if seed.evaluation]
            for row in (baseline, ours)
        )
        lines.append(f"{name:<11} {compare_counts(before, after)}")
    return "\n".join(lines)


def compare_counts(before: Sequence[Count], after: Sequence[Count]) -> str:
    """Say the means of TRADES and PUMA with their spread, the difference, and whether chance explains it."""
    if len(before) == 1:
        told, change = (
            f"TRADES {before[0].accuracy:.1%}, PUMA {after[0].accuracy:.1%}",
            _difference_of_one(before, after),
        )
    else:
        told, change = f"TRADES {_format_mean(before)}, PUMA {_format_mean(after)}", subtract_paired(after, before)
    verdict = "within what chance explains" if change.within_noise else "more than chance explains"
    between = f"95 % interval {100 * change.low:+.1f} to {100 * change.high:+.1f}"
    where = f"on these {before[0].total:,} test images"
    seeds = f"over {len(before)} seeds {where}" if len(before) > 1 else f"{where}; other seeds may differ"
    return f"{told}: {100 * change.mean:+.1f} points, {verdict} ({between} {seeds})"


def _difference_of_one(before: Sequence[Count], after: Sequence[Count]) -> AccuracyDifference:
    was, now = estimate_accuracy(before), estimate_accuracy(after)
    assert was is not None
    assert now is not None
    return subtract_estimates(now, was)


def _format_mean(counts: Sequence[Count]) -> str:
    shares = [count.accuracy for count in counts]
    return f"{100 * statistics.fmean(shares):.1f} % +- {100 * statistics.stdev(shares):.1f}"
