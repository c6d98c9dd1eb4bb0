"""A training run from pools and a plan to a folder; begun, or taken up again."""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from puma.errors import PumaError
from puma.models import frozen
from puma.pools import Pool, to_unit
from puma.processes import ProcessGroup, join_processes, restart_count
from puma.training.batches import BatchSource, TrainSamples, load_samples, make_batch_source
from puma.training.checkpoint import TrainProgress, load_newest
from puma.training.config import TrainConfig, check_train_config, list_differences
from puma.training.loop import run_steps
from puma.training.run_folder import RunFolder, RunInputs, make_net
from puma.training.step import TrainState, make_train_state


def start_run(
    config: TrainConfig,
    pools: Sequence[str | Path],
    out: str | Path,
    *,
    plan: str | Path | None = None,
    show: bool = True,
) -> Path:
    """Train into the new folder ``out`` and return it; a process that torchrun restarted takes the run up again."""
    check_train_config(config)
    folder = RunFolder(Path(out))
    if restart_count() and folder.has_config:
        if not load_samples(config, pools, plan).inputs.same_images(folder.read()[1]):
            raise PumaError(f"{folder.path} was begun with another pool or plan; use another --out.")
        return resume_run(folder.path, config, show=show)
    with join_processes(config.compute.device) as processes:
        samples = load_samples(config, pools, plan)
        # before the folder is made: bad input leaves nothing behind
        prepared = prepare_training(config, samples, processes)
        if processes.writes:
            folder.create(config, samples.inputs)
        processes.barrier()
        return _train_to_end(config, samples, *prepared, folder, show=show)


def resume_run(out: str | Path, asked: TrainConfig | None = None, *, show: bool = True) -> Path:
    """Take up the run in a folder where its last checkpoint left it; ``asked`` must be what it was begun with."""
    folder = RunFolder(Path(out))
    config, inputs = folder.read()
    if asked is not None and (different := list_differences(config, asked)):
        raise PumaError(f"{folder.path} was begun with other settings ({'; '.join(different)}); use another --out.")
    with join_processes(config.compute.device) as processes:
        samples = load_samples(config, inputs.pools, inputs.plan)
        if samples.inputs != inputs:
            changed = "plan" if samples.inputs.plan_fingerprint != inputs.plan_fingerprint else "pool"
            raise PumaError(f"the {changed} has changed since {folder.path} was begun; start a run with another --out.")
        return _train_to_end(config, samples, *prepare_training(config, samples, processes), folder, show=show)


def prepare_training(
    config: TrainConfig, samples: TrainSamples, processes: ProcessGroup
) -> tuple[BatchSource, TrainState]:
    """Build the data path, and the model with what is around it."""
    source = make_batch_source(config, samples, processes)
    model = make_model(config, samples.inputs)
    check_model_fits(model, config.model, samples.train)
    return source, make_train_state(model, config, processes)


def check_model_fits(model: nn.Module, name: str, pool: Pool) -> None:
    """Pass one image through the model, so that a net for other images or classes is told before training."""
    image = to_unit(pool.batch([0]).images)
    try:
        with frozen(model), torch.no_grad():
            logits: Tensor = model(image)
    except RuntimeError as error:
        raise PumaError(f"model {name!r} cannot take images of {pool.image_shape} ({error}).") from error
    if logits.shape != (1, pool.num_classes):
        raise PumaError(f"model {name!r} gives logits {tuple(logits.shape)} for a pool of {pool.num_classes} classes.")


def ensure_run(
    config: TrainConfig, pools: Sequence[str | Path], out: str | Path, *, plan: str | Path | None = None
) -> Path:
    """Train, or go on, or find it done; a folder with another configuration, pool or plan raises."""
    folder = RunFolder(Path(out))
    if not folder.has_config:
        return start_run(config, pools, out, plan=plan)
    create_run(config, pools, out, plan=plan)
    if folder.model.is_file() and folder.read()[0] == config:
        return folder.path
    return resume_run(out, config)


def create_run(
    config: TrainConfig, pools: Sequence[str | Path], out: str | Path, *, plan: str | Path | None = None
) -> None:
    """Make the folder of a run without training, for ``resume``; one that was begun with the same may stay.

    The same images are the same wherever they lie: if pools or plan were moved, the folder is told where they are now.
    """
    check_train_config(config)
    folder = RunFolder(Path(out))
    inputs = load_samples(config, pools, plan).inputs
    if not folder.has_config:
        folder.create(config, inputs)
        return
    begun_with, before = folder.read()
    if not inputs.same_images(before):
        raise PumaError(f"{folder.path} was begun with another pool or plan; use another folder.")
    if inputs != before:
        folder.describe(begun_with, inputs)


def _train_to_end(
    config: TrainConfig, samples: TrainSamples, source: BatchSource, state: TrainState, folder: RunFolder, *, show: bool
) -> Path:
    processes = state.processes
    progress = _restore_state(state, folder)
    if processes.writes:
        for sentence in samples.warnings if progress.step == 0 else ():
            tell_user(f"warning: {sentence}")
        if progress.step:
            tell_user(f"resuming at step {progress.step:,} of {config.steps:,}")
        folder.forget_metrics_after(progress.step)
    processes.barrier()
    run_steps(state, source, samples.held_out, config, folder, progress, show=show)
    return folder.path


def _restore_state(state: TrainState, folder: RunFolder) -> TrainProgress:
    quiet = (lambda _: None) if not state.processes.writes else tell_user
    progress = load_newest(folder.checkpoint, state.model, state.average, state.optimizer, tell=quiet)
    if progress is not None and progress.online_threshold is not None:
        state.online.threshold = progress.online_threshold
    if progress is not None and state.scaler is not None and progress.scaler:
        scaler = dict(progress.scaler)
        scaler["growth_interval"] = int(scaler["growth_interval"])
        scaler["_growth_tracker"] = int(scaler["_growth_tracker"])
        state.scaler.load_state_dict(scaler)
    return progress or TrainProgress(0)


def make_model(config: TrainConfig, inputs: RunInputs) -> nn.Module:
    """Build the model with weights that depend on the seed alone; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return make_net(config.model, inputs.num_classes, inputs.channels)


def tell_user(sentence: str) -> None:
    """Say something on standard error."""
    print(f"puma: {sentence}", file=sys.stderr, flush=True)
