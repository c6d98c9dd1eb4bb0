"""A training run from pools and a plan to a folder; begun, or taken up again."""

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from puma.errors import PumaError
from puma.models import build, frozen
from puma.models.source import load_model
from puma.planning import Plan, wiped_out
from puma.pools import MixedSampler, Origin, Pool, open_pools, to_unit
from puma.training.checkpoint import Progress, load_newest
from puma.training.config import TrainConfig, check, differences
from puma.training.distributed import Ranks, joined, restart_count
from puma.training.feed import Source
from puma.training.held_out import held_out_mask
from puma.training.loop import run_steps
from puma.training.run_folder import Inputs, RunFolder
from puma.training.step import Parts, make_parts


@dataclass(frozen=True)
class Samples:
    """The samples to train on with their strengths, those to evaluate on, and what the user should be told.

    ``trained`` says which of the ``whole`` are trained on.
    """

    whole: Pool
    trained: NDArray[np.bool_]
    train: Pool
    strength: Tensor
    held_out: Pool
    inputs: Inputs
    warnings: tuple[str, ...]


def train(
    config: TrainConfig,
    pools: Sequence[str | Path],
    out: str | Path,
    *,
    plan: str | Path | None = None,
    show: bool = True,
) -> Path:
    """Train into the new folder ``out`` and return it; a process that torchrun restarted takes the run up again."""
    check(config)
    folder = RunFolder(Path(out))
    if restart_count() and folder.has_config:
        if not gather(config, pools, plan).inputs.same_images(folder.read()[1]):
            raise PumaError(f"{folder.path} was begun with another pool or plan; use another --out.")
        return resume(folder.path, config, show=show)
    with joined(config.compute.device) as ranks:
        samples = gather(config, pools, plan)
        prepared = prepare(config, samples, ranks)  # before the folder is made: bad input leaves nothing behind
        if ranks.writes:
            folder.create(config, samples.inputs)
        ranks.barrier()
        return _run(config, samples, *prepared, folder, show=show)


def resume(out: str | Path, asked: TrainConfig | None = None, *, show: bool = True) -> Path:
    """Take up the run in a folder where its last checkpoint left it; ``asked`` must be what it was begun with."""
    folder = RunFolder(Path(out))
    config, inputs = folder.read()
    if asked is not None and (different := differences(config, asked)):
        raise PumaError(f"{folder.path} was begun with other settings ({'; '.join(different)}); use another --out.")
    with joined(config.compute.device) as ranks:
        samples = gather(config, inputs.pools, inputs.plan)
        if samples.inputs != inputs:
            changed = "plan" if samples.inputs.plan_fingerprint != inputs.plan_fingerprint else "pool"
            raise PumaError(f"the {changed} has changed since {folder.path} was begun; start a run with another --out.")
        return _run(config, samples, *prepare(config, samples, ranks), folder, show=show)


def prepare(config: TrainConfig, samples: Samples, ranks: Ranks) -> tuple[Source, Parts]:
    """Build the data path, and the model with what is around it."""
    source = make_source(config, samples, ranks)
    model = make_model(config, samples.inputs)
    check_fit(model, config.model, samples.train)
    return source, make_parts(model, config, ranks)


def check_fit(model: nn.Module, name: str, pool: Pool) -> None:
    """Pass one image through the model, so that a net for other images or classes is told before training."""
    image = to_unit(pool.batch([0]).images)
    try:
        with frozen(model), torch.no_grad():
            logits: Tensor = model(image)
    except RuntimeError as error:
        raise PumaError(f"model {name!r} cannot take images of {pool.image_shape} ({error}).") from error
    if logits.shape != (1, pool.num_classes):
        raise PumaError(f"model {name!r} gives logits {tuple(logits.shape)} for a pool of {pool.num_classes} classes.")


def ensure_trained(
    config: TrainConfig, pools: Sequence[str | Path], out: str | Path, *, plan: str | Path | None = None
) -> Path:
    """Train, or go on, or find it done; a folder with another configuration, pool or plan raises."""
    folder = RunFolder(Path(out))
    if not folder.has_config:
        return train(config, pools, out, plan=plan)
    begin_training(config, pools, out, plan=plan)
    if folder.model.is_file() and folder.read()[0] == config:
        return folder.path
    return resume(out, config)


