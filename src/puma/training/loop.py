"""The training loop: steps, and between them lines of metrics, evaluations and checkpoints."""

import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from puma.errors import PumaError
from puma.pools import Pool
from puma.progress import progress_bar
from puma.scores.record import OutcomeRecord, goes_on, outcome_file
from puma.training.checkpoint import Progress, checkpoints, save_checkpoint, save_tensors
from puma.training.config import TrainConfig
from puma.training.distributed import Ranks, average_buffers
from puma.training.feed import Feed, Source, ahead
from puma.training.held_out import evaluate_held_out
from puma.training.run_folder import RunFolder
from puma.training.scalars import Scalars
from puma.training.step import OnlineStep, Parts, StepResult, train_step


@dataclass
class Since:
    """Sums since the last line of metrics."""

    results: list[StepResult] = field(default_factory=list)
    begun: float = field(default_factory=time.perf_counter)
    waited: float = 0.0

    def line(self, step: int, config: TrainConfig, parts: Parts, feed: Feed) -> dict[str, Any]:
        """Turn the sums into a line of metrics.jsonl and start anew."""
        samples = sum(result.samples for result in self.results)
        seconds = time.perf_counter() - self.begun
        line = {
            "step": step,
            "samples": step * config.batch_size,
            "loss": float(sum(result.loss for result in self.results)) / max(samples, 1),
            "gradient_norm": self.results[-1].gradient_norm,
            "lr": parts.optimizer.param_groups[0]["lr"],
            "samples_per_second": samples * parts.ranks.count / seconds,
            "waiting": (feed.waited - self.waited) / seconds,
        }
        for outcome in ("clean", "attacked"):
            found = [getattr(result, f"{outcome}_right") for result in self.results]
            right = [flags for flags in found if flags is not None]
            if right:
                line[f"{outcome}_accuracy"] = float(torch.cat(right).double().mean())
        line |= online_line([result.online for result in self.results if result.online is not None])
        self.results, self.begun, self.waited = [], time.perf_counter(), feed.waited
        return line


def online_line(steps: list[OnlineStep]) -> dict[str, float]:
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


def run_steps(
    parts: Parts,
    source: Source,
    held_out: Pool,
    config: TrainConfig,
    folder: RunFolder,
    progress: Progress,
    *,
    show: bool,
) -> None:
    """Train from ``progress`` to the end and leave model.safetensors in the folder."""
    since, note = Since(), ""
    left = (config.steps - progress.step) * config.batch_size
    with (
        ahead(source, range(progress.step, config.steps)) as feed,
        progress_bar("train", left, enabled=show and parts.ranks.writes) as advance,
        Scalars(folder.path, enabled=parts.ranks.writes) as scalars,
        ExitStack() as files,
    ):
        records = outcome_records(folder, config, parts.ranks, progress.step, files)
        for batch in feed:
            try:
                since.results.append(train_step(parts, batch, config))
            except PumaError as error:
                raise PumaError(_stopped(error, folder)) from error
            for outcome, record in records.items():
                record.add(getattr(since.results[-1], outcome).numpy(force=True))
            done = batch.step + 1
            if done % config.log_every == 0 or done == config.steps:
                line = since.line(done, config, parts, feed)
                note = _note(line)
                _record(line, folder, parts, scalars)
            if len(held_out) and (due(done, config.evaluate_every, config) or done == config.steps):
                progress = _evaluate(parts, held_out, config, folder, replace(progress, step=done), scalars)
            if due(done, config.checkpoint_every, config) or done == config.steps:
                for record in records.values():
                    record.flush()
                progress = _checkpoint(parts, config, folder, replace(progress, step=done))
            advance(config.batch_size, note)
    if parts.ranks.writes:
        _finish(parts, config, folder)
    parts.ranks.barrier()


