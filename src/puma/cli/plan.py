"""``puma plan`` and ``puma scores``: how difficult samples are, which to keep, how strongly to attack each."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from tyro.conf import Positional

from puma.cli.flags import check_output
from puma.errors import PumaError
from puma.files import Link
from puma.margins import warn_of_model
from puma.planning import (
    SUFFIX_FORMATS,
    ExportFormat,
    KeptSamples,
    Plan,
    PruneRule,
    StrengthRule,
    build_plan,
    compare_plans,
    draw_plan,
    export_bitmap,
    export_keys,
    export_npz,
    export_parquet,
    export_table,
    export_webdataset,
    find_prune_start,
    format_plan,
    warn_of_imbalance,
    warn_of_threshold,
)
from puma.pools import Pool, open_pools
from puma.processes import measure_peak_memory
from puma.progress import format_bytes
from puma.scores import KINDS, Scores, open_named_scores, open_scores, save_scores
from puma.tables import read_head

_ROW_BYTES = 9  # of a row of a plan on disk


def write_plan(
    pools: Positional[tuple[Path, ...]],
    /,
    *,
    out: Path,
    margins: Path | None = None,
    score: str | None = None,
    difficulty: str | None = None,
    prune_easy: float = 0.0,
    prune_difficult: float = 0.0,
    prune_random: float = 0.0,
    prune_stratified: float = 0.0,
    prune_beyond: float | None = None,
    easy_threshold: float | None = None,
    difficult_threshold: float | None = None,
    within: Literal["pool", "class", "origin"] = "pool",
    strength: Literal["constant", "margin", "weak-if-difficult", "margin-if-difficult"] | None = None,
    eps: float = 8 / 255,
    gap: float = 0.0,
    weak_eps: float = 1 / 255,
    difficult_from: float = 1.0,
    floor: float = -1.0,
    strata: int = 50,
    drop_failed: bool = False,
    seed: int = 0,
    norm: Literal["linf", "l2"] | None = None,
    dry_run: bool = False,
    force: bool = False,
) -> None:
    """Make plan.parquet: for every sample of the pools, keep it or not, and the strength of its attack.

    PUMA is --margins margins.parquet --prune-easy 0.2: drop the fifth with the highest margins, attack the others
    as strongly as their margins allow. Numbers may be typed as fractions such as 8/255.

    Args:
        pools: folders made by puma data import; several are put together in this order.
        out: the file to write.
        margins: margins.parquet of these pools.
        score: prune by this score instead of the margin: FILE, or FILE:SCORE where a file has several.
        difficulty: classification difficulty for the rules that ask for it: FILE or FILE:SCORE.
        prune_easy: share of the easiest samples to drop.
        prune_difficult: share of the most difficult samples to drop.
        prune_random: share of samples to drop at random.
        prune_stratified: share to drop so that all ranges of the score stay covered (CCS).
        prune_beyond: for being easy, or at random, drop only samples with a margin above so many eps.
        easy_threshold: drop samples easier than this score.
        difficult_threshold: drop samples as difficult as this score or more.
        within: take the shares of the whole pool, or within each class or origin.
        strength: constant eps; margin less gap, clipped to eps; weak-eps or margin only for always-wrong samples. By
            default margin, or constant where no margins are given.
        eps: the largest strength.
        gap: subtracted from the margin.
        weak_eps: strength of always-wrong samples with weak-if-difficult.
        difficult_from: samples of this difficulty or more count as always wrong.
        floor: no strength by margin is lower than so many eps; -1 is the paper's, 0 helps no sample.
        strata: number of ranges of --prune-stratified.
        drop_failed: leave out samples without a score instead of refusing them.
        seed: tells apart samples of equal score, and draws the random ones.
        norm: of eps; that of the margins, or else linf.
        dry_run: print what the plan would do; write nothing.
        force: replace an existing plan.
    """
    begun = time.process_time()
    read = [margins, *(Path(text.rpartition(":")[0] or text) for text in (score, difficulty) if text)]
    check_output("--out", out, ".parquet", inputs=read, table=Plan.open, force=force or dry_run)
    pool = open_pools(pools)
    margin = open_scores(margins, "margin") if margins else None
    rule = strength or ("constant" if margins is None else "margin")
    pruning = PruneRule(
        prune_easy, prune_difficult, prune_random, easy_threshold, difficult_threshold, within, seed,
        prune_beyond, prune_stratified, strata,
    )  # fmt: skip
    made = build_plan(
        pool,
        pruning,
        StrengthRule(rule, eps, gap, weak_eps, difficult_from, floor),
        score=open_named_scores(score) if score else None,
        margin=margin,
        difficulty=open_named_scores(difficulty) if difficulty else None,
        drop_failed=drop_failed,
        norm=norm,
    )
    print(format_plan(made, pool))
    _warn_of_imbalance(pool, made)
    for sentence in [] if margin is None else warn_of_model(margin.score, pool.num_classes):
        print(f"puma: warning: {sentence}.", file=sys.stderr)
    if margin is not None and score is None:
        for sentence in warn_of_threshold(find_prune_start(pool, margin, pruning, eps), eps):
            print(f"puma: warning: {sentence}.", file=sys.stderr)
    if dry_run:
        memory = measure_peak_memory(torch.device("cpu"))
        spent, disk = time.process_time() - begun, format_bytes(_ROW_BYTES * len(made))
        print(f"cost: no pass through a net, {spent:.2g} s, {format_bytes(memory)} of memory, about {disk} on disk")
    else:
        print(f"plan: {made.save(out)}")


def show_plan(
    path: Positional[Path], pools: Positional[tuple[Path, ...]] = (), /, *, picture: Path | None = None
) -> None:
    """Print what a plan does and draw it.

    Args:
        path: plan.parquet.
        pools: the pools it was made for; then classes and origins are shown too.
        picture: where to write the PNG; by default beside the plan.
    """
    target = picture or path.with_suffix(".png")
    check_output("--picture", target, ".png", inputs=[path])
    plan = Plan.open(path)
    if not len(plan):
        raise PumaError(f"{path} has no samples to draw.")
    pool = open_pools(pools) if pools else None
    if pool is not None:
        plan.of(pool)
    print(format_plan(plan, pool))
    if pool is not None:
        _warn_of_imbalance(pool, plan)
    draw_plan(plan, target, pool)
    print(f"picture: {target}")


def print_plan_differences(one: Positional[Path], two: Positional[Path], /) -> None:
    """Print what differs between two plans.

    Args:
        one: a plan.parquet.
        two: another.
    """
    print(compare_plans(Plan.open(one), Plan.open(two)))


def export_plan(
    path: Positional[Path],
    out: Positional[Path],
    /,
    *,
    pool: tuple[Path, ...] = (),
    to: ExportFormat | None = None,
    margins: Path | None = None,
    shard_size: int = 5000,
    shuffle: int | None = None,
    force: bool = False,
) -> None:
    """Write a plan, or the samples that it keeps, for other programs.

    Args:
        path: plan.parquet.
        out: a file (.csv the whole table, .npy the rows of the kept samples, .txt their keys, .bitmap a bit a row, .npz
            pixels and columns), or a folder for webdataset and parquet.
        pool: the pools that the plan was made for; needed for all but .csv, .npy and .bitmap.
        to: the format, where the name of OUT does not tell it; webdataset and parquet always need it.
        margins: margins.parquet, to write each sample's margin beside its strength.
        shard_size: samples in a shard of webdataset or parquet.
        shuffle: write samples in random order, by this seed; loaders that stream want them so.
        force: replace an existing file or export.
    """
    kind = to or SUFFIX_FORMATS.get(out.suffix)
    if kind is None:
        raise PumaError(
            f"a plan can be exported to .csv or .npy, .txt, .bitmap or .npz, or to a folder by --to webdataset or "
            f"--to parquet; got {out.name!r}."
        )
    if kind not in ("webdataset", "parquet"):
        check_output("OUT", out, inputs=[path, margins], content=f".{kind}", force=force)
    plan = Plan.open(path)
    if kind in ("csv", "npy"):
        print(export_table(plan, out, kind))
        return
    if kind == "bitmap":
        print(export_bitmap(plan, out))
        return
    if not pool:
        raise PumaError(f"the format {kind} needs the samples themselves; name their pools with --pool.")
    opened = open_pools(pool)
    kept = KeptSamples.choose(plan, opened, None if margins is None else open_scores(margins, "margin"), shuffle)
    if kind == "keys":
        export_keys(kept, out)
    elif kind == "npz":
        export_npz(kept, out, progress=True)
    else:
        export = export_webdataset if kind == "webdataset" else export_parquet
        export(kept, out, shard_size=shard_size, force=force, progress=True)
    print(f"{out}: {len(kept):,} of {len(plan):,} samples")


def _warn_of_imbalance(pool: Pool, plan: Plan) -> None:
    for sentence in warn_of_imbalance(pool, plan.keep):
        print(f"puma: warning: {sentence}", file=sys.stderr)


def score_by_outcomes(run: Positional[Path], /, *, out: Path, force: bool = False) -> None:
    """Count, for every sample, how often a training run had it wrong (CD) and how often it forgot it.

    Args:
        run: folder of a run of puma train.
        out: the Parquet file to write; columns cd_clean, cd_adversarial, forgetting_clean, forgetting_adversarial.
        force: replace an existing file.
    """
    from puma.training import score_difficulty

    check_output("--out", out, ".parquet", table=_read_scores_head, force=force)
    scores = score_difficulty(run, show=True)
    for score in scores:
        _print_summary(score)
    print(f"scores: {save_scores(scores, out)}")


def score_by_dynamics(run: Positional[Path], /, *, out: Path, window: int = 10, force: bool = False) -> None:
    """Score every sample by the averaged models that a run kept (puma train --snapshot-every SAMPLES).

    Args:
        run: folder of the run.
        out: the Parquet file to write; columns input_gradient (its average length: EasyCore keeps the low ones, with
            --prune-difficult) and uncertainty (dynamic uncertainty keeps the high ones, with --prune-easy).
        window: so many successive models make one estimate of the uncertainty.
        force: replace an existing file.
    """
    from puma.training import score_snapshots

    check_output("--out", out, ".parquet", table=_read_scores_head, force=force)
    scores = score_snapshots(run, window=window, show=True)
    for score in scores:
        _print_summary(score)
    print(f"scores: {save_scores(scores, out)}")


def score_by_el2n(
    pools: Positional[tuple[Path, ...]],
    /,
    *,
    out: Path,
    runs: Path,
    recipe: str = "small-digits",
    nets: int = 5,
    samples_seen: int = 20_000,
    seed: int = 0,
    force: bool = False,
    dry_run: bool = False,
) -> None:
    """Score every sample by EL2N: train a few nets briefly on clean images, average the length of their errors.

    Args:
        pools: folders made by puma data import; several are put together in this order.
        out: the Parquet file to write.
        runs: folder for the nets; those that are there already are used, one cut short goes on.
        recipe: the settings to begin with; the loss is the standard one.
        nets: how many.
        samples_seen: length of each training.
        seed: of the first net; the others count up from it.
        force: replace an existing file.
        dry_run: say what it would cost; train nothing.
    """
    from puma.scores import score_el2n
    from puma.training import (
        RunFolder,
        check_place_of_runs,
        ensure_run,
        estimate_cost,
        find_recipe,
        format_cost,
        load_model,
        load_samples,
    )

    check_output("--out", out, ".parquet", table=_read_scores_head, force=force)
    check_place_of_runs("--runs", runs)
    if nets < 1:
        raise PumaError(f"EL2N needs at least one net, got {nets}.")
    settings = replace(
        find_recipe(recipe), loss="standard", samples_seen=samples_seen, held_out=0, evaluate_every=0, select="last"
    )
    pool = open_pools(pools)
    if dry_run:
        names = " and ".join(map(str, pools))
        print(
            f"This would train {nets} nets briefly on {len(pool):,} images of {names} and score those by their errors."
        )
        print("Nothing was written. Each training, one forward pass over the images aside:")
        inputs = load_samples(settings, pools, None).inputs
        print(format_cost(settings, estimate_cost(settings, inputs, pool.image_shape[:2])))
        return
    folders = [runs / f"net-{seed + index}" for index in range(nets)]
    for index, folder in enumerate(folders):
        ensure_run(replace(settings, seed=seed + index), pools, folder)
    models = (load_model(str(folder), pool.num_classes) for folder in folders)
    values = score_el2n(models, pool, progress=True).numpy()
    links = (
        Link("pool", "pool", pool.fingerprint, pool.place),
        *(RunFolder(folder).link_to("net") for folder in folders),
    )
    made_from = {"nets": str(nets), "recipe": recipe}
    score = Scores("el2n", pool.sample_id, values, pool.fingerprint, made_from, links)
    _print_summary(score)
    print(f"scores: {score.save(out)}")


def _read_scores_head(path: Path) -> None:
    """Raise unless a file is a table of scores: margins and plans are tables too, of another kind."""
    columns = read_head(path, "a table of scores").columns
    if columns[:1] != ("sample_id",) or not set(columns[1:]) <= set(KINDS):
        raise PumaError(f"{path} is no table of scores.")


def _print_summary(score: Scores) -> None:
    seen = score.score[~np.isnan(score.score)]
    if not len(seen):
        print(f"{score.kind}: no sample has one")
        return
    low, middle, high = np.quantile(seen, [0.1, 0.5, 0.9])
    never = len(score) - len(seen)
    print(f"{score.kind}: mean {seen.mean():.4f}, 10/50/90 % {low:.4f} {middle:.4f} {high:.4f}, {never:,} without")
