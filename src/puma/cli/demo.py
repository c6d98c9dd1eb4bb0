"""``puma demo``: the whole method on bundled images."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from torch import nn
from tyro.conf import arg

from puma.errors import PumaError
from puma.evaluation.accuracy import EvaluationConfig, evaluate_pool
from puma.evaluation.counts import Count
from puma.margins import measure_pool
from puma.models import load_model
from puma.planning import Plan
from puma.planning.build import Pruning, Strength, make_plan
from puma.planning.show import draw
from puma.pools import Pool
from puma.pools.importers.digits import digits
from puma.pools.importing import write_parts
from puma.pools.show import draw_grid
from puma.report.curves import draw_curves
from puma.scores.table import open_scores
from puma.training import TrainConfig, recipe
from puma.training.run import train
from puma.training.run_folder import RunFolder

PRUNED = 0.2


def demo(
    *,
    out: Annotated[Path, arg(metavar="DIR", help="folder to write")] = Path("demo-output"),
    samples_seen: int = 40_000,
    seed: int = 0,
    force: bool = False,
) -> None:
    """Run the whole method on scikit-learn's digits: two or three minutes on two cores.

    Trains a TRADES model, measures how far it is from every training digit, plans which digits to drop and how strongly
    to attack the others, trains a second model by that plan, and attacks both.

    Args:
        samples_seen: length of each of the two trainings.
        seed: of weights, batches and attacks.
        force: replace an earlier demo.
    """
    if samples_seen < 1 or not 0 <= seed < 1 << 32:
        raise PumaError(f"--samples-seen must be positive and --seed in 0..2**32 - 1, got {samples_seen} and {seed}.")
    settings = replace(recipe("small-digits"), samples_seen=samples_seen, seed=seed)
    _make_room(out, force)
    write_parts(digits(), out / "digits", force=force, progress=True)
    pool, test = Pool.open(out / "digits" / "train"), Pool.open(out / "digits" / "test")
    draw_grid(pool, out / "digits.png")

    print(f"1. train a margin model on {len(pool):,} digits (TRADES, eps = {settings.attack.eps:g})")
    baseline = train(settings, [out / "digits/train"], out / "trades")
    print("2. measure the signed margin of every training digit")
    margins = measure_pool(_load(baseline, pool), pool, out / "margins.parquet", progress=True)
    print("3. plan: drop the easiest fifth, attack each other digit as strongly as its margin allows")
    plan = _planned(pool, margins, settings, out / "plan.parquet")
    draw(plan, out / "plan.png", pool)
    print("4. train by the plan, for as long as before")
    puma = train(settings, [out / "digits/train"], out / "puma", plan=out / "plan.parquet")
    print(f"5. attack both on {len(test):,} test digits (PGD-40 on the C&W loss)")
    results = {run.name: _attacked(run, test, settings) for run in (baseline, puma)}
    draw_curves([baseline, puma], out / "curves.png")
    words = [*_plan_in_words(plan), *_results_in_words(results)]
    print("\n" + "\n".join(words))
    (out / "demo.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    print(f"\npictures: {', '.join(str(out / name) for name in ('digits.png', 'plan.png', 'curves.png'))}")


def _make_room(out: Path, force: bool) -> None:
    """Delete what an earlier demo wrote, and nothing else."""
    if not force:
        return
    for name in ("trades", "puma"):
        if RunFolder(out / name).has_config:
            shutil.rmtree(out / name)
    for name in ("margins.parquet", "plan.parquet"):
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / ".margins.parquet.parts", ignore_errors=True)


def _load(run: Path, pool: Pool) -> nn.Module:
    return load_model(str(run), pool.num_classes)


def _planned(pool: Pool, margins: Path, settings: TrainConfig, path: Path) -> Plan:
    score = open_scores(margins, "margin")
    plan = make_plan(
        pool, Pruning(easy=PRUNED), Strength("margin", settings.attack.eps), margin=score, drop_failed=True
    )
    plan.save(path)
    return plan


def _attacked(run: Path, test: Pool, settings: TrainConfig) -> dict[str, Count]:
    config = EvaluationConfig(seed=settings.seed, masking_samples=0)
    return evaluate_pool(_load(run, test), test, settings.attack.eps, config, show=True).counts()


def _plan_in_words(plan: Plan) -> list[str]:
    kept = plan.strength[plan.keep]
    weaker = int((kept.abs() < kept.abs().max()).sum())
    return [
        f"Of {len(plan):,} training digits the plan prunes {int((~plan.keep).sum()):,}; of the others it attacks "
        f"{weaker:,} less strongly than the rest, {int((kept < 0).sum()):,} of them towards their label."
    ]


def _results_in_words(results: dict[str, dict[str, Count]]) -> list[str]:
    (_, before), (_, after) = results.items()
    lines = []
    for attack, name in (("clean", "accuracy"), ("cw", "robustness")):
        was, now = before[attack], after[attack]
        change = 100 * (now.accuracy - was.accuracy)
        overlap = was.interval[0] <= now.interval[1] and now.interval[0] <= was.interval[1]
        verdict = "within what chance explains" if overlap else "more than chance explains"
        lines.append(f"{name:<11} TRADES {_spread(was)}, PUMA {_spread(now)}: {change:+.1f} points, {verdict}")
    return lines


def _spread(count: Count) -> str:
    low, high = count.interval
    return f"{count.accuracy:.1%} [{low:.1%}, {high:.1%}]"
