"""What an experiment costs: models to train, samples, passes, and on this machine hours."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from puma.experiments.experiment_run import describe_perceptron_cost
from puma.experiments.images import DATASETS
from puma.experiments.presets import OWN_GENERATOR, PRESETS, ExperimentSetting, find_setting
from puma.experiments.spec import (
    Experiment,
    GeneratedAmount,
    GeneratorImages,
    ModelSpec,
    PerceptronFigure,
    iterate_models,
    list_amounts,
    select_rows,
)
from puma.experiments.workspace import Workspace
from puma.pools import Pool
from puma.progress import format_bytes, format_pixel_step, format_seconds
from puma.training import RunInputs, TrainConfig, TrainingCost, estimate_cost

_RUN_COPIES = 10  # of the weights on disk, checkpoints among them; margins and plans are small beside them


@dataclass(frozen=True)
class ExperimentCost:
    """Trainings of one seed by net, and how long a short trial says they take together."""

    trainings: dict[str, int]
    samples: int
    hours: float
    memory_bytes: int
    disk_bytes: int

    @property
    def models(self) -> int:
        """How many models are trained for one seed."""
        return sum(self.trainings.values())


def list_needed_models(experiment: Experiment, setting: ExperimentSetting) -> list[ModelSpec]:
    """Return every model that the rows need, once."""
    rows, _ = select_rows(experiment, setting.nets, setting.amounts, generator=setting.generator is not None)
    return list(dict.fromkeys(model for row in rows for model in iterate_models(row.wants)))


def estimate_experiment(experiment: Experiment, workspace: Workspace) -> ExperimentCost:
    """Count the models and time a few steps of each net on random images."""
    models = list_needed_models(experiment, workspace.setting)
    trainings: dict[str, int] = {}
    seconds = 0.0
    samples = 0
    memory = disk = 0
    timed: dict[TrainConfig, TrainingCost] = {}
    for model in models:
        config = workspace.setting.nets[model.net]
        trainings[config.model] = trainings.get(config.model, 0) + 1
        seen = int(model.length * config.samples_seen)
        samples += seen
        if config not in timed:
            timed[config] = estimate_cost(config, *_describe_shape(workspace))
        seconds += timed[config].seconds_per_sample * seen
        memory = max(memory, timed[config].memory_bytes)
        disk += _RUN_COPIES * 4 * timed[config].parameters
    return ExperimentCost(trainings, samples, seconds / 3600, memory, disk)


def summarise_cost(experiment: Experiment | PerceptronFigure) -> str:
    """Say in a few words what one seed costs at each preset."""
    if isinstance(experiment, PerceptronFigure):
        return f"{describe_perceptron_cost(experiment, 'small', None)}: smoke 5 s, small and paper 30 s"
    told, counts = [], []
    for preset in PRESETS:
        setting = find_setting(preset, images=experiment.images)
        models = list_needed_models(experiment, setting)
        samples = sum(int(model.length * setting.nets[model.net].samples_seen) for model in models)
        counts += [len(models)] if models else []
        if not models:
            told.append(f"not at {preset}")
        elif not setting.minutes:
            told.append(f"{preset} {samples / 1e6:,.0f} M samples")
        else:
            minutes = sum(model.length * setting.minutes[model.net] for model in models)
            told.append(f"{preset} {60 * minutes:.0f} s" if minutes < 1 else f"{preset} {minutes:.0f} min")
    count = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{max(counts)}"
    return f"{count} {'training' if count == '1' else 'trainings'}: {', '.join(told)}"


def _describe_shape(workspace: Workspace) -> tuple[RunInputs, tuple[int, int] | None]:
    own = workspace.setting.own
    if own is None:
        entry = DATASETS[workspace.setting.dataset]
        return RunInputs((), None, "", None, entry.num_classes, entry.shape[2]), None
    pool = Pool.open(own.real)
    height, width, channels = pool.image_shape
    return RunInputs((), None, "", None, pool.num_classes, channels), (height, width)


def describe_experiment(
    experiment: Experiment, workspace: Workspace, seeds: int, out: Path, only: Collection[str] = ()
) -> str:
    """Say in lines what ``puma run`` would do."""
    setting = workspace.setting
    experiment = replace(experiment, rows=tuple(row for row in experiment.rows if not only or row.name in only))
    rows, left_out = select_rows(experiment, setting.nets, setting.amounts, generator=setting.generator is not None)
    found = estimate_experiment(experiment, workspace)
    amounts: set[GeneratedAmount] = {amount for row in rows for amount in list_amounts(row.wants)}
    nets = ", ".join(f"{count} x {net}" for net, count in found.trainings.items())
    eps = format_pixel_step(setting.eps)
    changed = setting.changed.replace(f"eps {setting.eps:g}", f"eps {eps}")
    lines = [
        f"{experiment.name}: {experiment.title}",
        f"preset       {setting.preset} on {setting.dataset}, eps {eps}" + (f"; changed: {changed}" if changed else ""),
        f"rows         {'; '.join(row.name for row in rows)}",
        f"trainings    {found.models} per seed ({nets}), {seeds} {'seed' if seeds == 1 else 'seeds'}, "
        f"{found.samples * seeds:,} samples in all",
        f"time         about {format_seconds(3600 * found.hours * seeds)} on one "
        f"{setting.nets['main'].compute.device}, by a short trial; margins and evaluation come on top",
        f"memory       about {format_bytes(found.memory_bytes)} in one process, images not counted; "
        f"disk about {format_bytes(found.disk_bytes * seeds)} for runs, margins and plans",
        f"evaluation   {', '.join(setting.evaluation.attacks)} on "
        + (f"{setting.evaluation.max_samples:,} test images" if setting.evaluation.max_samples else "all test images")
        + (f"; autoattack on {setting.autoattack_samples:,}" if setting.autoattack_samples else ""),
        f"results      {out / experiment.name}.csv; stages in {workspace.path}, those of other experiments are reused",
    ]
    if told := _describe_generator(experiment, setting):
        lines.append(f"generator    {told}")
    if setting.weights:
        begin = "; trainings begin with them" if setting.begins_with_weights else ""
        lines.append(f"margins      by {workspace.library.robust_model.source} with {workspace.library.weights}{begin}")
    lines += [f"left out     {name}: {setting.shortage}" for name in left_out]
    lines += [f"missing      {sentence}" for sentence in workspace.library.list_missing(amounts)]
    return "\n".join(lines)


def _describe_generator(experiment: Experiment, setting: ExperimentSetting) -> str:
    """Say which generator is trained before the rows, and how long that takes; "" if they need none."""
    models, generator = list_needed_models(experiment, setting), setting.generator
    aimed = any(isinstance(model.generated, GeneratorImages) for model in models)
    amounts = {model.generated for model in models if not isinstance(model.generated, GeneratorImages)}
    asked = [setting.generated[amount] for amount in amounts if amount in setting.generated]
    counts = {images.count for images in asked if images.pool == OWN_GENERATOR}
    if generator is None or not (aimed or counts):
        return ""
    if aimed:
        counts.add(generator.images)
    images = " and ".join(f"{count:,}" for count in sorted(counts))
    told = (
        f"{generator.recipe} is trained first, on {generator.samples_seen:,} samples of the real images"
        f"{', told the margins of a model of them' if generator.tells_margins else ''}; then it makes {images} images"
    )
    told += ", and others by margin for as many passes each" if aimed else ""
    if generator.minutes:
        sampling = 60 * sum(counts) / generator.per_minute
        told += (
            f": {format_seconds(60 * generator.minutes)} and {format_seconds(sampling)} on one core"
            f"{', without those by margin' if aimed else ''}"
        )
    return f"{told}; once per work folder"
