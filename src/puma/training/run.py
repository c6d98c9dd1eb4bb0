"""A training run from pools and a plan to a folder: begun, taken up again, or found done; and ``puma.train``."""

import copy
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from puma.attacks import check_number
from puma.errors import PumaError
from puma.evaluation import EvaluationConfig, choose_evaluation_folder, evaluate_pool, write_evaluation
from puma.files import Link, link_to_file
from puma.models import find_code, fingerprint_model, frozen, load_weights, name_architecture, remember_code
from puma.planning import Plan
from puma.pools import Pool, list_pools, open_pools, to_unit
from puma.processes import ProcessGroup, join_processes, resolve_device, restart_count
from puma.training.batches import (
    BatchSource,
    TrainSamples,
    check_drawn,
    describe_batch,
    describe_helped,
    describe_start,
    load_samples,
    make_batch_source,
)
from puma.training.checkpoint import TrainProgress, list_checkpoints, load_newest
from puma.training.config import TrainConfig, check_train_config, list_differences, override_config
from puma.training.loop import run_steps
from puma.training.precision import choose_precision
from puma.training.recipes import find_recipe
from puma.training.run_folder import IN_MEMORY, RunFolder, RunInputs, find_init, load_init, load_model, make_net
from puma.training.step import TrainState, make_train_state


