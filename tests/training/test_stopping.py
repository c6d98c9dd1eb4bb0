"""A run that is asked to stop, runs out of disk, or is started twice loses nothing."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import SafetensorError
from safetensors.torch import save_file

from puma import PumaError
from puma.cli import main
from puma.files import lock
from puma.models import weights
from puma.training import TrainConfig, loop
from puma.training.batches import TrainBatch
from puma.training.checkpoint import list_checkpoints
from puma.training.run import resume_run, start_run
from puma.training.step import StepResult, TrainState, train_step

from .test_run import same_files


def signal_at(step: int, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def signalled(state: TrainState, batch: TrainBatch, config: TrainConfig) -> StepResult:
        if batch.step == step:
            os.kill(os.getpid(), number)
        return train_step(state, batch, config)

    monkeypatch.setattr(loop, "train_step", signalled)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 143)])
def test_a_signal_finishes_the_step_saves_and_says_how_to_go_on(
    number: int,
    code: int,
    tmp_path: Path,
    pool_folder: Path,
    config: TrainConfig,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rarely = replace(config, checkpoint_every=1000)
    whole, run = start_run(rarely, [pool_folder], tmp_path / "whole", show=False), tmp_path / "run"
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    with monkeypatch.context() as patch:
        signal_at(4, number, patch)
        patch.setattr("puma.cli.call_verb", lambda _: start_run(rarely, [pool_folder], run, show=False))
        with pytest.raises(SystemExit) as stopped:
            main(["train"])
    assert stopped.value.code == code
    said = f"puma: saved at 80 of 128 samples; go on with: puma train --resume {run}\n"
    assert said in capsys.readouterr().err
    assert [path.name for path in list_checkpoints(run / "checkpoint")] == ["step-0000000005.safetensors"]
    for each, handler in zip((signal.SIGINT, signal.SIGUSR1), (before[0], before[2]), strict=True):
        assert signal.getsignal(each) == handler
    resume_run(run, show=False)
    assert same_files(run / "model.safetensors", whole / "model.safetensors")


def test_checkpoints_come_by_time_too(tmp_path: Path, pool_folder: Path, config: TrainConfig) -> None:
    often = replace(config, checkpoint_every=1000, checkpoint_minutes=1e-9)
    run = start_run(often, [pool_folder], tmp_path / "run", show=False)
    assert len(list_checkpoints(run / "checkpoint")) == 2
    never = replace(often, checkpoint_minutes=0.0)
    run = start_run(never, [pool_folder], tmp_path / "never", show=False)
    assert len(list_checkpoints(run / "checkpoint")) == 1


def test_a_full_disk_is_one_sentence_and_the_run_goes_on_later(
    tmp_path: Path, pool_folder: Path, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = start_run(config, [pool_folder], tmp_path / "whole", show=False)
    real = save_file

    def full(tensors: object, path: Path, metadata: object) -> None:
        if "0000000004" in path.name:
            path.write_bytes(b"half")
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        real(tensors, path, metadata)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(weights, "save_file", full)
        with pytest.raises(PumaError, match="No space left on device; what was there before is kept"):
            start_run(config, [pool_folder], tmp_path / "run", show=False)
    assert not list((tmp_path / "run").rglob("*partial*"))
    resume_run(tmp_path / "run", show=False)
    assert same_files(tmp_path / "run" / "model.safetensors", whole / "model.safetensors")


def test_two_at_once_are_told(tmp_path: Path, pool_folder: Path, config: TrainConfig) -> None:
    run = start_run(config, [pool_folder], tmp_path / "run", show=False)
    with lock(run / "run"), pytest.raises(PumaError, match=r"another process is training .*run; wait for it"):
        resume_run(run, show=False)
    resume_run(run, show=False)


def test_a_run_without_a_checkpoint_says_that_it_starts_anew(
    tmp_path: Path, pool_folder: Path, config: TrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start_run(config, [pool_folder], tmp_path / "run", show=False)
    for path in list_checkpoints(run / "checkpoint"):
        path.unlink()
    capsys.readouterr()
    resume_run(run, show=False)
    assert f"puma: {run} has no checkpoint: it starts anew" in capsys.readouterr().err
