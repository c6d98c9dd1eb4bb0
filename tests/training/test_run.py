import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from puma import Plan, Pool, PumaError
from puma.processes import ProcessGroup
from puma.training import TrainConfig, loop
from puma.training.batches import TrainBatch, load_samples, make_batch_source
from puma.training.checkpoint import list_checkpoints
from puma.training.config import ComputeConfig
from puma.training.run import create_run, resume_run, start_run
from puma.training.step import StepResult, TrainState, train_step

from .conftest import WritePool

STEPS = 8


class Killed(BaseException):
    """Stands in for a process that is gone."""


def die_after(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def dying(state: TrainState, batch: TrainBatch, config: TrainConfig) -> StepResult:
        result = train_step(state, batch, config)
        if batch.step == step:
            raise Killed
        return result

    monkeypatch.setattr(loop, "train_step", dying)


def same_files(left: Path, right: Path) -> bool:
    mine, other = load_file(left), load_file(right)
    return mine.keys() == other.keys() and all(torch.equal(mine[name], other[name]) for name in mine)


def plan_of(pool: Pool, path: Path, keep: Tensor, strength: Tensor) -> Path:
    return Plan(torch.arange(len(pool)), keep, strength.float(), pool.fingerprint).save(path)


@pytest.fixture
def whole(tmp_path: Path, pool_folder: Path, config: TrainConfig) -> Path:
    """An undisturbed run."""
    return start_run(config, [pool_folder], tmp_path / "whole", show=False)


def test_a_run_leaves_its_files(whole: Path, config: TrainConfig) -> None:
    assert {path.name for path in whole.iterdir() if not path.name.startswith(".")} == {
        "config.json",
        "metrics.jsonl",
        "model.safetensors",
        "checkpoint",
        "outcomes",
    }
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert [line["samples"] for line in lines] == [16 * step for step in range(1, STEPS + 1)]
    assert all({"loss", "clean_accuracy", "attacked_accuracy", "waiting", "lr"} <= line.keys() for line in lines)
    assert [path.name for path in list_checkpoints(whole / "checkpoint")] == [
        "step-0000000008.safetensors",
        "step-0000000006.safetensors",
    ]
    assert json.loads((whole / "config.json").read_text())["config"]["attack"]["eps"] == 0.1


def test_the_model_is_the_average(whole: Path) -> None:
    saved = load_file(whole / "checkpoint" / "step-0000000008.safetensors")
    model = load_file(whole / "model.safetensors")
    assert all(torch.equal(saved[f"average/{name}"], tensor) for name, tensor in model.items())
    assert not torch.equal(saved["model/linear.weight"], model["linear.weight"])


@pytest.mark.parametrize("step", range(STEPS))
def test_resume_is_bit_identical_at_every_step(
    step: int, tmp_path: Path, pool_folder: Path, config: TrainConfig, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "cut"
    with monkeypatch.context() as patch:
        die_after(step, patch)
        with pytest.raises(Killed):
            start_run(config, [pool_folder], out, show=False)
    assert not (out / "model.safetensors").exists()
    resume_run(out, show=False)
    assert same_files(out / "model.safetensors", whole / "model.safetensors")
    newest = "checkpoint/step-0000000008.safetensors"
    assert same_files(out / newest, whole / newest)
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, STEPS + 1))


KILL = """
import os, signal, sys
from safetensors import torch as st
import puma.models.weights as weights
import puma.training.loop as loop
from puma.cli import main
where, step = sys.argv[1], int(sys.argv[2])
real_step, real_save = loop.train_step, weights.save_file

def train_step(state, batch, config):
    result = real_step(state, batch, config)
    if where == "step" and batch.step == step:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

def save_file(tensors, path, metadata):
    real_save(tensors, path, metadata)
    if where == "save" and f"{step:010d}" in str(path):
        os.truncate(path, os.path.getsize(path) // 2)
        os.kill(os.getpid(), signal.SIGKILL)

loop.train_step, weights.save_file = train_step, save_file
main(sys.argv[3:])
"""


