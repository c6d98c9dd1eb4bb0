"""Train a generator on a pool into a folder; begun, or taken up again bit for bit."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from puma.attacks import check_radius
from puma.errors import Interrupted, PumaError
from puma.files import hash_file
from puma.generation.edm import SolverConfig, denoise, draw_sigmas, measure_loss
from puma.generation.generator_folder import (
    GeneratorConfig,
    GeneratorFolder,
    GeneratorInputs,
    check_generator_config,
    derive_seed,
    list_generator_differences,
    make_unet,
)
from puma.generation.image_sampling import BLOCK, draw_image_grid, draw_noise, sample_block
from puma.generation.unet import Condition, UNet, count_levels
from puma.margins import read_margins
from puma.models import copy_for_ema, count_parameters, update_ema
from puma.pools import Pool, draw_passes, open_pools, shift_and_mirror
from puma.processes import ProcessGroup, catch_signals, join_processes, resolve_device
from puma.progress import progress_bar

FEWEST_IMAGES = 16  # of a class: fewer would be learnt by heart
_TRAINING = 1  # keeps the seeds of training's noise apart from those of samples
_GRID_ROWS = 10  # classes that the pictures while it trains show


@dataclass(frozen=True, eq=False)
class TrainingImages:
    """The images to learn, and what their net is told of them: margins (n,) in multiples of eps, NaN where unknown."""

    pool: Pool
    margin: Tensor | None
    inputs: GeneratorInputs


@dataclass
class GeneratorState:
    """What training changes: the net, its average, Adam's moments, and the number of steps done."""

    net: UNet
    average: UNet
    optimizer: torch.optim.Adam
    group: ProcessGroup
    wrapped: nn.Module
    step: int = 0


def train_generator(
    config: GeneratorConfig,
    pools: Sequence[str | Path],
    out: str | Path,
    *,
    margins: str | Path | None = None,
    show: bool = True,
) -> Path:
    """Train a generator into the new folder ``out`` and return it."""
    check_generator_config(config)
    folder = GeneratorFolder(Path(out))
    with join_processes(config.device) as group:
        images = read_images(config, pools, margins)
        state = make_state(config, images.inputs, group)
        if group.writes:
            folder.create(config, images.inputs)
            if images.margin is not None:
                known = images.margin.isfinite().numpy()
                folder.write_conditions(images.pool.labels[known], images.margin.numpy()[known])
        group.barrier()
        _run_steps(state, images, config, folder, show=show)
    return folder.path


def resume_generator(out: str | Path, asked: GeneratorConfig | None = None, *, show: bool = True) -> Path:
    """Take up the training in a folder where its last checkpoint left it; ``asked`` must be what it was begun with."""
    folder = GeneratorFolder(Path(out))
    config, inputs = folder.read()
    if asked is not None and (different := list_generator_differences(config, asked)):
        raise PumaError(f"{folder.path} was begun with other settings ({'; '.join(different)}); use another --out.")
    with join_processes(config.device) as group:
        told = config if inputs.margins is not None else replace(config, eps=None)
        images = read_images(told, inputs.pools, inputs.margins)
        if images.inputs != inputs:
            raise PumaError(f"the images or margins changed since {folder.path} was begun; start with another --out.")
        state = make_state(config, inputs, group)
        if (found := folder.load_checkpoint()) is not None:
            restore_state(state, *found)
        if group.writes:
            folder.forget_metrics_after(state.step)
        group.barrier()
        _run_steps(state, images, config, folder, show=show)
    return folder.path


