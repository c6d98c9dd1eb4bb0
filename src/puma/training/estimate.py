"""What a training run costs, before it is begun: passes, memory, and hours from a few measured steps."""

import math
import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from puma.models import ARCHITECTURES, count_parameters
from puma.processes import ProcessGroup, resolve_device
from puma.progress import format_bytes, format_seconds
from puma.training.batches import TrainBatch
from puma.training.config import TrainConfig
from puma.training.losses import shares_clean_logits
from puma.training.run import make_model
from puma.training.run_folder import RunInputs
from puma.training.step import TrainState, make_train_state, train_step

_ENOUGH_SECONDS = 0.5  # long enough to be timed well
_SLOW_SECONDS = 5.0  # nobody wants to wait for a second one
_FILES = (
    9  # copies of the weights on disk: two checkpoints of weights, average and momentum, the model, best, and start
)


@dataclass(frozen=True)
class TrainingCost:
    """The cost of a run; passes are per sample seen, memory is that of one process."""

    parameters: int
    forwards: int
    backwards: int
    memory_bytes: int
    seconds_per_sample: float
    device: str

    def hours(self, samples: int) -> float:
        """Duration on the device that was measured."""
        return self.seconds_per_sample * samples / 3600


def estimate_cost(
    config: TrainConfig, inputs: RunInputs | None = None, size: tuple[int, int] | None = None
) -> TrainingCost:
    """Count the passes of the configured loss and time a few steps on random images of ``size``, or the net's own."""
    inputs = inputs or RunInputs((), None, "", None, 10, 1 if config.model.startswith("small") else 3)
    processes = ProcessGroup(0, 1, resolve_device(config.compute.device))
    state = make_train_state(make_model(config, inputs), config, processes)
    attacked = config.loss != "standard"
    outer = 2 if config.loss == "trades" else 1
    clean_pass = int(config.loss == "trades" and not shares_clean_logits(state.model, config.attack.batchnorm))
    steps = config.attack.steps if attacked else 0
    side = ARCHITECTURES[config.model].image_size if config.model in ARCHITECTURES else 32
    size = size or (side, side)
    share = math.ceil(config.batch_size / config.compute.accumulate)
    count = 1
    while True:
        without, saved = _time_step(state, config, inputs, size, count, attack_steps=0)
        if without > _ENOUGH_SECONDS or count >= share:
            break
        count = min(4 * count, share)
    with_one, _ = _time_step(state, config, inputs, size, count, attack_steps=1) if steps else (without, 0)
    per_batch = without + steps * max(with_one - without, 0.0)
    weights = 4 * 4 * count_parameters(state.model)  # weights, gradients, momentum, average
    return TrainingCost(
        parameters=count_parameters(state.model),
        forwards=steps + outer + clean_pass,
        backwards=steps + outer,
        memory_bytes=weights + saved * share // count,
        seconds_per_sample=per_batch / count,
        device=str(processes.device),
    )


def _time_step(
    state: TrainState, config: TrainConfig, inputs: RunInputs, size: tuple[int, int], count: int, *, attack_steps: int
) -> tuple[float, int]:
    """Return the seconds of a step on ``count`` random images, and the bytes its passes keep for the way back."""
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(256, size=(count, *size, inputs.channels)).astype(np.uint8))
    batch = TrainBatch(
        step=1,
        images=pixels.permute(0, 3, 1, 2),
        labels=torch.from_numpy(rng.integers(inputs.num_classes, size=count)),
        strength=torch.full((count,), config.attack.eps),
        rows=np.arange(count),
        whole=count,
    )
    whole = replace(config.compute, accumulate=1)
    attack = replace(config.attack, steps=attack_steps, budget=False)
    reduced = replace(config, batch_size=count, compute=whole, attack=attack)
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    def timed_step() -> float:
        begun = time.perf_counter()
        train_step(state, batch, reduced)
        if state.processes.device.type == "cuda":
            torch.cuda.synchronize(state.processes.device)
        return time.perf_counter() - begun

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        seconds = timed_step()
    if seconds < _SLOW_SECONDS:  # otherwise the first step, cold as it was, says enough
        seconds = timed_step()
    return seconds, sum(seen.values())


def format_cost(config: TrainConfig, cost: TrainingCost) -> str:
    """Say it in a few lines."""
    samples = config.steps * config.batch_size
    passes = (cost.forwards + cost.backwards) * samples
    lines = [
        f"parameters   {cost.parameters:,}",
        f"length       {samples:,} samples = {config.steps:,} steps of {config.batch_size}",
        f"passes       {cost.forwards} forward and {cost.backwards} backward per sample, {passes:.3g} in all",
        f"memory       about {cost.memory_bytes / 2**30:.2f} GiB in one process, pool not counted",
        f"disk         about {format_bytes(_FILES * 4 * cost.parameters)} for checkpoints and models",
        f"time         about {format_seconds(3600 * cost.hours(samples))} on one {cost.device}, "
        f"{1 / max(cost.seconds_per_sample, 1e-12):,.3g} samples/s in a short trial",
    ]
    if config.attack.budget:
        lines.append("             (without what the attack budget saves, which depends on the plan)")
    return "\n".join(lines)