@pytest.mark.parametrize(("where", "step"), [("step", 4), ("save", 6)])
def test_kill_9_is_survived(
    where: str, step: int, tmp_path: Path, pool_folder: Path, config: TrainConfig, whole: Path
) -> None:
    out = tmp_path / "killed"
    flags = ["--samples-seen", "128", "--batch-size", "16", "--checkpoint-every", "32", "--log-every", "1"]
    flags += ["--attack.eps", "0.1", "--attack.step-size", "0.05", "--attack.steps", "2", "--augment.flip"]
    words = ["train", str(pool_folder), "--out", str(out), *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    died = subprocess.run([sys.executable, "-c", KILL, where, str(step), *words], env=environment, check=False)
    assert died.returncode == -signal.SIGKILL
    assert list_checkpoints(out / "checkpoint")[0].name == "step-0000000004.safetensors"
    resume_run(out, config, show=False)
    assert same_files(out / "model.safetensors", whole / "model.safetensors")
    assert not list(out.rglob("*partial*"))


def test_a_cut_checkpoint_falls_back_and_ends_the_same(
    tmp_path: Path,
    pool_folder: Path,
    config: TrainConfig,
    whole: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "cut"
    with monkeypatch.context() as patch:
        die_after(6, patch)
        with pytest.raises(Killed):
            start_run(config, [pool_folder], out, show=False)
    newest = list_checkpoints(out / "checkpoint")[0]
    newest.write_bytes(newest.read_bytes()[:-9])
    resume_run(out, show=False)
    said = capsys.readouterr().err
    assert "step-0000000006.safetensors is damaged" in said
    assert "resuming at step 4 of 8" in said
    assert same_files(out / "model.safetensors", whole / "model.safetensors")


def test_resuming_a_finished_run_changes_nothing(whole: Path) -> None:
    before = (whole / "model.safetensors").read_bytes()
    resume_run(whole, show=False)
    assert (whole / "model.safetensors").read_bytes() == before


def test_another_config_is_told_with_its_differences(whole: Path, config: TrainConfig) -> None:
    other = replace(config, seed=3, optimizer=replace(config.optimizer, lr=0.05))
    with pytest.raises(PumaError, match=r"seed: 0 in the run, 3 asked; optimizer.lr: 0.2 in the run, 0.05 asked"):
        resume_run(whole, other, show=False)


def test_a_folder_in_use_is_not_overwritten(
    whole: Path, pool_folder: Path, config: TrainConfig, tmp_path: Path
) -> None:
    with pytest.raises(PumaError, match="it is a run that is finished; choose another --out"):
        start_run(config, [pool_folder], whole, show=False)
    with pytest.raises(PumaError, match="not a run"):
        resume_run(tmp_path, show=False)
    (whole / "model.safetensors").unlink()
    with pytest.raises(PumaError, match="puma train --resume"):
        start_run(config, [pool_folder], whole)


def test_a_changed_pool_or_plan_is_told(
    tmp_path: Path, pool: Pool, pool_folder: Path, write: WritePool, config: TrainConfig
) -> None:
    keep, strength = torch.ones(96, dtype=torch.bool), torch.full((96,), 0.1)
    plan = plan_of(pool, tmp_path / "plan.parquet", keep, strength)
    run = start_run(config, [pool_folder], tmp_path / "run", plan=plan, show=False)
    plan_of(pool, plan, keep, strength / 2)
    with pytest.raises(PumaError, match="the plan has changed"):
        resume_run(run, show=False)
    plan_of(pool, plan, keep, strength)
    pool_folder.rename(tmp_path / "aside")
    write("pool", seed=5)
    with pytest.raises(PumaError, match="another pool"):
        resume_run(run, show=False)


def test_a_plan_with_one_strength_for_all_is_the_run_without_a_plan(
    tmp_path: Path, pool: Pool, pool_folder: Path, config: TrainConfig, whole: Path
) -> None:
    plan = plan_of(pool, tmp_path / "plan.parquet", torch.ones(96, dtype=torch.bool), torch.full((96,), 0.1))
    run = start_run(config, [pool_folder], tmp_path / "planned", plan=plan, show=False)
    assert same_files(run / "model.safetensors", whole / "model.safetensors")


def test_a_plan_decides_what_is_trained_on(tmp_path: Path, pool: Pool, pool_folder: Path, config: TrainConfig) -> None:
    keep = torch.arange(96) % 3 > 0
    strength = torch.linspace(-0.1, 0.1, 96)
    plan = plan_of(pool, tmp_path / "plan.parquet", keep, strength)
    samples = load_samples(replace(config, held_out=10), [pool_folder], plan)
    assert len(samples.held_out) == 10
    expected = keep.numpy() & ~torch.isin(torch.arange(96), torch.from_numpy(samples.held_out.sample_id)).numpy()
    assert samples.train.sample_id.tolist() == expected.nonzero()[0].tolist()
    assert torch.equal(samples.strength, strength[torch.from_numpy(samples.train.sample_id)])


def test_plans_that_cannot_be_used_are_told(
    tmp_path: Path,
    pool: Pool,
    pool_folder: Path,
    write: WritePool,
    config: TrainConfig,
    capsys: pytest.CaptureFixture[str],
) -> None:
    everything, strength = torch.ones(96, dtype=torch.bool), torch.full((96,), 0.1)
    plan = plan_of(pool, tmp_path / "plan.parquet", everything, strength)
    with pytest.raises(PumaError, match="made for another pool"):
        start_run(config, [write("other", seed=7)], tmp_path / "a", plan=plan, show=False)
    short = Plan(torch.arange(90), everything[:90], strength[:90], pool.fingerprint).save(tmp_path / "short.parquet")
    with pytest.raises(PumaError, match="6 of the pool's 96 samples are missing"):
        start_run(config, [pool_folder], tmp_path / "b", plan=short, show=False)
    nothing = plan_of(pool, tmp_path / "none.parquet", ~everything, strength)
    with pytest.raises(PumaError, match="keeps none"):
        start_run(config, [pool_folder], tmp_path / "c", plan=nothing, show=False)
    assert not any((tmp_path / name).exists() for name in "abc")
    without_a_class = plan_of(pool, tmp_path / "lost.parquet", torch.from_numpy(pool.labels) != 4, strength)
    start_run(config, [pool_folder], tmp_path / "d", plan=without_a_class, show=False)
    assert "warning: the plan leaves no sample of 4" in capsys.readouterr().err


def test_generated_images_are_mixed_in_or_missed(
    tmp_path: Path, write: WritePool, pool_folder: Path, mixed_config: TrainConfig
) -> None:
    with pytest.raises(PumaError, match="no generated samples; set generated_fraction to 0"):
        start_run(mixed_config, [pool_folder], tmp_path / "a", show=False)
    generated = write("generated", 40, origin=1, seed=1)
    run = start_run(mixed_config, [pool_folder, generated], tmp_path / "b", show=False)
    assert (run / "model.safetensors").is_file()
    with pytest.raises(PumaError, match="no pool given"):
        start_run(mixed_config, [], tmp_path / "c", show=False)


def test_generated_images_are_drawn_unless_told_otherwise(
    tmp_path: Path, write: WritePool, pool_folder: Path, config: TrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    pools = [pool_folder, write("generated", 40, origin=1, seed=1)]
    source = make_batch_source(config, load_samples(config, pools, None), ProcessGroup())
    assert sum(position >= 96 for step in range(8) for position in source.sampler.positions(step)) == 8 * 11  # 70 %
    start_run(config, pools, tmp_path / "both", show=False)
    assert "puma: a batch of 16 is 5 of 96 real images and 11 of 40 generated images" in capsys.readouterr().err
    start_run(config, pools[1:], tmp_path / "generated-run", show=False)
    assert "puma: batches of 16 of 40 generated images" in capsys.readouterr().err
    with pytest.raises(PumaError, match="40 generated samples that are never drawn; leave their pool out"):
        start_run(replace(config, generated_fraction=0.0), pools, tmp_path / "none", show=False)
    with pytest.raises(PumaError, match="96 real samples that are never drawn"):
        create_run(replace(config, generated_fraction=1.0), pools, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_not_finite_stops_with_the_last_good_checkpoint(
    tmp_path: Path, pool_folder: Path, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poisoned(state: TrainState, batch: TrainBatch, config: TrainConfig) -> StepResult:
        if batch.step == 5:
            next(state.model.parameters()).data.fill_(torch.nan)
        return train_step(state, batch, config)

    monkeypatch.setattr(loop, "train_step", poisoned)
    with pytest.raises(PumaError, match=r"not finite.*last good checkpoint is .*step-0000000004") as caught:
        start_run(config, [pool_folder], tmp_path / "run", show=False)
    assert "--optimizer.lr" in str(caught.value)
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_a_huge_loss_is_caught_before_the_weights_change(
    tmp_path: Path, pool_folder: Path, config: TrainConfig
) -> None:
    wild = replace(config, loss="standard", optimizer=replace(config.optimizer, lr=1e38))
    with pytest.raises(PumaError, match=r"not finite.*there is no checkpoint yet"):
        start_run(replace(wild, checkpoint_every=10_000), [pool_folder], tmp_path / "run", show=False)


def first_step(tmp_path: Path, pool_folder: Path, config: TrainConfig, name: str) -> dict[str, Tensor]:
    short = replace(config, samples_seen=config.batch_size)
    run = start_run(short, [pool_folder], tmp_path / name, show=False)
    return load_file(list_checkpoints(run / "checkpoint")[0])


def without_batchnorm() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.SiLU(), torch.nn.Linear(16, 10))


@pytest.mark.parametrize("loss", ["trades", "pgd-at", "standard"])
def test_accumulated_gradients_are_those_of_the_whole_batch(
    loss: str, tmp_path: Path, pool_folder: Path, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("puma.training.run.make_net", lambda *_, **__: without_batchnorm())
    config = replace(config, loss=loss)  # type: ignore[arg-type]
    at_once = first_step(tmp_path, pool_folder, config, "one")
    in_parts = first_step(tmp_path, pool_folder, replace(config, compute=ComputeConfig(accumulate=4)), "four")
    for name, tensor in at_once.items():
        torch.testing.assert_close(in_parts[name], tensor, rtol=1e-5, atol=1e-7)


def test_a_net_for_other_classes_is_told(
    tmp_path: Path, pool_folder: Path, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("puma.training.run.make_net", lambda *_, **__: without_batchnorm()[:2])
    with pytest.raises(PumaError, match=r"gives logits \(1, 16\) for a pool of 10 classes"):
        start_run(config, [pool_folder], tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_stays_close_and_resumes_exactly(
    precision: str, tmp_path: Path, pool_folder: Path, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(config, compute=ComputeConfig(precision=precision))  # type: ignore[arg-type]
    run = start_run(config, [pool_folder], tmp_path / "half", show=False)
    with monkeypatch.context() as patch:
        die_after(4, patch)
        with pytest.raises(Killed):
            start_run(config, [pool_folder], tmp_path / "cut", show=False)
    again = resume_run(tmp_path / "cut", show=False)
    assert same_files(run / "model.safetensors", again / "model.safetensors")
    full = first_step(tmp_path, pool_folder, replace(config, compute=ComputeConfig()), "full")
    half = first_step(tmp_path, pool_folder, config, "first")
    assert half["model/linear.weight"].dtype == torch.float32
    assert not torch.equal(half["model/linear.weight"], full["model/linear.weight"])
    torch.testing.assert_close(half["model/linear.weight"], full["model/linear.weight"], rtol=0.05, atol=0.005)


def test_memory_layout_does_not_change_the_result(tmp_path: Path, pool_folder: Path, config: TrainConfig) -> None:
    last = first_step(tmp_path, pool_folder, config, "last")
    first = first_step(tmp_path, pool_folder, replace(config, compute=ComputeConfig(channels_last=False)), "first")
    for name, tensor in last.items():
        torch.testing.assert_close(first[name], tensor, rtol=1e-3, atol=1e-4)


def test_clipping_bounds_the_step(tmp_path: Path, pool_folder: Path, config: TrainConfig) -> None:
    clipped = replace(config, optimizer=replace(config.optimizer, clip_norm=1e-3, weight_decay=0.0))
    moment = first_step(tmp_path, pool_folder, clipped, "clipped")
    length = torch.stack([value.norm() for name, value in moment.items() if name.startswith("momentum/")]).norm()
    assert float(length) == pytest.approx(1e-3, rel=1e-4)


def test_bn_momentum_takes_the_first_batch_whole(tmp_path: Path, pool_folder: Path, config: TrainConfig) -> None:
    taken = first_step(tmp_path, pool_folder, replace(config, bn_momentum=0.01), "haiku")
    usual = first_step(tmp_path, pool_folder, config, "usual")
    name = "model/features.1.running_mean"
    # both passes of the first step: momentum 1 leaves the second's mean, 0.1 a blend with the initial zeros
    assert float(taken[name].norm()) > 3 * float(usual[name].norm())


def test_held_out_images_are_evaluated_and_the_best_is_kept(
    tmp_path: Path, pool_folder: Path, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = replace(config, held_out=20, evaluate_every=48, select="best")
    run = start_run(watched, [pool_folder], tmp_path / "watched", show=False)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    seen = [line for line in lines if "held_out_samples" in line]
    assert [line["step"] for line in seen] == [3, 6, 8]
    assert all(line["held_out_samples"] == 20 for line in seen)
    assert (run / "best.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
    with monkeypatch.context() as patch:
        die_after(6, patch)
        with pytest.raises(Killed):
            start_run(watched, [pool_folder], tmp_path / "cut", show=False)
    again = resume_run(tmp_path / "cut", show=False)
    assert same_files(run / "model.safetensors", again / "model.safetensors")


def test_the_global_generator_and_thread_count_are_left_alone(
    tmp_path: Path, pool_folder: Path, config: TrainConfig
) -> None:
    before = torch.get_rng_state()
    start_run(config, [pool_folder], tmp_path / "run", show=False)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda config: replace(config, batch_size=0), "batch_size must be positive"),
        (lambda config: replace(config, held_out=96), "held_out must be below"),
        (lambda config: replace(config, model="resnet81"), "unknown model"),
        (lambda config: replace(config, model="resnet4b"), r"'resnet4b' cannot take images of \(8, 8, 1\)"),
        (lambda config: replace(config, compute=ComputeConfig(device="cuda")), "sees no GPU"),
        (lambda config: replace(config, compute=ComputeConfig(device="gpu")), "unknown device 'gpu'"),
        (lambda config: replace(config, compute=ComputeConfig(sync_batchnorm=True)), "needs a GPU"),
    ],
)
def test_configs_that_cannot_run_are_told(
    change: Callable[[TrainConfig], TrainConfig],
    sentence: str,
    tmp_path: Path,
    pool_folder: Path,
    config: TrainConfig,
) -> None:
    if "GPU" in sentence and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(PumaError, match=sentence):
        start_run(change(config), [pool_folder], tmp_path / "run", show=False)


def test_a_compiled_run_ends_with_the_same_weights(
    tmp_path: Path, pool_folder: Path, config: TrainConfig, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_model = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compile_model(model, backend="eager"))
    run = start_run(
        replace(config, compute=ComputeConfig(compile=True)), [pool_folder], tmp_path / "compiled", show=False
    )
    compiled, plain = load_file(run / "model.safetensors"), load_file(whole / "model.safetensors")
    assert compiled.keys() == plain.keys()
    for name, tensor in plain.items():
        torch.testing.assert_close(compiled[name], tensor, rtol=1e-3, atol=1e-4)


def test_memory_stays_flat(tmp_path: Path, pool_folder: Path, config: TrainConfig) -> None:
    alive: list[int] = []

    def counted(state: TrainState, batch: TrainBatch, settings: TrainConfig) -> StepResult:
        result = train_step(state, batch, settings)
        gc.collect()
        alive.append(sum(issubclass(type(thing), Tensor) for thing in gc.get_objects()))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "train_step", counted)
        start_run(replace(config, samples_seen=16 * 12, log_every=2), [pool_folder], tmp_path / "run", show=False)
    assert max(alive[4:]) <= max(alive[2:6])
