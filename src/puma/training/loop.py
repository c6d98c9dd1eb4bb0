"""The training loop: steps, and between them lines of metrics, held-out accuracy and checkpoints."""

import importlib
import importlib.util
import math
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Generator, nn
from torch.nn.modules.batchnorm import _BatchNorm

from puma.attacks import pgd
from puma.errors import PumaError
from puma.models import flush_subnormals, save_tensors
from puma.pools import Pool, to_unit
from puma.processes import ProcessGroup, SignalFlag, catch_signals
from puma.progress import Advance, progress_bar
from puma.scores import OutcomeRecord, covers_steps, outcome_file
from puma.training.batches import BatchSource, PrefetchedBatches, prefetch_batches
from puma.training.checkpoint import TrainProgress, list_checkpoints, save_checkpoint
from puma.training.config import AttackConfig, TrainConfig
from puma.training.run_folder import SNAPSHOT, RunFolder
from puma.training.step import OnlineSummary, StepResult, TrainState, average_buffers, train_step

_HELD_OUT_STEPS = 10  # as strong as the attack that most recipes train with
_LATE = 1 << 20  # more than there are processes: both answers go into one number


def run_steps(
    state: TrainState,
    source: BatchSource,
    held_out: Pool,
    config: TrainConfig,
    folder: RunFolder,
    progress: TrainProgress,
    *,
    show: bool,
) -> None:
    """Train from ``progress`` to the end and leave model.safetensors in the folder."""
    window, note, clock = MetricsWindow(), "", StopClock(state, config)
    left = (config.steps - progress.step) * config.batch_size
    with (
        flush_subnormals(),
        prefetch_batches(source, range(progress.step, config.steps)) as batches,
        progress_bar("train", left, enabled=show and state.processes.writes) as advance,
        TensorBoardWriter(folder.path, enabled=state.processes.writes) as scalars,
        catch_signals() as signals,
        ExitStack() as files,
    ):
        records = open_outcome_records(folder, config, state.processes, progress.step, files)
        for batch in batches:
            try:
                window.results.append(train_step(state, batch, config))
            except PumaError as error:
                raise PumaError(_explain_stop(error, folder)) from error
            for outcome, record in records.items():
                record.add(getattr(window.results[-1], outcome).numpy(force=True))
            done = batch.step + 1
            if done % config.log_every == 0 or done == config.steps:
                line = window.close(done, config, state, batches)
                note = format_note(line)
                _write_metrics(line, folder, state, scalars)
            if len(held_out) and (is_due(done, config.evaluate_every, config) or done == config.steps):
                progress = replace(progress, step=done)
                progress = _record_held_out(state, held_out, config, folder, progress, scalars, advance)
            if is_due(done, config.snapshot_every, config):
                _keep_snapshot(state, folder, done)
            stop, late = clock.agree(signals)
            if is_due(done, config.checkpoint_every, config) or done == config.steps or stop or late:
                for record in records.values():
                    record.flush()
                progress = _write_checkpoint(state, config, folder, replace(progress, step=done))
                clock.written = time.monotonic()
            advance(config.batch_size, note)
            if stop and done < config.steps:
                _leave(signals.number, done, config, state, folder)
    if state.processes.writes:
        _save_final_model(state, config, folder)
    state.processes.barrier()


class StopClock:
    """When to write a checkpoint by time, and whether to stop: the same answer in every process."""

    def __init__(self, state: TrainState, config: TrainConfig) -> None:
        self.processes, self.written = state.processes, time.monotonic()
        alike = self.processes.count == 1 or config.compute.sync_batchnorm
        by_time = alike or not any(isinstance(module, _BatchNorm) for module in state.model.modules())
        self.seconds = 60 * config.checkpoint_minutes if by_time and config.checkpoint_minutes else math.inf

    def agree(self, signals: SignalFlag) -> tuple[bool, bool]:
        """Return whether any process was asked to stop, and whether a checkpoint is late by the first one's clock."""
        late = self.processes.writes and time.monotonic() - self.written >= self.seconds
        stop = signals.number is not None
        if self.processes.count == 1:
            return stop, late
        total = round(self.processes.mean(stop + _LATE * late) * self.processes.count)
        return total % _LATE > 0, total >= _LATE


def _leave(number: int | None, done: int, config: TrainConfig, state: TrainState, folder: RunFolder) -> NoReturn:
    """Say how to go on, and end as the signal asks."""
    if state.processes.writes:
        seen, whole = done * config.batch_size, config.steps * config.batch_size
        words = f"saved at {seen:,} of {whole:,} samples; go on with: puma train --resume {folder.path}"
        print(f"puma: {words}", file=sys.stderr, flush=True)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + signal.SIGTERM)


def open_outcome_records(
    folder: RunFolder, config: TrainConfig, processes: ProcessGroup, step: int, files: ExitStack
) -> dict[str, OutcomeRecord]:
    """Open this process's files of outcomes, by the field of StepResult that goes into each.

    Online training and soft pruning choose their samples as they go, so that outcomes could not be told apart
    afterwards: none then.
    """
    if not config.record_outcomes or config.online.mode != "off" or config.soft_pruning.ratio:
        return {}
    kinds = {"clean_right": "clean", "attacked_right": "adversarial"}
    if config.loss != "trades":
        del kinds["clean_right" if config.loss == "pgd-at" else "attacked_right"]
    share = config.batch_size // processes.count
    paths = {field: outcome_file(folder.path, kind, processes.rank, processes.count) for field, kind in kinds.items()}
    if not all(covers_steps(path, share, step) for path in paths.values()):
        return {}  # begun by another number of processes: what was right cannot be told to the end
    return {field: files.enter_context(OutcomeRecord(path, share, step)) for field, path in paths.items()}