def outcome_records(
    folder: RunFolder, config: TrainConfig, ranks: Ranks, step: int, files: ExitStack
) -> dict[str, OutcomeRecord]:
    """Open this process's files of outcomes, by the field of StepResult that goes into each.

    Online training chooses its samples as it goes, so that outcomes could not be told apart afterwards: none then.
    """
    if not config.record_outcomes or config.online.mode != "off":
        return {}
    kinds = {"clean_right": "clean", "attacked_right": "adversarial"}
    if config.loss != "trades":
        del kinds["clean_right" if config.loss == "pgd-at" else "attacked_right"]
    share = config.batch_size // ranks.count
    paths = {field: outcome_file(folder.path, kind, ranks.rank, ranks.count) for field, kind in kinds.items()}
    if not all(goes_on(path, share, step) for path in paths.values()):
        return {}  # begun by another number of processes: what was right cannot be told to the end
    return {field: files.enter_context(OutcomeRecord(path, share, step)) for field, path in paths.items()}


def due(done: int, every: int, config: TrainConfig) -> bool:
    """Tell whether the step that brings the count to ``done`` passes a multiple of ``every`` samples."""
    return every > 0 and done * config.batch_size // every > (done - 1) * config.batch_size // every


def _evaluate(
    parts: Parts, held_out: Pool, config: TrainConfig, folder: RunFolder, progress: Progress, scalars: Scalars
) -> Progress:
    average_buffers(parts.average, parts.ranks)
    if not parts.ranks.writes:
        parts.ranks.barrier()
        return progress
    counts = evaluate_held_out(parts.average, held_out, config.attack, parts.ranks.device)
    line = {
        "step": progress.step,
        "samples": progress.step * config.batch_size,
        "held_out_samples": counts.samples,
        "held_out_clean_accuracy": counts.clean / counts.samples,
        "held_out_robust_accuracy": counts.robust / counts.samples,
    }
    _record(line, folder, parts, scalars)
    if counts.robust / counts.samples > progress.best_robust:
        progress = replace(progress, best_robust=counts.robust / counts.samples)
        save_tensors(parts.average.state_dict(), folder.best, {"step": str(progress.step)})
    parts.ranks.barrier()
    return progress


def _checkpoint(parts: Parts, config: TrainConfig, folder: RunFolder, progress: Progress) -> Progress:
    average_buffers(parts.model, parts.ranks)
    average_buffers(parts.average, parts.ranks)
    if parts.scaler is not None:
        progress = replace(progress, scaler={name: float(value) for name, value in parts.scaler.state_dict().items()})
    if config.online.mode != "off":
        progress = replace(progress, online_threshold=parts.online.threshold)
    if parts.ranks.writes:
        save_checkpoint(folder.checkpoint, parts.model, parts.average, parts.optimizer, progress)
    parts.ranks.barrier()
    return progress


def _finish(parts: Parts, config: TrainConfig, folder: RunFolder) -> None:
    if config.select == "best" and folder.best.is_file():
        partial = folder.model.with_name(".model.partial")
        partial.write_bytes(folder.best.read_bytes())
        partial.replace(folder.model)
    else:
        save_tensors(parts.average.state_dict(), folder.model, {"step": str(config.steps)})


def _record(line: dict[str, Any], folder: RunFolder, parts: Parts, scalars: Scalars) -> None:
    if parts.ranks.writes:
        folder.append_metrics(line)
        scalars.write(line)


def _note(line: dict[str, Any]) -> str:
    clean, attacked = line.get("clean_accuracy"), line.get("attacked_accuracy")
    parts = [f"loss {line['loss']:.3f}"]
    parts += [f"clean {clean:.1%}"] if clean is not None else []
    parts += [f"attacked {attacked:.1%}"] if attacked is not None else []
    return ", ".join(parts)


def _stopped(error: PumaError, folder: RunFolder) -> str:
    saved = checkpoints(folder.checkpoint)
    where = f"the last good checkpoint is {saved[0]}" if saved else "there is no checkpoint yet"
    cure = "lower --optimizer.lr or set --optimizer.clip-norm"
    return f"training stopped: {str(error).rstrip('.')}; {where}; {cure}, in a run with another --out."
