"""``puma list``: what there is to choose from."""

from puma.attacks import LOSSES, NORMS
from puma.cli import COMMANDS
from puma.experiments import EXPERIMENTS
from puma.experiments.cost import in_short
from puma.models import ARCHITECTURES, build, count_parameters
from puma.training.recipes import RECIPES


def listing() -> None:
    """Print the importers, models, recipes, attacks and experiments that other commands take by name."""
    import torch

    print("data (puma data import NAME)")
    for verb, (_, text) in COMMANDS.items():
        if verb.startswith("data import "):
            print(f"  {verb.removeprefix('data import '):<22}{text}")
    print("\nmodels")
    for name, architecture in ARCHITECTURES.items():
        with torch.device("meta"):
            millions = count_parameters(build(name, 10)) / 1e6
        print(f"  {name:<22}{architecture.image_size:>4} px {millions:>8.2f} M parameters   {architecture.summary}")
    print("\nrecipes (puma train --recipe NAME)")
    for name, (text, _) in RECIPES.items():
        print(f"  {name:<26}{text}")
    print("\nexperiments (puma run NAME --preset smoke|small|paper); times are of one seed on one core")
    for name, experiment in EXPERIMENTS.items():
        print(f"  {name:<26}{experiment.title:<64}{in_short(experiment)}")
    print(f"\nattacks\n  norms: {', '.join(NORMS)}; losses: {', '.join(LOSSES)}")
