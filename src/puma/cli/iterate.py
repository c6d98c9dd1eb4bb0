"""``puma iterate``: train, measure, plan, train again."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from puma.cli.train import DEFAULT_RECIPE, value_of
from puma.errors import PumaError
from puma.margins import measure_pool
from puma.margins.methods import method_named
from puma.models import load_model
from puma.planning import Plan
from puma.planning.build import Pruning, Strength, check, make_plan
from puma.planning.show import describe
from puma.pools import Pool, open_pools
from puma.scores.table import open_scores
from puma.training import TrainConfig
from puma.training.recipes import find_recipe
from puma.training.run import ensure_run


def iterate_for(words: Sequence[str]) -> Callable[..., None]:
    """Make the verb: its settings default to those of the recipe that ``words`` name."""
    begun = find_recipe(value_of("--recipe", words) or DEFAULT_RECIPE)

    def iterate(
        pools: Positional[tuple[Path, ...]],
        /,
        *,
        out: Path,
        rounds: int = 2,
        first: Path | None = None,
        prune_easy: float = 0.2,
        gap: float = 0.0,
        method: str = "deepfool",
        recipe: str = DEFAULT_RECIPE,
        settings: Annotated[TrainConfig, arg(name="")] = begun,
    ) -> None:
        """Train a margin model, then in each round measure margins, plan, and train the next model.

        Every run, margin table and plan stays in its folder (run-0, margins-1.parquet, plan-1.parquet, run-1, ...).
        The same command goes on after an interruption.

        Args:
            pools: folders made by puma data import; several are put together in this order.
            out: folder for everything.
            rounds: how often margins are measured and a model trained with them.
            first: a run of puma train to take as the first margin model, instead of training run-0.
            prune_easy: share of the easiest samples to drop.
            gap: subtracted from the margin.
            method: how margins are measured.
            recipe: the settings to begin with; every one can be changed below.
        """
        del recipe  # it has chosen the defaults of the settings
        if rounds < 1:
            raise PumaError(f"give at least one round, got {rounds}.")
        pool = open_pools(pools)
        pruning, strength = Pruning(easy=prune_easy), Strength("margin", settings.attack.eps, gap)
        check(pruning, strength)
        method_named(method)
        run = first or ensure_run(settings, pools, out / "run-0")
        for turn in range(1, rounds + 1):
            margins = _measured(run, pool, out / f"margins-{turn}.parquet", method, settings.attack.norm)
            made = make_plan(pool, pruning, strength, margin=open_scores(margins, "margin"), drop_failed=True)
            print(f"round {turn}: {describe(made).splitlines()[0]}")
            plan = _saved(made, out / f"plan-{turn}.parquet")
            run = ensure_run(settings, pools, out / f"run-{turn}", plan=plan)
        print(f"model: {run / 'model.safetensors'}")

    return iterate


def _saved(plan: Plan, path: Path) -> Path:
    """Write a plan, or find it written; another one in its place raises."""
    if not path.is_file():
        return plan.save(path)
    if dict(Plan.open(path).made_from) != dict(plan.made_from):
        raise PumaError(f"{path} was made with other settings; give those, or use another --out.")
    return path


def _measured(run: Path, pool: Pool, out: Path, method: str, norm: str) -> Path:
    """Measure with the model of a run, or go on, or find it done; margins of another model raise."""
    model = load_model(str(run), pool.num_classes, channels=pool.image_shape[2])
    return measure_pool(model, pool, out, method=method, norm=norm, progress=True)