def read_images(
    config: GeneratorConfig, pools: Sequence[str | Path], margins: str | Path | None = None
) -> TrainingImages:
    """Open the pool, and the margins of its images, if any; what cannot be learnt from raises."""
    if margins is None and config.eps is not None:
        raise PumaError("--eps tells margins in multiples of it; give --margins FILE too, or leave --eps away.")
    pool = open_pools(pools)
    count_levels(pool.image_shape)
    counts = np.bincount(pool.labels, minlength=pool.num_classes)
    few = [f"{name} {count}" for name, count in zip(pool.class_names, counts, strict=True) if count < FEWEST_IMAGES]
    if few:
        shown = ", ".join(few[:5]) + (", ..." if len(few) > 5 else "")
        raise PumaError(f"every class needs at least {FEWEST_IMAGES} images to learn from, too few are of {shown}.")
    inputs = GeneratorInputs(
        pools=tuple(str(Path(path).resolve()) for path in pools),
        pool_fingerprint=pool.fingerprint,
        image_shape=pool.image_shape,
        class_names=pool.class_names,
        margins=None if margins is None else str(Path(margins).resolve()),
        margins_hash=None if margins is None else hash_file(margins),
    )
    return TrainingImages(pool, None if margins is None else _read_condition(config, pool, margins), inputs)


def _read_condition(config: GeneratorConfig, pool: Pool, path: str | Path) -> Tensor:
    if config.eps is None:
        raise PumaError("margins are told in multiples of eps; give it with --eps, such as 0.1 or 8/255.")
    found = read_margins(path)
    check_radius(config.eps, "--eps", norm=str(found.made_from["norm"]), pixels=math.prod(pool.image_shape))
    if found.made_from.get("pool_fingerprint") != pool.fingerprint or len(found) != len(pool):
        raise PumaError(f"{path} was measured on another pool; measure this one: puma margins POOL --out FILE.")
    margin = (found.margin / config.eps).where(found.crossed, torch.nan)
    if not margin.isfinite().any():
        raise PumaError(f"{path} holds no margin that was found; there is nothing to tell the net.")
    return margin


