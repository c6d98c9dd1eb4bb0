"""``puma run`` and ``puma list``: tables and figures of the paper, one command each; what there is to choose from."""

import shlex
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from puma.errors import PumaError, unknown_name
from puma.evaluation import AttackName
from puma.experiments import (
    Experiment,
    OutsideModel,
    OwnImages,
    PerceptronFigure,
    SettingChanges,
    Workspace,
    build_study,
    change_setting,
    describe_perceptron_cost,
    find_experiment,
    find_setting,
    format_results,
    picture_path,
    record_folder,
    result_origin,
    run_experiment,
    run_perceptron_figure,
    use_margin_model,
)
from puma.models import trust_code_from_now_on

_TEXT_FROM = 26  # the column in which puma list begins to say what a name is


def run_experiments(
    names: Positional[Annotated[tuple[str, ...], arg(metavar="NAME...")]],
    /,
    *,
    preset: str = "small",
    dataset: str | None = None,
    seeds: int | None = None,
    rows: tuple[str, ...] = (),
    pool: Path | None = None,
    generated: Path | None = None,
    test: Path | None = None,
    model: str | None = None,
    margin_model: str | None = None,
    margin_weights: Path | None = None,
    init: Path | None = None,
    data: Path = Path("data"),
    work: Path = Path("puma-runs"),
    out: Path = Path("results"),
    processes: int = 1,
    samples_seen: int | None = None,
    batch_size: int | None = None,
    eps: float | None = None,
    test_samples: int | None = None,
    method: str | None = None,
    attacks: tuple[AttackName, ...] = (),
    autoattack_samples: int | None = None,
    precision: Literal["fp32", "bf16", "fp16", "auto"] | None = None,
    device: str | None = None,
    trust_code: bool = False,
    dry_run: bool = False,
) -> None:
    """Run experiments (puma list names them): train, measure and evaluate every row, beside the paper's numbers.

    Stages are shared: a model, margins or a plan that another row or experiment needed is not made again. The same
    command goes on after an interruption. Writes OUT/NAME.csv, for figures a picture beside it, and a record that puma
    report makes a page of.

    Args:
        names: experiments, such as tab-summary.
        preset: smoke (seconds, to see that it runs), small (Fashion-MNIST and images of a generator that is trained on
            it first, minutes to an hour), small-real (other real images play the generated ones), paper (needs GPUs),
            or CIFAR-10 on a CPU, hours: cifar10-eps2 and cifar10-eps8 (from robust weights), cifar10-eps2-scratch.
        dataset: data set of the preset, where it has several: small has fashion-mnist-14px, cifar10 and
            tiny-imagenet-20.
        seeds: repeat everything with so many seeds; one by default (perceptron figures: ten).
        rows: only these rows.
        pool: a pool of your own real images instead of a data set; needs --test.
        generated: a pool of generated images to go with --pool; without it every row is trained on real ones alone.
        test: a pool of test images to go with --pool.
        model: a net for every row: a built-in name, module:function or path/to/file.py:function.
        margin_model: measure margins with this model instead of training one: a run, a built-in name (with
            --margin-weights), module:function or path/to/file.py:function.
        margin_weights: weights of --margin-model: .safetensors or a state dict.
        init: begin every training with these weights: a file or a run.
        data: folder with the pools you imported, such as DATA/cifar10 and DATA/cifar10-generated-1m.
        work: folder for runs, margins, plans and evaluations.
        out: folder for results.
        processes: train and measure with so many processes on this machine, such as one per GPU.
        samples_seen: length of every training, instead of the preset's.
        batch_size: instead of the preset's.
        eps: radius of training and evaluation, instead of the preset's.
        test_samples: evaluate on so many test images, 0 on all.
        method: how margins are measured.
        attacks: evaluate under these too.
        autoattack_samples: evaluate AutoAttack as well, on so many test images; 0 leaves it out.
        device: such as cpu or cuda.
        trust_code: import the code that the run of --margin-model names as its model; see docs/security.md.
        dry_run: say what would be done and what it costs; do nothing.
    """
    if not names:
        raise PumaError("name at least one experiment; puma list shows them.")
    if processes < 1:
        raise PumaError(f"--processes must be at least 1, got {processes}.")
    if seeds is not None and seeds < 1:
        raise PumaError(f"give at least one seed, got {seeds}.")
    trust_code_from_now_on(trust_code)
    chosen = [find_experiment(name) for name in names]
    outside = _choose_margin_model(margin_model, margin_weights)
    if pool is not None:  # the paper's numbers are of CIFAR-10 and its nets
        chosen = [leave_out_paper(one) if isinstance(one, Experiment) else one for one in chosen]
    if outside is not None:
        chosen = [use_margin_model(one, outside) if isinstance(one, Experiment) else one for one in chosen]
    if model is not None and ".py:" in model:  # runs are resumed, and read, from other folders too
        model = f"{Path(model.rpartition(':')[0]).resolve()}:{model.rpartition(':')[2]}"
    told = margin_model if margin_weights is None else f"{margin_model} {margin_weights.resolve()}"
    own = _choose_images(pool, generated, test, dataset)
    changes = SettingChanges(
        samples_seen, batch_size, eps, test_samples, method, device, attacks, own, model, told,
        None if init is None else str(init), autoattack_samples, precision,
    )  # fmt: skip
    for experiment in chosen:  # all of it before the first takes hours
        if isinstance(experiment, Experiment):
            change_setting(find_setting(preset, dataset, experiment.images), changes)
            _check_rows(experiment, rows)
        else:
            build_study(experiment, preset, seeds)
            _check_unchanged(experiment, rows, dataset, changes)
    command = shlex.join(["puma", "run", *sys.argv[2:]]) if sys.argv[1:2] == ["run"] else f"puma run {' '.join(names)}"
    for experiment in chosen:
        if isinstance(experiment, PerceptronFigure):
            _run_perceptron(experiment, preset, seeds, work, out, dry_run=dry_run)
            continue
        setting = change_setting(find_setting(preset, dataset, experiment.images), changes)
        workspace = Workspace(work, setting, data, processes)
        if setting.weights and outside is None:
            experiment = use_margin_model(experiment, workspace.library.robust_model)
        if dry_run:
            from puma.experiments import describe_experiment

            print(describe_experiment(experiment, workspace, seeds or 1, out, rows))
            continue
        table = run_experiment(experiment, workspace, seeds or 1, out, only=rows, command=command)
        print(format_results(experiment.title, result_origin(experiment, workspace), table))
        print(f"results: {table}")
        if experiment.figure != "none":
            print(f"picture: {picture_path(experiment, workspace, out)}")
        print(f"look at it with: puma report {record_folder(experiment, workspace)}")


