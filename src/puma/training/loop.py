"""The training loop: steps, and between them lines of metrics, evaluations and checkpoints."""

import math
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NoReturn

from torch.nn.modules.batchnorm import _BatchNorm

from puma.errors import PumaError
from puma.pools import Pool
from puma.processes import ProcessGroup, SignalFlag, catch_signals
from puma.progress import progress_bar
from puma.scores.difficulty import OutcomeRecord, covers_steps, outcome_file
from puma.training.batches import BatchSource, prefetch_batches
from puma.training.checkpoint import TrainProgress, list_checkpoints, save_checkpoint, save_tensors
from puma.training.config import TrainConfig
from puma.training.held_out import evaluate_held_out
from puma.training.metrics import MetricsWindow, TensorBoardWriter, format_note
from puma.training.run_folder import RunFolder
from puma.training.step import TrainState, average_buffers, train_step

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
                progress = _evaluate_held_out(state, held_out, config, folder, replace(progress, step=done), scalars)
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

    Online training chooses its samples as it goes, so that outcomes could not be told apart afterwards: none then.
    """
    if not config.record_outcomes or config.online.mode != "off":
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


def _evaluate_held_out(
    state: TrainState,
    held_out: Pool,
    config: TrainConfig,
    folder: RunFolder,
    progress: TrainProgress,
    scalars: TensorBoardWriter,
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
    if counts.robust / counts.samples > progress.best_robust:
        progress = replace(progress, best_robust=counts.robust / counts.samples)
        save_tensors(state.average.state_dict(), folder.best, {"step": str(progress.step)})
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
    if state.processes.writes:
        save_checkpoint(folder.checkpoint, state.model, state.average, state.optimizer, progress)
    state.processes.barrier()
    return progress


def _save_final_model(state: TrainState, config: TrainConfig, folder: RunFolder) -> None:
    if config.select == "best" and folder.best.is_file():
        partial = folder.model.with_name(".model.partial")
        partial.write_bytes(folder.best.read_bytes())
        partial.replace(folder.model)
    else:
        save_tensors(state.average.state_dict(), folder.model, {"step": str(config.steps)})


def _write_metrics(line: dict[str, Any], folder: RunFolder, state: TrainState, scalars: TensorBoardWriter) -> None:
    if state.processes.writes:
        folder.append_metrics(line)
        scalars.write(line)


def _explain_stop(error: PumaError, folder: RunFolder) -> str:
    saved = list_checkpoints(folder.checkpoint)
    where = f"the last good checkpoint is {saved[0]}" if saved else "there is no checkpoint yet"
    cure = "lower --optimizer.lr or set --optimizer.clip-norm"
    return f"training stopped: {str(error).rstrip('.')}; {where}; {cure}, in a run with another --out."
