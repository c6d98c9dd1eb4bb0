"""``puma train`` and ``puma iterate``: a recipe, pools and perhaps a plan become a run, once or in rounds."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from puma.cli.flags import find_value, format_settings, name_settings
from puma.errors import PumaError
from puma.models import trust_code as trusting
from puma.training import RunFolder, TrainConfig, check_place_of_runs, check_train_config, config_to_dict, find_recipe

if TYPE_CHECKING:
    from puma.planning import Plan
    from puma.pools import Pool

DEFAULT_RECIPE = "small-digits"
_LEARNT = 1.5  # times as often right as a guess


def make_train_verb(words: Sequence[str]) -> Callable[..., None]:
    """Make the verb: its settings default to those of the recipe, or of the run to resume, that ``words`` name."""
    run = find_value("--resume", words)
    begun = RunFolder(Path(run)).read()[0] if run else find_recipe(find_value("--recipe", words) or DEFAULT_RECIPE)

    def train(
        pools: Positional[tuple[Path, ...]] = (),
        /,
        *,
        out: Path | None = None,
        recipe: str = DEFAULT_RECIPE,
        plan: Path | None = None,
        resume: Path | None = None,
        trust_code: bool = False,
        dry_run: bool = False,
        settings: Annotated[TrainConfig, arg(name="")] = begun,
    ) -> None:
        """Train a robust model. Under torchrun (-m puma train ...) all processes train it together.

        Args:
            pools: folders made by puma data import; several are put together in this order.
            out: folder of the new run.
            recipe: the settings to begin with (puma list shows them); every one can be changed below.
            plan: plan.parquet made for these pools: which samples to keep, how strongly to attack each.
            resume: folder of a run to take up where its last checkpoint left it; nothing else has to be given.
            trust_code: import the code that the run to resume names as its model; see docs/security.md.
            dry_run: say what would be trained, every setting, and what it would cost; train nothing.
        """
        # the recipe has chosen the defaults of the settings
        if resume is not None and dry_run:
            raise PumaError("--dry-run does not go with --resume; leave one of them out.")
        if resume is not None:
            with trusting(trust_code):
                _take_up(resume, settings, pools, out, plan)
        elif dry_run:
            _print_dry_run(settings, pools, plan, recipe)
        elif out is None:
            raise PumaError("say where the run goes with --out DIR.")
        else:
            from puma.training import start_run

            if find_value("--model", words) is None and find_value("--recipe", words) is None:
                check_train_config(settings)
                _tell_default(settings.model, pools)
            _tell_finished(start_run(settings, pools, out, plan=plan))

    return train


def _tell_default(model: str, pools: tuple[Path, ...]) -> None:
    """Say that the net nobody asked for is made for images of another size."""
    from puma.models import ARCHITECTURES
    from puma.pools import open_pools

    side, size = ARCHITECTURES[model].image_size, open_pools(pools).image_shape[0]
    if side != size and os.environ.get("RANK", "0") == "0":
        print(
            f"puma: warning: by default this trains {model}, a net for {side} px, and these images have {size} px; "
            "choose with --model or --recipe (puma list names them).",
            file=sys.stderr,
        )


def _take_up(run: Path, settings: TrainConfig, pools: tuple[Path, ...], out: Path | None, plan: Path | None) -> None:
    """Resume a run; pools, plan or folder other than its own raise."""
    from puma.training import resume_run

    inputs = RunFolder(run).read()[1]
    asked = {"pools": [str(path.resolve()) for path in pools], "plan": str(plan.resolve()) if plan else None}
    asked["out"] = str(out.resolve()) if out else None
    own = {"pools": list(inputs.pools), "plan": inputs.plan, "out": str(run.resolve())}
    for name, value in asked.items():
        if value and value != own[name]:
            raise PumaError(f"{run} was begun with {name} {own[name]}, not {value}; --resume alone is enough.")
    _tell_finished(resume_run(run, settings))


def _print_dry_run(settings: TrainConfig, pools: tuple[Path, ...], plan: Path | None, recipe: str) -> None:
    """Say what would be trained on what, how it differs from the recipe, every setting, and what it costs."""
    from puma.training import estimate_cost, format_cost, load_samples

    check_train_config(settings)
    samples = load_samples(settings, pools, plan) if pools else None
    inputs = samples.inputs if samples else None
    usual, asked = (dict(name_settings(config_to_dict(each))) for each in (find_recipe(recipe), settings))
    changed = ", ".join(f"{name} {value}" for name, value in asked.items() if value != usual[name])
    images = (
        f"{len(samples.train):,} images of {' and '.join(map(str, pools))}" if samples else "a pool yet to be named"
    )
    apart = f", with {settings.held_out:,} held out" if settings.held_out else ""
    by = f" by {plan}" if plan else ""
    print(f"This would train {settings.model} on {images}{by}{apart}. Nothing was written.")
    print(f"Recipe {recipe}" + (f", but {changed}." if changed else ", as it stands."))
    print(format_settings(config_to_dict(settings)))
    size = samples.whole.image_shape[:2] if samples else None
    print(format_cost(settings, estimate_cost(settings, inputs, size)))


def _print_rounds(
    settings: TrainConfig, pools: tuple[Path, ...], pool: "Pool", method: str, rounds: int, trained: int
) -> None:
    """Print the cost of every training and of measuring the pool in between, by the untrained net."""
    from puma.margins import estimate_pool_cost
    from puma.processes import resolve_device
    from puma.training import estimate_cost, format_cost, load_samples, make_model

    inputs = load_samples(settings, pools, None).inputs
    names = " and ".join(map(str, pools))
    print(f"This would train {settings.model} {trained} times on {len(pool):,} images of {names}, and measure them")
    print(f"{rounds} times in between. Nothing was written.")
    print(f"each of {trained} trainings:")
    print(format_cost(settings, estimate_cost(settings, inputs, pool.image_shape[:2])))
    model = make_model(settings, inputs).to(resolve_device(settings.compute.device))
    print(f"each of {rounds} measurements of the pool:")
    print(estimate_pool_cost(model, pool, method=method, norm=settings.attack.norm))


def _tell_finished(run: Path) -> None:
    """Say where the model is, and whether it has learnt anything, once."""
    if os.environ.get("RANK", "0") == "0":
        print(f"model: {RunFolder(run).model}")
        print(f"evaluate it with: puma evaluate {run} POOL")
        for sentence in warn_of_guessing(RunFolder(run)):
            print(f"puma: warning: {sentence}.", file=sys.stderr)


def warn_of_guessing(folder: RunFolder) -> list[str]:
    """Sentences about a net that is hardly better than a guess at the end of its training."""
    classes = folder.read()[1].num_classes
    clean = [float(line["clean_accuracy"]) for line in folder.read_metrics() if "clean_accuracy" in line]
    if not clean or clean[-1] > _LEARNT / classes:
        return []
    return [
        f"the net is right on {clean[-1]:.1%} of what it was trained on, hardly better than a guess among {classes} "
        "classes; train it anew with a smaller --optimizer.lr, or longer with a larger --samples-seen"
    ]


def make_iterate_verb(words: Sequence[str]) -> Callable[..., None]:
    """Make the verb: its settings default to those of the recipe that ``words`` name."""
    from puma.margins import find_method, warn_of_model
    from puma.planning import PruneRule, StrengthRule, build_plan, check_rules, format_plan
    from puma.pools import open_pools
    from puma.scores import open_scores
    from puma.training import ensure_run

    begun = find_recipe(find_value("--recipe", words) or DEFAULT_RECIPE)

    def iterate(
        pools: Positional[tuple[Path, ...]],
        /,
        *,
        out: Path,
        rounds: int = 2,
        first: Path | None = None,
        trust_code: bool = False,
        prune_easy: float = 0.2,
        gap: float = 0.0,
        method: str = "deepfool",
        recipe: str = DEFAULT_RECIPE,
        dry_run: bool = False,
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
            trust_code: import the code that --first names as its model; see docs/security.md.
            prune_easy: share of the easiest samples to drop.
            gap: subtracted from the margin.
            method: how margins are measured.
            recipe: the settings to begin with; every one can be changed below.
            dry_run: say what training and measuring would cost; do nothing.
        """
        del recipe  # it has chosen the defaults of the settings
        if rounds < 1:
            raise PumaError(f"give at least one round, got {rounds}.")
        check_place_of_runs("--out", out)
        pool = open_pools(pools)
        pruning, strength = PruneRule(easy=prune_easy), StrengthRule("margin", settings.attack.eps, gap)
        check_rules(pruning, strength, settings.attack.norm)
        find_method(method)
        if dry_run:
            _print_rounds(settings, pools, pool, method, rounds, trained=rounds + (first is None))
            return
        run = first or ensure_run(settings, pools, out / "run-0")
        for turn in range(1, rounds + 1):
            margins = _measure_or_find(
                run, pool, out / f"margins-{turn}.parquet", method, settings.attack.norm, trust_code and run == first
            )
            margin = open_scores(margins, "margin")
            made = build_plan(pool, pruning, strength, margin=margin, drop_failed=True)
            print(f"round {turn}: {format_plan(made).splitlines()[0]}")
            for sentence in warn_of_model(margin.score, pool.num_classes):
                print(f"puma: warning: {sentence}.", file=sys.stderr)
            plan = _save_or_find(made, out / f"plan-{turn}.parquet")
            run = ensure_run(settings, pools, out / f"run-{turn}", plan=plan)
        print(f"model: {RunFolder(run).model}")

    return iterate


def _save_or_find(plan: "Plan", path: Path) -> Path:
    """Write a plan, or find it written; another one in its place raises."""
    from puma.planning import Plan

    if not path.is_file():
        return plan.save(path)
    if dict(Plan.open(path).made_from) != dict(plan.made_from):
        raise PumaError(f"{path} was made with other settings; give those, or use another --out.")
    return path


def _measure_or_find(run: Path, pool: "Pool", out: Path, method: str, norm: str, trust_code: bool = False) -> Path:
    """Measure with the model of a run, or go on, or find it done; margins of another model raise."""
    from puma.margins import measure_pool
    from puma.training import load_model

    model = load_model(str(run), pool.num_classes, image_shape=pool.image_shape, trust_code=trust_code)
    measure_pool(model, pool, out, method=method, norm=norm, progress=True, model_path=str(run))
    return out
