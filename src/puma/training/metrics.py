"""What a run says about its steps: sums over a window, lines of metrics.jsonl, TensorBoard for those who have it."""

import importlib
import importlib.util
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from puma.training.batches import PrefetchedBatches
from puma.training.config import TrainConfig
from puma.training.step import OnlineSummary, StepResult, TrainState


@dataclass
class MetricsWindow:
    """Sums since the last line of metrics."""

    results: list[StepResult] = field(default_factory=list)
    begun: float = field(default_factory=time.perf_counter)
    waited: float = 0.0

    def close(self, step: int, config: TrainConfig, state: TrainState, batches: PrefetchedBatches) -> dict[str, Any]:
        """Turn the sums into a line of metrics.jsonl and start anew."""
        samples = sum(result.samples for result in self.results)
        seconds = time.perf_counter() - self.begun
        line = {
            "step": step,
            "samples": step * config.batch_size,
            "loss": float(sum(result.loss for result in self.results)) / max(samples, 1),
            "gradient_norm": self.results[-1].gradient_norm,
            "lr": state.optimizer.param_groups[0]["lr"],
            "samples_per_second": samples * state.processes.count / seconds,
            "waiting": (batches.waited - self.waited) / seconds,
        }
        for outcome in ("clean", "attacked"):
            found = [getattr(result, f"{outcome}_right") for result in self.results]
            right = [flags for flags in found if flags is not None]
            if right:
                line[f"{outcome}_accuracy"] = float(torch.cat(right).double().mean())
        line |= summarize_online([result.online for result in self.results if result.online is not None])
        self.results, self.begun, self.waited = [], time.perf_counter(), batches.waited
        return line


def summarize_online(steps: list[OnlineSummary]) -> dict[str, float]:
    """Summarise the online method over some steps; empty for none."""
    if not steps:
        return {}
    strength = torch.cat([step.strength for step in steps]).float()
    line = {
        "online_easy_share": sum(step.easy_share for step in steps) / len(steps),
        "online_pruned_share": sum(step.pruned_share for step in steps) / len(steps),
        "online_threshold": steps[-1].threshold,
    }
    if not len(strength):  # everything was pruned
        return line
    low, middle, high = (float(torch.quantile(strength, share)) for share in (0.1, 0.5, 0.9))
    return line | {
        "online_strength_mean": float(strength.mean()),
        "online_strength_q10": low,
        "online_strength_q50": middle,
        "online_strength_q90": high,
        "online_negative_share": float((strength < 0).double().mean()),
    }


def format_note(line: dict[str, Any]) -> str:
    """Say the newest line of metrics behind the progress bar."""
    clean, attacked = line.get("clean_accuracy"), line.get("attacked_accuracy")
    words = [f"loss {line['loss']:.3f}"]
    words += [f"clean {clean:.1%}"] if clean is not None else []
    words += [f"attacked {attacked:.1%}"] if attacked is not None else []
    return ", ".join(words)


class TensorBoardWriter:
    """Write numbers to ``RUN/tensorboard``; does nothing where TensorBoard is not installed."""

    def __init__(self, run: Path, *, enabled: bool) -> None:
        self.writer: Any = None
        if enabled and importlib.util.find_spec("tensorboard"):
            module = importlib.import_module("torch.utils.tensorboard")
            self.writer = module.SummaryWriter(str(run / "tensorboard"))

    def write(self, line: Mapping[str, Any]) -> None:
        """Add every number of a line of metrics at its count of samples."""
        if self.writer is not None:
            for name in line.keys() - {"step", "samples"}:
                self.writer.add_scalar(name, line[name], line["samples"])

    def __enter__(self) -> "TensorBoardWriter":
        return self

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:
            self.writer.close()