@dataclass(frozen=True, eq=False)
class Run:
    """A finished training run: its model, what it recorded, and what it was made from.

    Examples:
        >>> pool = puma.Pool.from_tensors(torch.rand(64, 1, 8, 8), torch.arange(64) % 4)
        >>> run = puma.train("small-8px", pool, out="run", samples_seen=256, batch_size=64)
        >>> run.model(torch.rand(2, 1, 8, 8)).shape  # in eval mode
        torch.Size([2, 4])
        >>> run.metrics[-1]["samples"]
        256
        >>> sorted(run.evaluate(pool, eps=8 / 255))
        ['clean', 'cw']
    """

    path: Path
    net: nn.Module | None = field(default=None, repr=False)

    @property
    def config(self) -> TrainConfig:
        """What it was trained with."""
        return RunFolder(self.path).read()[0]

    @property
    def links(self) -> tuple[Link, ...]:
        """What it was made from: pools by fingerprint, the plan by hash, the first weights."""
        return RunFolder(self.path).read()[1].links

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, in the order of time."""
        return RunFolder(self.path).read_metrics()

    @cached_property
    def model(self) -> nn.Module:
        """The averaged model, in eval mode; it takes pixels in [0, 1] and gives logits."""
        if self.net is None:
            return load_model(self.path)
        return load_weights(copy.deepcopy(self.net), RunFolder(self.path).model).eval()

    def evaluate(
        self,
        pool: Pool | str | Path,
        *,
        eps: float | None = None,
        attacks: Sequence[str] = ("clean", "cw"),
        max_samples: int = 0,
        seed: int = 0,
        name: str | None = None,
        show: bool = False,
    ) -> dict[str, float]:
        """Return the share of a pool that the model gets right, by attack; at the run's own eps by default.

        With a ``name``, such as ``test``, the counts are kept in the folder evaluation-NAME of the run, where the
        report finds them.
        """
        (images,) = list_pools([pool])
        config = self.config
        asked = EvaluationConfig(
            attacks=tuple(attacks), norm=config.attack.norm, max_samples=max_samples, seed=seed, masking_samples=0
        )
        device = resolve_device(config.compute.device)
        radius = config.attack.eps if eps is None else eps
        check_number(radius, "eps")
        if name is not None and (not name or any(mark in name for mark in "/\\")):
            raise PumaError(f"name must be a word that a folder can be called, such as 'test', got {name!r}.")
        found = evaluate_pool(self.model, images, radius, asked, device=device, show=show)
        if name is not None:
            folder = choose_evaluation_folder(self.path / f"evaluation-{name}", found.key)
            links = [link_to_file("weights", "weights", RunFolder(self.path).model)]
            write_evaluation(folder, found.to_metrics(links=links, model=str(self.path), pool=images.place))
        return {name: count.accuracy for name, count in found.counts().items()}

    def __repr__(self) -> str:
        config, lines = self.config, self.metrics
        last: dict[str, Any] = next((line for line in reversed(lines) if "loss" in line), {})
        words = [config.model, f"{config.steps * config.batch_size:,} samples"]
        words += [
            f"{name} {last[name]:.3g}" for name in ("loss", "clean_accuracy", "attacked_accuracy") if name in last
        ]
        return f"Run('{self.path}': {', '.join(words)})"


def train(
    model: nn.Module | str,
    pool: Pool | str | Path | Sequence[Pool | str | Path],
    *,
    out: str | Path,
    plan: Plan | str | Path | None = None,
    recipe: str | TrainConfig | None = None,
    show: bool = False,
    **settings: Any,
) -> Run:
    """Train a robust model into the folder ``out`` and return the run; called again with the same, it is found done.

    Examples:
        >>> pool = puma.Pool.from_tensors(torch.rand(64, 1, 8, 8), torch.arange(64) % 4)
        >>> plan = puma.make_plan(pool, prune_random=0.5, eps=8 / 255)
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
        >>> run = puma.train(net, pool, plan=plan, recipe="small-digits", out="run", samples_seen=256, eps=8 / 255)
        >>> run
        Run('run': <Sequential>, 256 samples, loss ...)

    Args:
        model: an ``nn.Module`` (copied; training starts from its weights), a built-in name or module:function.
        pool: what to train on: a ``Pool`` or its folder, or several.
        out: folder of the run; what was cut short there goes on.
        plan: which samples to keep and how strongly to attack each, as a ``Plan`` or its file.
        recipe: the settings to begin with, by name or as a whole; those of ``TrainConfig`` unless given.
        show: show the progress.
        settings: what to change, such as ``samples_seen=1e6, eps=8 / 255, attack={"steps": 7}``.
    """
    begun = recipe if isinstance(recipe, TrainConfig) else find_recipe(recipe) if recipe else TrainConfig()
    net = model if isinstance(model, nn.Module) else None
    if net is None and not isinstance(model, str):
        raise PumaError(f"model must be a torch.nn.Module, a name or module:function, got {type(model).__name__}.")
    name = model if isinstance(model, str) else IN_MEMORY.format(name_architecture(model) or type(model).__name__)
    config = override_config(begun, {**settings, "model": name})
    check_train_config(config)
    pools = list_pools(pool)
    if plan is not None and not isinstance(plan, Plan | str | Path):
        raise PumaError(f"plan must be a puma.Plan or its file, got {type(plan).__name__}; puma.make_plan makes one.")
    if isinstance(plan, Plan):
        plan.of(open_pools(pools))  # one of another pool raises before anything is written
        plan = _keep_plan(plan, RunFolder(Path(out)))
    return Run(ensure_run(config, pools, out, plan=plan, net=net, show=show), net)


def _keep_plan(plan: Plan, folder: RunFolder) -> Path:
    """Put a plan that is in memory into the folder of its run; a run that was begun with another one raises."""
    if not folder.has_config:
        folder.check_free()
        return plan.save(folder.plan)
    kept = Plan.open(folder.plan)
    same = kept.pool_fingerprint == plan.pool_fingerprint and len(kept) == len(plan)
    columns = ("sample_id", "keep", "strength")
    if not same or not all(torch.equal(getattr(kept, name), getattr(plan, name)) for name in columns):
        raise PumaError(f"{folder.path} was begun with another plan; use another folder.")
    return folder.plan


def start_run(
    config: TrainConfig,
    pools: Sequence[Pool | str | Path],
    out: str | Path,
    *,
    plan: str | Path | None = None,
    net: nn.Module | None = None,
    show: bool = True,
) -> Path:
    """Train into the new folder ``out`` and return it; a process that torchrun restarted takes the run up again."""
    check_train_config(config)
    config, folder = settle_init(config), RunFolder(Path(out))
    if restart_count() and folder.has_config:
        if not load_samples(config, pools, plan).inputs.same_images(folder.read()[1]):
            raise PumaError(f"{folder.path} was begun with another pool or plan; use another --out.")
        remember_code(config.model)
        return resume_run(folder.path, config, pools=pools, net=net, show=show)
    with join_processes(config.compute.device) as processes:
        samples = load_samples(config, pools, plan)
        # before the folder is made: bad input leaves nothing behind
        prepared = prepare_training(config, samples, processes, net)
        check_drawn(prepared[0].sampler, samples.held_out)
        if processes.writes:
            folder.create(config, link_weights(samples.inputs, net, config, samples.whole))
        processes.barrier()
        return _train_to_end(config, samples, *prepared, folder, show=show)


def resume_run(
    out: str | Path,
    asked: TrainConfig | None = None,
    *,
    pools: Sequence[Pool | str | Path] = (),
    net: nn.Module | None = None,
    show: bool = True,
) -> Path:
    """Take up the run in a folder where its last checkpoint left it; ``asked`` must be what it was begun with.

    ``pools`` and ``net`` are needed for a run on images, or with a net, that are in memory.
    """
    folder = RunFolder(Path(out))
    config, inputs = folder.read()
    if net is None:
        folder.check_code()
    if asked is not None and (different := list_differences(config, asked)):
        raise PumaError(f"{folder.path} was begun with other settings ({'; '.join(different)}); use another --out.")
    with join_processes(config.compute.device) as processes:
        if not (inputs.pools or pools):
            raise PumaError(f"{folder.path} was trained on images in memory; call puma.train with them again.")
        samples = load_samples(config, pools or inputs.pools, inputs.plan)
        fresh = not list_checkpoints(folder.checkpoint)
        if fresh and _first_weights(link_weights(samples.inputs, net, config, samples.whole)) != _first_weights(inputs):
            raise PumaError(f"the first weights have changed since {folder.path} was begun; use another --out.")
        if fresh and processes.writes:
            tell_user(f"{folder.path} has no checkpoint: it starts anew")
        if not samples.inputs.same_images(inputs):
            changed = "plan" if samples.inputs.plan_fingerprint != inputs.plan_fingerprint else "pool"
            raise PumaError(f"the {changed} has changed since {folder.path} was begun; start a run with another --out.")
        prepared = prepare_training(config, samples, processes, net, fresh=fresh)
        return _train_to_end(config, samples, *prepared, folder, show=show)


def prepare_training(
    config: TrainConfig,
    samples: TrainSamples,
    processes: ProcessGroup,
    net: nn.Module | None = None,
    *,
    fresh: bool = True,
) -> tuple[BatchSource, TrainState]:
    """Build the data path, and the model with what is around it; a ``net`` of the user's is copied."""
    source = make_batch_source(config, samples, processes)
    model = make_model(config, samples.inputs) if net is None else copy.deepcopy(net)
    if config.init and fresh:
        load_init(model, find_init(config.init), replace_head=config.init_head == "replace")
    check_model_fits(model, config.model, samples.train)
    return source, make_train_state(model, config, processes, len(samples.train))


