"""``compute.precision auto``: bf16 where the device computes in it and a short trial is faster, else fp32."""

import copy
import time
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import nn

from puma.pools import Pool
from puma.processes import ProcessGroup
from puma.training.batches import TrainBatch
from puma.training.config import TrainConfig
from puma.training.step import make_train_state, train_step

_ENOUGH_SECONDS = 0.2  # a step of this length is timed well enough; larger nets are timed on fewer images
_ROUNDS = 3  # of which the fastest counts: other work on the machine only slows
_WORTH = 1.05  # gains below this are not told from noise, and fp32 is what is compared with
_MOST_STEPS = 2  # of the attack: every further one costs the same


@dataclass(frozen=True)
class PrecisionChoice:
    """What was chosen, and the seconds a sample took in each; none where bf16 is not there to choose."""

    precision: Literal["fp32", "bf16"]
    fp32_seconds: float | None = None
    bf16_seconds: float | None = None

    def describe(self) -> str:
        """Say it in a sentence."""
        if self.fp32_seconds is None or self.bf16_seconds is None:
            return "precision fp32: this device does not compute in bf16"
        ratio = self.fp32_seconds / self.bf16_seconds
        return f"precision {self.precision}: bf16 ran {ratio:.2f} times as fast as fp32 in a short trial"

    def to_dict(self) -> dict[str, object]:
        """Return plain values, for JSON."""
        return asdict(self)


def has_bf16(device: torch.device) -> bool:
    """Tell whether a device computes in bf16, rather than in fp32 behind its back."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and torch.cpu._is_avx512_bf16_supported()


def choose_precision(model: nn.Module, config: TrainConfig, pool: Pool, processes: ProcessGroup) -> PrecisionChoice:
    """Time steps of a copy of the model in either precision on random images; the first process decides for all."""
    if not has_bf16(processes.device):
        return PrecisionChoice("fp32")
    seconds = torch.zeros(2, dtype=torch.float64)
    if processes.writes:
        seconds = torch.tensor(_time_precisions(model, config, pool, processes.device), dtype=torch.float64)
    slow, fast = processes.add_up(seconds).tolist()
    return PrecisionChoice("bf16" if slow > _WORTH * fast else "fp32", slow, fast)


def _time_precisions(model: nn.Module, config: TrainConfig, pool: Pool, device: torch.device) -> tuple[float, float]:
    """Return the seconds per sample in fp32 and bf16, timed in turn."""
    alone = ProcessGroup(device=device)
    attack = replace(config.attack, steps=min(config.attack.steps, _MOST_STEPS), budget=False)
    configs = [
        replace(
            config,
            attack=attack,
            online=replace(config.online, mode="off"),
            soft_pruning=replace(config.soft_pruning, ratio=0.0),
            compute=replace(config.compute, precision=precision, accumulate=1),
        )
        for precision in ("fp32", "bf16")
    ]
    states = [make_train_state(copy.deepcopy(model), one, alone) for one in configs]

    def run_step(place: int, count: int) -> float:
        batch = _draw_batch(pool, count, config.attack.eps)
        begun = time.perf_counter()
        train_step(states[place], batch, replace(configs[place], batch_size=count))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begun

    share, count = max(config.batch_size // config.compute.accumulate, 1), 1
    while run_step(0, count) < _ENOUGH_SECONDS and count < share:
        count = min(4 * count, share)
    rounds = [[run_step(place, count) for place in (0, 1)] for _ in range(1 + _ROUNDS)][1:]
    slow, fast = (min(times[place] for times in rounds) / count for place in (0, 1))
    return slow, fast


def _draw_batch(pool: Pool, count: int, eps: float) -> TrainBatch:
    rng = np.random.default_rng(0)
    height, width, channels = pool.image_shape
    pixels = torch.from_numpy(rng.integers(256, size=(count, height, width, channels)).astype(np.uint8))
    labels = torch.from_numpy(rng.integers(pool.num_classes, size=count))
    return TrainBatch(1, pixels.permute(0, 3, 1, 2), labels, torch.full((count,), eps), np.arange(count), count)
