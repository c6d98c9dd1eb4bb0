"""``puma train``: a recipe, pools and perhaps a plan become a run."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from puma.errors import PumaError
from puma.training.config import TrainConfig, check_train_config, config_to_dict
from puma.training.recipes import find_recipe
from puma.training.run_folder import RunFolder

DEFAULT_RECIPE = "small-digits"


def train_for(words: Sequence[str]) -> Callable[..., None]:
    """Make the verb: its settings default to those of the recipe, or of the run to resume, that ``words`` name."""
    run = value_of("--resume", words)
    begun = RunFolder(Path(run)).read()[0] if run else find_recipe(value_of("--recipe", words) or DEFAULT_RECIPE)

    def train(
        pools: Positional[tuple[Path, ...]] = (),
        /,
        *,
        out: Path | None = None,
        recipe: str = DEFAULT_RECIPE,
        plan: Path | None = None,
        resume: Path | None = None,
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
            dry_run: print the settings and what training would cost; train nothing.
        """
        del recipe  # it has chosen the defaults of the settings
        if resume is not None and dry_run:
            raise PumaError("--dry-run does not go with --resume; leave one of them out.")
        if resume is not None:
            take_up(resume, settings, pools, out, plan)
        elif dry_run:
            print_dry_run(settings, pools, plan)
        elif out is None:
            raise PumaError("say where the run goes with --out DIR.")
        else:
            from puma.training.run import start_run

            finished(start_run(settings, pools, out, plan=plan))

    return train


def value_of(flag: str, words: Sequence[str]) -> str | None:
    """Return what follows a flag among the words, also as FLAG=VALUE."""
    for index, word in enumerate(words):
        if word == flag and index + 1 < len(words):
            return words[index + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def take_up(run: Path, settings: TrainConfig, pools: tuple[Path, ...], out: Path | None, plan: Path | None) -> None:
    """Resume a run; pools, plan or folder other than its own raise."""
    from puma.training.run import resume_run

    inputs = RunFolder(run).read()[1]
    asked = {"pools": [str(path.resolve()) for path in pools], "plan": str(plan.resolve()) if plan else None}
    asked["out"] = str(out.resolve()) if out else None
    own = {"pools": list(inputs.pools), "plan": inputs.plan, "out": str(run.resolve())}
    for name, value in asked.items():
        if value and value != own[name]:
            raise PumaError(f"{run} was begun with {name} {own[name]}, not {value}; --resume alone is enough.")
    finished(resume_run(run, settings))


def print_dry_run(settings: TrainConfig, pools: tuple[Path, ...], plan: Path | None) -> None:
    """Print the resolved settings and an estimate of the cost."""
    from puma.training.batches import load_samples
    from puma.training.estimate import estimate_cost, format_cost

    check_train_config(settings)
    inputs = load_samples(settings, pools, plan).inputs if pools else None
    print(json.dumps(config_to_dict(settings), indent=1))
    print(format_cost(settings, estimate_cost(settings, inputs)))


def finished(run: Path) -> None:
    """Say where the model is, once."""
    if os.environ.get("RANK", "0") == "0":
        print(f"model: {run / 'model.safetensors'}")
        print(f"evaluate it with: puma evaluate {run} POOL")