def begin_training(
    config: TrainConfig, pools: Sequence[str | Path], out: str | Path, *, plan: str | Path | None = None
) -> None:
    """Make the folder of a run without training, for ``resume``; one that was begun with the same may stay.

    The same images are the same wherever they lie: if pools or plan were moved, the folder is told where they are now.
    """
    check(config)
    folder = RunFolder(Path(out))
    inputs = gather(config, pools, plan).inputs
    if not folder.has_config:
        folder.create(config, inputs)
        return
    begun_with, before = folder.read()
    if not inputs.same_images(before):
        raise PumaError(f"{folder.path} was begun with another pool or plan; use another folder.")
    if inputs != before:
        folder.describe(begun_with, inputs)


def _run(config: TrainConfig, samples: Samples, source: Source, parts: Parts, folder: RunFolder, *, show: bool) -> Path:
    ranks = parts.ranks
    progress = _restore(parts, folder)
    if ranks.writes:
        for sentence in samples.warnings if progress.step == 0 else ():
            tell(f"warning: {sentence}")
        if progress.step:
            tell(f"resuming at step {progress.step:,} of {config.steps:,}")
        folder.forget_metrics_after(progress.step)
    ranks.barrier()
    run_steps(parts, source, samples.held_out, config, folder, progress, show=show)
    return folder.path


def _restore(parts: Parts, folder: RunFolder) -> Progress:
    quiet = (lambda _: None) if not parts.ranks.writes else tell
    progress = load_newest(folder.checkpoint, parts.model, parts.average, parts.optimizer, tell=quiet)
    if progress is not None and progress.online_threshold is not None:
        parts.online.threshold = progress.online_threshold
    if progress is not None and parts.scaler is not None and progress.scaler:
        state = dict(progress.scaler)
        state["growth_interval"] = int(state["growth_interval"])
        state["_growth_tracker"] = int(state["_growth_tracker"])
        parts.scaler.load_state_dict(state)
    return progress or Progress(0)


def gather(config: TrainConfig, pools: Sequence[str | Path], plan: str | Path | None) -> Samples:
    """Open the pools, apply the plan, and set the held-out images apart; everything that does not fit raises."""
    whole = open_pools(pools)
    keep, strength = torch.ones(len(whole), dtype=torch.bool), torch.full((len(whole),), config.attack.eps)
    warnings: tuple[str, ...] = ()
    if plan is not None:
        keep, strength = Plan.open(plan).of(whole)
        lost = wiped_out(whole, keep)
        warnings = (f"the plan leaves no sample of {', '.join(lost)}",) if lost else ()
        if config.online.mode != "off":
            warnings += ("online training finds strengths itself: of the plan only what it keeps is used",)
    apart = held_out_mask(whole, config.held_out)
    trained = keep.numpy() & ~apart
    inputs = Inputs(
        pools=tuple(str(Path(path).resolve()) for path in pools),
        plan=None if plan is None else str(Path(plan).resolve()),
        pool_fingerprint=whole.fingerprint,
        plan_fingerprint=None if plan is None else hashlib.sha256(Path(plan).read_bytes()).hexdigest(),
        num_classes=whole.num_classes,
        channels=whole.image_shape[2],
    )
    return Samples(
        whole=whole,
        trained=trained,
        train=whole.subset(trained) if not trained.all() else whole,
        strength=strength[torch.from_numpy(np.ascontiguousarray(trained))],
        held_out=whole.subset(apart),
        inputs=inputs,
        warnings=warnings,
    )


def make_source(config: TrainConfig, samples: Samples, ranks: Ranks) -> Source:
    """Build the data path of one process."""
    pool = samples.train
    drawn = config.online.candidates(config.batch_size, ranks.count)
    share = config.batch_size // ranks.count
    if share % config.compute.accumulate:
        raise PumaError(f"compute.accumulate must divide a process's share of the batch, {share}.")
    sampler = MixedSampler(
        real=pool.positions_of(Origin.REAL),
        generated=pool.positions_of(Origin.GENERATED),
        batch_size=drawn,
        generated_fraction=config.generated_fraction,
        samples_seen=config.steps * drawn,
        seed=config.seed,
        rank=ranks.rank,
        ranks=ranks.count,
    )
    return Source(pool, samples.strength, sampler, config.augment)


def make_model(config: TrainConfig, inputs: Inputs) -> nn.Module:
    """Build the model with weights that depend on the seed alone; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if ":" in config.model:
            return load_model(config.model, inputs.num_classes)
        return build(config.model, inputs.num_classes, channels=inputs.channels)


def tell(sentence: str) -> None:
    """Say something on standard error."""
    print(f"puma: {sentence}", file=sys.stderr, flush=True)