def check_model_fits(model: nn.Module, name: str, pool: Pool) -> None:
    """Pass one image through the model, so that a net for other images or classes is told before training."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise PumaError(f"model {name!r} has no weights that can be trained; are they frozen (requires_grad)?")
    image = to_unit(pool.batch([0]).images)
    try:
        with frozen(model), torch.no_grad():
            logits: Tensor = model(image)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError) as error:
        raise PumaError(f"model {name!r} cannot take images of {pool.image_shape} ({error}).") from error
    if not isinstance(logits, Tensor):
        kind = type(logits).__name__
        raise PumaError(f"model {name!r} must give its logits as one tensor, it gave {kind}; wrap it.")
    if logits.shape != (1, pool.num_classes):
        raise PumaError(f"model {name!r} gives logits {tuple(logits.shape)} for a pool of {pool.num_classes} classes.")


def ensure_run(
    config: TrainConfig,
    pools: Sequence[Pool | str | Path],
    out: str | Path,
    *,
    plan: str | Path | None = None,
    net: nn.Module | None = None,
    show: bool = True,
) -> Path:
    """Train, or go on, or find it done; a folder with another configuration, net, pool or plan raises."""
    config, folder = settle_init(config), RunFolder(Path(out))
    if not folder.has_config:
        return start_run(config, pools, out, plan=plan, net=net, show=show)
    create_run(config, pools, out, plan=plan, net=net)
    if folder.model.is_file() and folder.read()[0] == config:
        return folder.path
    remember_code(config.model)
    return resume_run(out, config, pools=pools, net=net, show=show)


def create_run(
    config: TrainConfig,
    pools: Sequence[Pool | str | Path],
    out: str | Path,
    *,
    plan: str | Path | None = None,
    net: nn.Module | None = None,
) -> None:
    """Make the folder of a run without training, for ``resume``; one that was begun with the same may stay.

    The same images are the same wherever they lie: if pools or plan were moved, the folder is told where they are now.
    """
    check_train_config(config)
    config, folder = settle_init(config), RunFolder(Path(out))
    samples = load_samples(config, pools, plan)
    inputs = link_weights(samples.inputs, net, config, samples.whole)
    if not folder.has_config:
        check_drawn(make_batch_source(config, samples, ProcessGroup()).sampler, samples.held_out)
        folder.create(config, inputs)
        return
    begun_with, before = folder.read()
    if not inputs.same_images(before):
        raise PumaError(f"{folder.path} was begun with another pool or plan; use another folder.")
    if _first_weights(inputs) != _first_weights(before):
        raise PumaError(f"{folder.path} was begun with another net, or other first weights of it; use another folder.")
    if inputs != before:
        folder.describe(begun_with, inputs)


def settle_init(config: TrainConfig) -> TrainConfig:
    """Say where the first weights are in a way that holds in any folder."""
    return replace(config, init=str(Path(config.init).resolve())) if config.init else config


def link_weights(inputs: RunInputs, net: nn.Module | None, config: TrainConfig, pool: Pool) -> RunInputs:
    """Add to what a run is made from its first weights: those of a net in memory, or of a file or another run."""
    links = inputs.links
    if net is not None:
        links += (Link("model", "model", fingerprint_model(net, pool.image_shape)),)
    elif ":" in config.model and (code := find_code(config.model)) is not None:
        links += (link_to_file("code", "code", code),)
    if config.init:
        link = link_to_file("init", "weights", find_init(config.init))
        links += (replace(link, kind="run", path=config.init) if Path(config.init).is_dir() else link,)
    return replace(inputs, links=links)


def _first_weights(inputs: RunInputs) -> list[str]:
    return [link.hash for link in inputs.links if link.role in ("model", "init")]


def _train_to_end(
    config: TrainConfig, samples: TrainSamples, source: BatchSource, state: TrainState, folder: RunFolder, *, show: bool
) -> Path:
    processes = state.processes
    with folder.lock() if processes.writes else nullcontext():
        return _train_locked(config, samples, source, state, folder, show=show)


def _train_locked(
    config: TrainConfig, samples: TrainSamples, source: BatchSource, state: TrainState, folder: RunFolder, *, show: bool
) -> Path:
    processes = state.processes
    config = settle_precision(config, folder, samples, state)
    progress = _restore_state(state, folder)
    if processes.writes and progress.step == config.steps:
        tell_user(f"{folder.path} is finished: all of its {config.steps:,} steps are done")
    elif processes.writes:
        tell_user(describe_batch(source.sampler))
        if source.first is not None:
            tell_user(describe_start(config))
        if helped := describe_helped(samples.strength, config):
            tell_user(helped)
        for sentence in samples.warnings if progress.step == 0 else ():
            tell_user(f"warning: {sentence}")
        if progress.step:
            tell_user(f"resuming at step {progress.step:,} of {config.steps:,}")
    if processes.writes:
        folder.forget_metrics_after(progress.step)
    processes.barrier()
    run_steps(state, source, samples.held_out, config, folder, progress, show=show)
    return folder.path


def settle_precision(config: TrainConfig, folder: RunFolder, samples: TrainSamples, state: TrainState) -> TrainConfig:
    """Return the configuration with the precision that ``auto`` stands for, chosen once and written down."""
    if config.compute.precision != "auto":
        return config
    precision = folder.read_precision()
    state.processes.barrier()  # nobody writes it before all have looked
    if precision is None:
        with torch.random.fork_rng():
            choice = choose_precision(state.model, config, samples.train, state.processes)
        precision = choice.precision
        if state.processes.writes:
            folder.write_precision(choice.to_dict())
            tell_user(choice.describe())
    return replace(config, compute=replace(config.compute, precision=precision))


def _restore_state(state: TrainState, folder: RunFolder) -> TrainProgress:
    quiet = (lambda _: None) if not state.processes.writes else tell_user
    losses = None if state.losses is None else state.losses.last
    progress = load_newest(folder.checkpoint, state.model, state.average, state.optimizer, losses, tell=quiet)
    if progress is not None and progress.online_threshold is not None:
        state.online.threshold = progress.online_threshold
    if progress is not None and progress.online_class_thresholds is not None:
        state.online.by_class = torch.tensor(progress.online_class_thresholds, dtype=torch.float64)
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