def is_due(done: int, every: int, config: TrainConfig) -> bool:
    """Tell whether the step that brings the count to ``done`` passes a multiple of ``every`` samples."""
    return every > 0 and done * config.batch_size // every > (done - 1) * config.batch_size // every


def _record_held_out(
    state: TrainState,
    held_out: Pool,
    config: TrainConfig,
    folder: RunFolder,
    progress: TrainProgress,
    scalars: "TensorBoardWriter",
    advance: Advance,
) -> TrainProgress:
    average_buffers(state.average, state.processes)
    if not state.processes.writes:
        state.processes.barrier()
        return progress
    counts = evaluate_held_out(state.average, held_out, config.attack, state.processes.device)
    line = {
        "step": progress.step,
        "samples": progress.step * config.batch_size,
        "held_out_samples": counts.samples,
        "held_out_clean_accuracy": counts.clean / counts.samples,
        "held_out_robust_accuracy": counts.robust / counts.samples,
    }
    _write_metrics(line, folder, state, scalars)
    clean, robust = counts.clean / counts.samples, counts.robust / counts.samples
    advance(
        0,
        told=f"held out, at {line['samples']:,} samples: clean {clean:.1%}, attacked {robust:.1%} "
        f"of {counts.samples:,} images",
    )
    if counts.robust / counts.samples > progress.best_robust:
        progress = replace(progress, best_robust=counts.robust / counts.samples)
        save_tensors(folder.best, state.average.state_dict(), {"step": str(progress.step)})
    state.processes.barrier()
    return progress


def _write_checkpoint(
    state: TrainState, config: TrainConfig, folder: RunFolder, progress: TrainProgress
) -> TrainProgress:
    average_buffers(state.model, state.processes)
    average_buffers(state.average, state.processes)
    if state.scaler is not None:
        progress = replace(progress, scaler={name: float(value) for name, value in state.scaler.state_dict().items()})
    if config.online.mode != "off":
        progress = replace(progress, online_threshold=state.online.threshold)
        if state.online.by_class is not None:
            progress = replace(progress, online_class_thresholds=tuple(state.online.by_class.tolist()))
    if state.processes.writes:
        losses = None if state.losses is None else state.losses.last
        save_checkpoint(folder.checkpoint, state.model, state.average, state.optimizer, progress, losses)
    state.processes.barrier()
    return progress


def _keep_snapshot(state: TrainState, folder: RunFolder, step: int) -> None:
    """Keep the averaged model as it is now."""
    average_buffers(state.average, state.processes)
    if state.processes.writes:
        folder.snapshots.mkdir(exist_ok=True)
        place = folder.snapshots / SNAPSHOT.format(f"{step:010d}")
        save_tensors(place, state.average.state_dict(), {"step": str(step)})


def _save_final_model(state: TrainState, config: TrainConfig, folder: RunFolder) -> None:
    if config.select == "best" and folder.best.is_file():
        partial = folder.model.with_name(".model.partial")
        partial.write_bytes(folder.best.read_bytes())
        partial.replace(folder.model)
    else:
        save_tensors(folder.model, state.average.state_dict(), {"step": str(config.steps)})


def _write_metrics(line: dict[str, Any], folder: RunFolder, state: TrainState, scalars: "TensorBoardWriter") -> None:
    if state.processes.writes:
        folder.append_metrics(line)
        scalars.write(line)


def _explain_stop(error: PumaError, folder: RunFolder) -> str:
    saved = list_checkpoints(folder.checkpoint)
    where = f"the last good checkpoint is {saved[0]}" if saved else "there is no checkpoint yet"
    cure = "lower --optimizer.lr or set --optimizer.clip-norm"
    return f"training stopped: {str(error).rstrip('.')}; {where}; {cure}, in a run with another --out."


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
        left_out = [result.soft_pruned_share for result in self.results if result.soft_pruned_share is not None]
        if left_out:
            line["soft_pruned_share"] = sum(left_out) / len(left_out)
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


@dataclass(frozen=True)
class HeldOutCounts:
    """How many of the held-out images the model gets right: clean, and under attack."""

    samples: int
    clean: int
    robust: int


def evaluate_held_out(
    model: nn.Module, pool: Pool, attack: AttackConfig, device: torch.device, *, batch_size: int = 256
) -> HeldOutCounts:
    """Count what a model in eval mode gets right, clean and under 10 steps of PGD on the C&W loss at eps."""
    clean = robust = 0
    generator = Generator(device).manual_seed(0)
    for batch in pool.batches(batch_size):
        images, labels = to_unit(batch.images.to(device)), batch.labels.to(device)
        with torch.inference_mode():
            right = model(images).argmax(dim=1) == labels
        attacked = pgd(
            model,
            images,
            labels,
            attack.eps,
            step_size=attack.eps / 4,
            steps=_HELD_OUT_STEPS,
            loss="cw",
            norm=attack.norm,
            generator=generator,
        )
        with torch.inference_mode():
            still_right = right & (model(attacked).argmax(dim=1) == labels)
        clean += int(right.sum())
        robust += int(still_right.sum())
    return HeldOutCounts(len(pool), clean, robust)
