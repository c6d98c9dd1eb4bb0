"""Numbers nearer to 0 than 1e-38 count as 0 in every pass."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from puma import Pool, evaluate, measure_margins, pgd, train
from puma.models import flush_subnormals


def flushes() -> bool:
    """Whether this thread takes subnormal numbers for 0."""
    return bool(torch.full((1,), 1e-40).mul(1.0) == 0)


def test_subnormals_are_flushed_within_the_block_alone() -> None:
    assert not flushes()
    with flush_subnormals():
        assert flushes()
        with flush_subnormals():
            assert flushes()
        assert flushes()
    assert not flushes()
    with pytest.raises(ValueError, match="odd"), flush_subnormals():
        raise ValueError("odd")
    assert not flushes()


class WatchedNet(nn.Module):
    """A net that notes at each forward whether subnormals are flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.seen: list[bool] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.append(flushes())
        logits: torch.Tensor = self.linear(images.flatten(1))
        return logits

    def __deepcopy__(self, memo: dict[int, object]) -> "WatchedNet":
        copied = WatchedNet()
        copied.load_state_dict(self.state_dict())
        copied.seen = self.seen  # what a copy sees counts too
        return copied


def test_every_pass_of_training_measuring_and_evaluating_flushes_subnormals(tmp_path: Path) -> None:
    images, labels = torch.rand(40, 1, 8, 8), torch.arange(40) % 10
    net, pool = WatchedNet(), Pool.from_tensors(images, labels)
    begun = len(net.seen)
    run = tmp_path / "run"
    train(net, pool, out=run, samples_seen=64, batch_size=32, held_out=8, eps=0.1, steps=2, padding=0)
    trained = net.seen[begun:]
    assert len(trained) > 2 * (2 + 2)  # two steps of two attack steps and two outer passes, at least
    assert sum(not seen for seen in trained) <= 4, "only what tries the net out may come without"
    with torch.inference_mode():
        logits = net(images)
    begun = len(net.seen)
    measured = measure_margins(net, images, logits.argmax(1))
    assert measured.crossed.all()
    assert net.seen[begun:].count(False) <= 2, "only what looks at the size of the logits"
    begun = len(net.seen)
    evaluate(net, images, labels, 0.1)
    pgd(net, images, labels, 0.1, steps=2)
    assert all(net.seen[begun:])
    assert not flushes()


def test_threads_of_the_command_line_flush_subnormals() -> None:
    code = (
        "import torch; torch.set_num_threads(2); from puma.models import start_threads; start_threads(); "
        "found = torch.full((1 << 18,), 1e-40).mul_(1.0) == 0; print(int(found.sum()))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(told) == 1 << 17, "the other thread's half, and not this one's"


_WATCHING = """
import sys, torch
class Net(torch.nn.Sequential):
    def forward(self, images):
        if torch.full((1,), 1e-40).mul(1.0) == 0:  # within the block
            kept = int((torch.full((1 << 18,), 1e-40).mul_(1.0) != 0).sum())
            print("threads keep", kept, file=sys.stderr)
        return super().forward(images)
def make():
    return Net(torch.nn.Flatten(), torch.nn.Linear(64, 10))
"""


@pytest.mark.parametrize("verb", ["margins", "evaluate"])
def test_all_threads_of_a_verb_flush_subnormals(verb: str, tmp_path: Path) -> None:
    Pool.from_tensors(torch.rand(4, 1, 8, 8), torch.arange(4) * 3).save(tmp_path / "pool")
    (tmp_path / "net.py").write_text(_WATCHING)
    words = {
        "margins": "margins pool --model net.py:make --trust-code --out m.parquet",
        "evaluate": "evaluate net.py:make pool --trust-code --eps 0.1 --attacks clean --curve-samples 0 --out e",
    }
    ended = subprocess.run(
        [sys.executable, "-m", "puma", *words[verb].split()],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "threads keep 0\n" in ended.stderr
    assert {line for line in ended.stderr.splitlines() if line.startswith("threads")} == {"threads keep 0"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_the_flag_is_as_before_whatever_the_default_dtype(dtype: torch.dtype) -> None:
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with flush_subnormals(), flush_subnormals():
            pass
        assert sys.float_info.min / 2 > 0
        with flush_subnormals():
            with flush_subnormals():
                pass
            assert sys.float_info.min / 2 == 0
    finally:
        torch.set_default_dtype(usual)
