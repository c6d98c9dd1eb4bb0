"""Two gloo processes on one machine: the same gradients as one process, and a killed rank is survived."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from puma.processes import ProcessGroup, restart_count
from puma.training.checkpoint import list_checkpoints
from puma.training.step import average_buffers, wrap_in_ddp

NET = """
from torch import nn

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.SiLU(), nn.Linear(16, 10))
"""

KILL_RANK_1 = """
import os, signal, sys
import puma.training.loop as loop
from puma.cli import main
real = loop.train_step

def train_step(state, batch, config):
    result = real(state, batch, config)
    if batch.step == 4 and state.processes.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return result

loop.train_step = train_step
main(sys.argv[1:])
"""


def run(folder: Path, launcher: list[str], pool: Path, out: str, model: str, *more: str) -> str:
    (folder / "tiny_net.py").write_text(NET)
    (folder / "killed.py").write_text(KILL_RANK_1)
    words = ["train", str(pool), "--out", out, "--model", model, "--samples-seen", "96", "--batch-size", "16"]
    words += [
        "--checkpoint-every",
        "48",
        "--log-every",
        "1",
        "--attack.steps",
        "2",
        "--attack.step-size",
        "0.05",
        *more,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    source = str(Path(__file__).parents[2] / "src")
    environment["PYTHONPATH"] = os.pathsep.join([source, str(folder)])
    done = subprocess.run(
        [sys.executable, *launcher, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def test_two_ranks_train_as_one_process_does(tmp_path: Path, pool_folder: Path) -> None:
    run(tmp_path, ["-m", "puma"], pool_folder, "one", "tiny_net:net")
    run(tmp_path, [*TORCHRUN, "-m", "puma"], pool_folder, "two", "tiny_net:net")
    # After the first step the momentum is the gradient; later steps compound rounding of another order of sums.
    for step, tolerance in ((3, 1e-6), (6, 1e-5)):
        name = f"checkpoint/step-{step:010d}.safetensors"
        one, two = load_file(tmp_path / "one" / name), load_file(tmp_path / "two" / name)
        assert one.keys() == two.keys()
        for key, tensor in one.items():
            torch.testing.assert_close(two[key], tensor, rtol=tolerance * 10, atol=tolerance)
    steps = (tmp_path / "two" / "metrics.jsonl").read_text().count('"step"')
    assert steps == 6


def test_a_killed_rank_is_survived_by_restart(tmp_path: Path, pool_folder: Path) -> None:
    run(tmp_path, [*TORCHRUN, "-m", "puma"], pool_folder, "undisturbed", "small-8px")
    said = run(tmp_path, [*TORCHRUN, "--max-restarts", "1", "killed.py"], pool_folder, "killed", "small-8px")
    assert "resuming at step 3 of 6" in said
    left, right = (load_file(tmp_path / name / "model.safetensors") for name in ("undisturbed", "killed"))
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert len(list_checkpoints(tmp_path / "killed" / "checkpoint")) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["--soft-pruning.ratio", "0.5"],
        ["--online.mode", "ours", "--online.per-class", "--online.margins-by", "average", "--online.warmup", "0.1"],
    ],
    ids=["soft", "online"],
)
def test_what_is_left_out_is_agreed_on(words: list[str], tmp_path: Path, pool_folder: Path) -> None:
    """Both processes know all losses, or all thresholds: a run that is cut and resumed by both is the same."""
    launch = [*TORCHRUN, "--max-restarts", "1"]
    run(tmp_path, [*TORCHRUN, "-m", "puma"], pool_folder, "undisturbed", "tiny_net:net", *words)
    said = run(tmp_path, [*launch, "killed.py"], pool_folder, "killed", "tiny_net:net", *words)
    assert "resuming at step 3 of 6" in said
    left, right = (load_file(tmp_path / name / "model.safetensors") for name in ("undisturbed", "killed"))
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_one_rank_needs_no_wrapping(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.BatchNorm1d(3)
    processes = ProcessGroup(0, 1, torch.device("cpu"))
    assert wrap_in_ddp(model, processes, sync_batchnorm=False) is model
    average_buffers(model, processes)
    processes.barrier()
    assert processes.writes
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert restart_count() == 2