def make_state(config: GeneratorConfig, inputs: GeneratorInputs, group: ProcessGroup) -> GeneratorState:
    """Build the net and what is around it, as they are before the first step."""
    if config.batch_size % group.count:
        raise PumaError(f"batch_size {config.batch_size} must be a multiple of the {group.count} processes.")
    net = make_unet(config, inputs).to(group.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(net.parameters(), lr=config.lr, foreach=True)
    devices = [group.device.index] if group.device.type == "cuda" else None
    wrapped = net if group.count == 1 else DistributedDataParallel(net, device_ids=devices, find_unused_parameters=True)
    average = copy_for_ema(net)
    assert isinstance(average, UNet)
    return GeneratorState(net, average, optimizer, group, wrapped)


def list_tensors(state: GeneratorState) -> dict[str, Tensor]:
    """Return all that a checkpoint holds, by name."""
    tensors = {f"net/{name}": value for name, value in state.net.state_dict().items()}
    tensors |= {f"average/{name}": value for name, value in state.average.state_dict().items()}
    for name, parameter in state.net.named_parameters():
        for moment, value in state.optimizer.state[parameter].items():
            tensors[f"{moment}/{name}"] = value
    return tensors


def restore_state(state: GeneratorState, step: int, tensors: dict[str, Tensor]) -> None:
    """Put the state where ``list_tensors`` has seen it after so many steps."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        parts.setdefault(kind, {})[rest] = tensor
    try:
        state.net.load_state_dict(parts["net"])
        state.average.load_state_dict(parts["average"])
        for name, parameter in state.net.named_parameters():
            moments = {kind: torch.empty_like(parameter).copy_(parts[kind][name]) for kind in ("exp_avg", "exp_avg_sq")}
            state.optimizer.state[parameter] = {"step": parts["step"][name].clone(), **moments}
    except (RuntimeError, KeyError) as error:
        raise PumaError(f"the checkpoint does not fit the net in config.json ({error}); start again.") from error
    state.step = step


def find_lr(step: int, config: GeneratorConfig) -> float:
    """Return the learning rate of a step: linear warm-up, then a cosine down to ``lr_end`` of it."""
    seen = (step + 1) * config.batch_size
    if seen < config.warmup:
        return config.lr * seen / config.warmup
    share = min(1.0, (seen - config.warmup) / max(1, config.steps * config.batch_size - config.warmup))
    return config.lr * (config.lr_end + (1 - config.lr_end) * 0.5 * (1 + math.cos(math.pi * share)))


@dataclass(frozen=True)
class NoisyBatch:
    """One process's share of a step: clean images in [-1, 1], noise levels, noise and condition."""

    images: Tensor
    sigma: Tensor
    noise: Tensor
    condition: Condition


def draw_batch(step: int, images: TrainingImages, config: GeneratorConfig, group: ProcessGroup) -> NoisyBatch:
    """Read and disturb the images of a step; what it draws depends on seed and step alone, not on the processes."""
    size = config.batch_size
    positions = draw_passes(len(images.pool), size, step, config.seed)
    generator = torch.Generator().manual_seed(derive_seed(config.seed, _TRAINING, step))
    sigma = draw_sigmas(size, config.noise, generator)
    noise = torch.randn((size, *_to_nchw(images.pool.image_shape)), generator=generator)
    coins = torch.rand((4, size), generator=generator)
    moves = torch.randint(-config.shift, config.shift + 1, (2, size), generator=generator)
    down, right = moves.where(coins[0] < config.augment, 0)
    mirrored = (coins[1] < config.augment) & (coins[2] < 0.5) & config.mirror
    told = coins[3] >= config.margin_dropout
    mine = slice(group.rank * size // group.count, (group.rank + 1) * size // group.count)
    batch = images.pool.batch(positions[mine])
    augment = torch.stack([mirrored.float(), down / max(1, config.shift), right / max(1, config.shift)], dim=1)[mine]
    pixels = batch.images
    if config.augment:
        pixels = shift_and_mirror(pixels, down[mine], right[mine], mirrored[mine])
    margin = None
    if images.margin is not None:
        margin = images.margin[torch.from_numpy(positions)].where(told, torch.nan)[mine].to(group.device)
    condition = Condition(batch.labels.to(group.device), margin, augment.to(group.device))
    to_device: Callable[[Tensor], Tensor] = lambda value: value.to(group.device, memory_format=torch.channels_last)  # noqa: E731
    return NoisyBatch(
        images=to_device(pixels.float().div_(127.5).sub_(1)),
        sigma=sigma[mine].to(group.device),
        noise=to_device(noise[mine]),
        condition=condition,
    )


def _to_nchw(image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
    height, width, channels = image_shape
    return channels, height, width


def autocast_passes(config: GeneratorConfig, device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which the net is passed."""
    return torch.autocast(device.type, torch.bfloat16) if config.precision == "bf16" else nullcontext()


def train_generator_step(state: GeneratorState, batch: NoisyBatch, config: GeneratorConfig) -> Tensor:
    """Take one step of Adam and of the average; returns the loss of this process's images."""
    for settings in state.optimizer.param_groups:
        settings["lr"] = find_lr(state.step, config)

    def pass_net(scaled: Tensor, c_noise: Tensor) -> Tensor:
        with autocast_passes(config, state.group.device):
            residual: Tensor = state.wrapped(scaled, c_noise, batch.condition)
        return residual.float()

    noisy = batch.images + batch.sigma.view(-1, 1, 1, 1) * batch.noise
    denoised = denoise(pass_net, noisy, batch.sigma, config.noise.sigma_data)
    loss = measure_loss(denoised, batch.images, batch.sigma, config.noise.sigma_data).mean()
    state.optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    state.optimizer.step()
    update_ema(state.average, state.net, state.step, config.average)
    state.step += 1
    return loss.detach()


def _run_steps(
    state: GeneratorState, images: TrainingImages, config: GeneratorConfig, folder: GeneratorFolder, *, show: bool
) -> None:
    """Train to the end and leave model.safetensors; a signal ends it after a step, with a checkpoint."""
    group, losses, begun = state.group, [], time.perf_counter()
    left = (config.steps - state.step) * config.batch_size
    note = ""
    with catch_signals() as flag, progress_bar("train", left, enabled=show and group.writes) as advance:
        while state.step < config.steps:
            losses.append(train_generator_step(state, draw_batch(state.step, images, config, group), config))
            if state.step % config.log_every == 0 or state.step == config.steps:
                loss = group.mean(float(torch.stack(losses).mean()))
                _check_finite(loss, state.step, folder)
                seconds, done = time.perf_counter() - begun, len(losses) * config.batch_size
                line = {"step": state.step, "samples": state.step * config.batch_size, "loss": loss}
                if group.writes:
                    folder.append_metrics({**line, "samples_per_second": done / seconds})
                note, losses, begun = f"loss {loss:.4f}", [], time.perf_counter()
            if group.writes and _is_due(state.step, config.grid_every, config):
                _draw_samples(state, config, images.inputs, folder)
            ending = group.mean(float(flag.number is not None)) > 0
            if ending or _is_due(state.step, config.checkpoint_every, config) or state.step == config.steps:
                if group.writes:
                    folder.save_checkpoint(state.step, list_tensors(state))
                group.barrier()
            advance(config.batch_size, note)
            if ending and state.step < config.steps:
                how = f"go on with: puma generate train --resume {folder.path}"
                raise Interrupted(f"interrupted at step {state.step:,} of {config.steps:,}; {how}.", flag.number or 15)
    if group.writes:
        folder.save_model(state.average, state.step)
    group.barrier()


def _check_finite(loss: float, step: int, folder: GeneratorFolder) -> None:
    if not math.isfinite(loss):
        saved = folder.list_checkpoints()
        where = f"the last checkpoint is {saved[0]}" if saved else "there is no checkpoint yet"
        raise PumaError(f"the loss is {loss} at step {step:,}; {where}; lower --lr, in a folder with another name.")


def _is_due(done: int, every: int, config: GeneratorConfig) -> bool:
    """Tell whether the step that brings the count to ``done`` passes a multiple of ``every`` samples."""
    return every > 0 and done * config.batch_size // every > (done - 1) * config.batch_size // every


def _draw_samples(
    state: GeneratorState, config: GeneratorConfig, inputs: GeneratorInputs, folder: GeneratorFolder
) -> None:
    """Draw the first images that the averaged net would make now, a row for each of the first ten classes."""
    rows = min(len(inputs.class_names), _GRID_ROWS)
    labels = torch.arange(rows, device=state.group.device).repeat_interleave(BLOCK // rows)
    noise = draw_noise(config.seed, range(len(labels)), inputs.image_shape).to(state.group.device)
    pixels = sample_block(state.average, noise, Condition(labels), config.noise.sigma_data, SolverConfig())
    draw_image_grid(pixels, folder.samples / f"{state.step * config.batch_size:012d}.png", columns=BLOCK // rows)


@dataclass(frozen=True)
class GeneratorCost:
    """What training and sampling cost: parameters, and measured seconds of one process."""

    parameters: int
    seconds_per_sample: float
    seconds_per_image: float
    device: str


def estimate_generator_cost(config: GeneratorConfig, images: TrainingImages) -> GeneratorCost:
    """Take three steps on real images, and sample a block, on the clock."""
    check_generator_config(config)
    group = ProcessGroup(0, 1, resolve_device(config.device))
    state = make_state(config, images.inputs, group)
    seconds = []
    for step in range(3):  # the first one warms up
        begun = time.perf_counter()
        float(train_generator_step(state, draw_batch(step, images, config, group), config))
        seconds.append(time.perf_counter() - begun)
    noise = draw_noise(0, range(BLOCK), images.inputs.image_shape).to(group.device)
    labels, few = torch.zeros(BLOCK, dtype=torch.int64, device=group.device), SolverConfig(steps=3)
    begun = time.perf_counter()
    sample_block(state.average, noise, Condition(labels), config.noise.sigma_data, few)
    per_pass = (time.perf_counter() - begun) / few.passes / BLOCK
    sampling = per_pass * SolverConfig().passes
    return GeneratorCost(count_parameters(state.net), min(seconds) / config.batch_size, sampling, str(group.device))
