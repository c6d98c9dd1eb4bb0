"""``puma scores``: how difficult every sample is, from training runs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from tyro.conf import Positional

from puma.errors import PumaError
from puma.models import load_model
from puma.pools import open_pools
from puma.scores import Scores
from puma.scores.el2n import el2n as score_el2n
from puma.scores.table import save_scores
from puma.training import find_recipe
from puma.training.outcomes import score_difficulty
from puma.training.run import ensure_run


def cd(run: Positional[Path], /, *, out: Path, force: bool = False) -> None:
    """Count, for every sample, how often a training run had it wrong (CD) and how often it forgot it.

    Args:
        run: folder of a run of puma train.
        out: the Parquet file to write; columns cd_clean, cd_adversarial, forgetting_clean, forgetting_adversarial.
        force: replace an existing file.
    """
    _check_free(out, force)
    scores = score_difficulty(run, show=True)
    for score in scores:
        _print_summary(score)
    print(f"scores: {save_scores(scores, out)}")


def el2n(
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
    """
    _check_free(out, force)
    if nets < 1:
        raise PumaError(f"EL2N needs at least one net, got {nets}.")
    settings = replace(
        find_recipe(recipe), loss="standard", samples_seen=samples_seen, held_out=0, evaluate_every=0, select="last"
    )
    pool = open_pools(pools)
    folders = [runs / f"net-{seed + index}" for index in range(nets)]
    for index, folder in enumerate(folders):
        ensure_run(replace(settings, seed=seed + index), pools, folder)
    models = (load_model(str(folder), pool.num_classes) for folder in folders)
    values = score_el2n(models, pool, progress=True).numpy()
    score = Scores("el2n", pool.sample_id, values, pool.fingerprint, {"nets": str(nets), "recipe": recipe})
    _print_summary(score)
    print(f"scores: {score.save(out)}")


def _check_free(out: Path, force: bool) -> None:
    if out.exists() and not force:
        raise PumaError(f"{out} exists already; choose another --out, or give --force to replace it.")


def _print_summary(score: Scores) -> None:
    seen = score.score[~np.isnan(score.score)]
    if not len(seen):
        print(f"{score.kind}: no sample has one")
        return
    low, middle, high = np.quantile(seen, [0.1, 0.5, 0.9])
    never = len(score) - len(seen)
    print(f"{score.kind}: mean {seen.mean():.4f}, 10/50/90 % {low:.4f} {middle:.4f} {high:.4f}, {never:,} without")
