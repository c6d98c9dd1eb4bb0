"""A generator of colour images in bf16 and two processes; a full disk; generated digits that a net can learn from."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch

from puma.errors import PumaError
from puma.generation import (
    AssessmentConfig,
    ImageAssessment,
    SampleConfig,
    assess_images,
    find_generator_recipe,
    resume_generator,
    sample_pool,
    train_generator,
)
from puma.generation.unet import UNetConfig
from puma.pools import Pool, PoolPart, read_digits, write_parts

_ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
_TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
_TRAIN = (
    "generate train pool --samples-seen 64 --batch-size 16 --net.width 8 --grid-every 0 --checkpoint-every 32 "
    "--precision bf16 --out"
).split()


def call_python(
    folder: Path, *words: str, before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, cwd=folder, env=_ENVIRONMENT, preexec_fn=before, capture_output=True, text=True, check=False
    )


def write_colours(path: Path, seed: int = 0) -> Path:
    images = np.random.default_rng(seed).integers(256, size=(48, 32, 32, 3)).astype(np.uint8)
    return write_parts({"": PoolPart([(images, np.arange(48) % 2)], ("a", "b"), 48)}, path)


def test_two_processes_train_in_bf16_on_colours_and_sample_the_images_of_one(tmp_path: Path) -> None:
    write_colours(tmp_path / "pool")
    done = call_python(tmp_path, *_TORCHRUN, "puma", *_TRAIN, "gen")
    assert done.returncode == 0, done.stderr[-2000:]
    sample = ["generate", "sample", "gen", "--count", "10", "--block", "4", "--solver.steps", "2", "--out"]
    for words in ([*_TORCHRUN, "puma", *sample, "two"], ["puma", *sample, "one"]):
        done = call_python(tmp_path, *words)
        assert done.returncode == 0, done.stderr[-2000:]
    one, two = Pool.open(tmp_path / "one"), Pool.open(tmp_path / "two")
    assert one.image_shape == (32, 32, 3)
    assert torch.equal(one.batch(range(10)).images, two.batch(range(10)).images)
    weights = (tmp_path / "gen/model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "pool")
    write_colours(tmp_path / "pool", seed=1)
    with pytest.raises(PumaError, match="the images or margins changed"):
        resume_generator(tmp_path / "gen", show=False)
    assert (tmp_path / "gen/model.safetensors").read_bytes() == weights


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on file size stands in for the full disk."""
    write_colours(tmp_path / "pool")
    assert call_python(tmp_path, "puma", *_TRAIN, "gen").returncode == 0

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    sample = ["generate", "sample", "gen", "--count", "16", "--block", "8", "--solver.steps", "2", "--out", "out"]
    for words in (sample, [*_TRAIN, "other"]):
        done = call_python(tmp_path, "puma", *words, before=limit)
        assert done.returncode == 2, done.stderr[-2000:]
        assert "Traceback" not in done.stderr
        assert done.stderr.strip().splitlines()[-1].startswith("puma: ")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "other" / "model.safetensors").exists()


def test_a_net_learns_digits_from_generated_ones_alone(tmp_path: Path) -> None:
    """The small form of ``make generator``: a few seconds of training give digits that can be told apart."""
    write_parts(read_digits(), tmp_path / "digits")
    config = replace(
        find_generator_recipe("digits-8px"), samples_seen=16_000, lr=2e-3, grid_every=0, net=UNetConfig(width=16)
    )
    generator = train_generator(config, [tmp_path / "digits/train"], tmp_path / "gen", show=False)
    sample_pool(generator, 512, tmp_path / "generated", SampleConfig(), show=False)
    real, generated, test = (Pool.open(tmp_path / name) for name in ("digits/train", "generated", "digits/test"))
    found = assess_images(real, generated, test, AssessmentConfig("small-8px", 8000, seeds=1, images=512))
    assert fmean(found.accuracy["generated"]) > 0.75
    assert found.doubted_share < 0.3
    assert found.frechet[0] > found.frechet[1] > 0
    assert found.list_misses(least=0.75) == []


def test_goals_that_are_missed_are_told() -> None:
    found = ImageAssessment({"real": [0.9, 0.92], "generated": [0.87], "both": [0.9]}, 0.1, (1.0, 1.2), (0.2, 0.1))
    said = found.list_misses(least=0.93, gap=0.025, both_win=True)
    assert [sentence.split(" a net")[0] for sentence in said[:3]] == [
        "trained on generated images alone", "generated images train", "both together train",
    ]  # fmt: skip
    assert "4.0 points worse" in said[1]
    assert "copies" in said[3]
    good = ImageAssessment({"real": [0.9], "generated": [0.89], "both": [0.95]}, 0.1, (1.2, 1.0), (0.2, 0.1))
    assert good.list_misses(least=0.88, gap=0.025, both_win=True) == []
