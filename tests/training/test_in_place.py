"""Training, margins and evaluation on pictures in their shards: the same bits as on the same pixels packed."""

import io
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import puma
from puma.evaluation import evaluate
from puma.pools import (
    DecodePolicy,
    Pool,
    PoolPart,
    ShardOptions,
    index_tars,
    index_webdataset,
    save_subset,
    write_parts,
)
from puma.training import find_recipe

SETTINGS: dict[str, Any] = {"samples_seen": 192, "batch_size": 32, "checkpoint_every": 64, "eps": 0.1, "held_out": 0}


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """A packed pool of grey noise of 8 px, and the same as PNGs in two shards."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(256, size=(80, 8, 8, 1)).astype(np.uint8), np.arange(80) % 4
    write_parts({"": PoolPart([(images, labels)], [str(label) for label in range(4)], 80)}, tmp_path / "packed")
    for shard in range(2):
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as tar:
            for row in range(40 * shard, 40 * shard + 40):
                file = io.BytesIO()
                Image.fromarray(images[row].squeeze(-1)).save(file, "PNG")
                for ending, content in ((".png", file.getvalue()), (".cls", str(labels[row]).encode())):
                    member = tarfile.TarInfo(f"{row:04d}{ending}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    shards = [tmp_path / "0.tar", tmp_path / "1.tar"]
    index_webdataset(shards, tmp_path / "place", ShardOptions(DecodePolicy(8, channels=1)))
    return tmp_path


def weights_of(run: puma.Run) -> dict[str, torch.Tensor]:
    return load_file(run.path / "model.safetensors")


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_training_margins_plan_and_evaluation_are_those_of_the_packed_pool(folders: Path) -> None:
    models, margins, judged = {}, {}, []
    for name in ("packed", "place"):
        pool = Pool.open(folders / name)
        run = puma.train("small-8px", pool, recipe="small-digits", out=folders / f"run-{name}", **SETTINGS)
        models[name] = weights_of(run)
        model = run.model
        margins[name] = {method: puma.measure_pool(model, pool, method=method) for method in ("deepfool", "fast")}
        plan = puma.make_plan(pool, margins=margins[name]["fast"], prune_easy=0.25, eps=0.1)
        planned = puma.train(
            "small-8px", pool, plan=plan, recipe="small-digits", out=folders / f"plan-{name}", **SETTINGS
        )
        models[f"{name} planned"] = weights_of(planned)
        judged.append(evaluate(model, pool, eps=0.1))
    assert same(models["packed"], models["place"])
    assert same(models["packed planned"], models["place planned"])
    assert judged[0] == judged[1]
    for method in ("deepfool", "fast"):
        assert torch.equal(margins["packed"][method].margin, margins["place"][method].margin)
    assert margins["place"]["fast"].sample_id.tolist() == Pool.open(folders / "place").sample_id.tolist()


def test_a_part_of_a_pool_in_place_trains_as_the_packed_part(folders: Path) -> None:
    runs = []
    for name in ("packed", "place"):
        save_subset(Pool.open(folders / name), folders / f"{name}-part", classes=["0", "2"])
        runs.append(puma.train("small-8px", folders / f"{name}-part", recipe="small-digits",
                               out=folders / f"run-{name}", **SETTINGS))  # fmt: skip
    assert same(weights_of(runs[0]), weights_of(runs[1]))


def test_a_run_in_place_goes_on_to_the_same_bits_also_on_two_ranks(folders: Path) -> None:
    """Killed as soon as the first checkpoint is there, and gone on with; and the whole once more by torchrun."""
    words = ["train", "place", "--recipe", "small-digits", "--samples-seen", "192", "--batch-size", "32",
             "--checkpoint-every", "64", "--held-out", "0"]  # fmt: skip
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
        "PUMA_DECODE_WORKERS": "1",
    }  # fmt: skip

    def call(*command: str) -> None:
        done = subprocess.run(
            [sys.executable, *command], cwd=folders, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]

    call("-m", "puma", *words, "--out", "whole")
    for name in ("place", "packed"):
        call("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "puma", "train", name,
             *words[2:], "--out", f"two-{name}")  # fmt: skip
    one, two = (load_file(folders / f"two-{name}/model.safetensors") for name in ("place", "packed"))
    assert same(one, two)
    command = [sys.executable, "-m", "puma", *words, "--out", "cut"]
    with subprocess.Popen(command, cwd=folders, env=environment, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not list(folders.glob("cut/checkpoint/step-*")):
            time.sleep(0.002)
        process.kill()
    call("-m", "puma", "train", "--resume", "cut")
    assert (folders / "cut/model.safetensors").read_bytes() == (folders / "whole/model.safetensors").read_bytes()


def test_steps_of_the_recipe_for_imagenet_at_224_px(tmp_path: Path) -> None:
    """Full-size pictures in tars, the recipe's net and attack, margins as the paper's: only the samples are few."""
    rng = np.random.default_rng(0)
    for wnid in ("n01440764", "n02102040"):
        with tarfile.open(tmp_path / f"{wnid}.tar", "w") as tar:
            for row in range(2):
                file = io.BytesIO()
                coarse = Image.fromarray(rng.integers(256, size=(12, 16, 3)).astype(np.uint8))
                coarse.resize((500, 375)).save(file, "JPEG")
                member = tarfile.TarInfo(f"{wnid}_{row}.JPEG")
                member.size = len(file.getvalue())
                tar.addfile(member, io.BytesIO(file.getvalue()))
    index_tars(tmp_path, tmp_path / "pool", ShardOptions(DecodePolicy(224)))
    pool = Pool.open(tmp_path / "pool")
    config = find_recipe("imagenet21k-100")
    few: dict[str, Any] = {"samples_seen": 4, "batch_size": 2, "held_out": 0, "evaluate_every": 0, "select": "last"}
    run = puma.train(config.model, pool, recipe="imagenet21k-100", out=tmp_path / "run", **few)
    assert config.model == "preactresnet18-224px"
    assert all(bool(value.isfinite().all()) for value in run.model.state_dict().values())
    margins = puma.measure_pool(run.model, pool, method="fast", batch_size=4)
    assert not bool(margins.margin.isnan().any())
    plan = puma.make_plan(pool, margins=margins, eps=config.attack.eps)
    again = puma.train(config.model, pool, plan=plan, recipe="imagenet21k-100", out=tmp_path / "planned", **few)
    assert not same(weights_of(run), weights_of(again))  # strengths of its own for every sample


def test_memory_stays_flat_over_many_batches(folders: Path) -> None:
    pool = Pool.open(folders / "place")
    rng = np.random.default_rng(1)
    process = psutil.Process()
    for _ in range(30):
        pool.batch(rng.integers(80, size=64))
    before = process.memory_info().rss
    for _ in range(300):
        pool.batch(rng.integers(80, size=64))
    assert process.memory_info().rss - before < 20 << 20