def leave_out_paper(experiment: Experiment) -> Experiment:
    """Return the experiment without what the paper reports, which says nothing about other images."""
    return replace(experiment, rows=tuple(replace(row, paper=None) for row in experiment.rows), expect="")


def _choose_margin_model(source: str | None, weights: Path | None) -> OutsideModel | None:
    if source is None:
        if weights is not None:
            raise PumaError("--margin-weights belong to a --margin-model; give that too.")
        return None
    return OutsideModel(source, None if weights is None else str(weights))


def _choose_images(
    pool: Path | None, generated: Path | None, test: Path | None, dataset: str | None
) -> OwnImages | None:
    """Return the pools of one's own, if any are given."""
    if pool is None and generated is None and test is None:
        return None
    if pool is None or test is None:
        raise PumaError("for images of your own give both --pool and --test; --generated is optional.")
    if dataset is not None:
        raise PumaError(f"give --dataset or --pool, not both, got --dataset {dataset}.")
    return OwnImages(pool, test, generated)


def _run_perceptron(
    experiment: PerceptronFigure, preset: str, seeds: int | None, work: Path, out: Path, *, dry_run: bool
) -> None:
    if dry_run:
        print(f"{experiment.name}: {experiment.title}\n{describe_perceptron_cost(experiment, preset, seeds)}")
        return
    table, picture = run_perceptron_figure(experiment, preset, seeds, work, out)
    print(f"results: {table}\npicture: {picture}")


def _check_unchanged(
    experiment: PerceptronFigure, rows: tuple[str, ...], dataset: str | None, changes: SettingChanges
) -> None:
    if rows or dataset is not None or changes != SettingChanges():
        raise PumaError(f"{experiment.name} takes --preset and --seeds only; puma perceptron has more to change.")


def _check_rows(experiment: Experiment, names: tuple[str, ...]) -> None:
    known = [row.name for row in experiment.rows]
    for name in names:
        if name not in known:
            raise unknown_name(f"row of {experiment.name}", name, known)


def list_choices() -> None:
    """Print the importers, models, recipes, attacks and experiments that other commands take by name."""
    import torch

    from puma.attacks import LOSSES, NORMS
    from puma.cli import COMMANDS
    from puma.experiments import EXPERIMENTS, summarise_cost
    from puma.models import ARCHITECTURES, build, count_parameters
    from puma.training import RECIPES

    print("data (puma data import NAME)")
    for verb, known in COMMANDS.items():
        if verb.startswith("data import "):
            _print_choice(verb.removeprefix("data import "), known.text)
    print("\nmodels (size of an image, parameters)")
    for name, architecture in ARCHITECTURES.items():
        with torch.device("meta"):
            millions = count_parameters(build(name, 10)) / 1e6
        _print_choice(name, f"{architecture.image_size:>3} px {millions:>6.2f} M  {architecture.summary}", 18)
    print("\nrecipes (puma train --recipe NAME)")
    for name, (text, _) in RECIPES.items():
        _print_choice(name, text)
    print("\nexperiments (puma run NAME --preset smoke|small|paper); one seed, one core")
    generator = find_setting("small").generator
    assert generator is not None
    minutes = generator.minutes + generator.images / generator.per_minute
    print(f"  small first makes images of its own: {minutes:.0f} min, once per work folder")
    for name, experiment in EXPERIMENTS.items():
        _print_choice(name, experiment.title)
        print(f"      {summarise_cost(experiment)}")
    print(f"\nattacks\n  norms: {', '.join(NORMS)}; losses: {', '.join(LOSSES)}")


def _print_choice(name: str, text: str, before: int = 0) -> None:
    """Print a name and what it is within 80 columns; further lines begin ``before`` columns behind the first's text."""
    indent = " " * (_TEXT_FROM + before)
    print(textwrap.fill(f"  {name:<{_TEXT_FROM - 2}}{text}", 80, subsequent_indent=indent, break_on_hyphens=False))
