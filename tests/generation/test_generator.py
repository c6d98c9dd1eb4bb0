"""Training and sampling: the same bits after a resume and in any number of pieces, and bad input in one sentence."""

import dataclasses
import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from puma.cli import main
from puma.errors import Interrupted, PumaError
from puma.generation import generator_training
from puma.generation.edm import SolverConfig
from puma.generation.generator_folder import GeneratorConfig, GeneratorFolder, load_generator
from puma.generation.generator_training import find_lr, resume_generator, train_generator
from puma.generation.image_sampling import SampleConfig, draw_noise, sample_pool
from puma.generation.unet import UNetConfig
from puma.margins import measure_pool
from puma.pools import Origin, Pool
from puma.pools.writer import PoolPart, write_parts
from puma.progress import format_seconds

TINY = GeneratorConfig(
    samples_seen=96, batch_size=16, warmup=32, checkpoint_every=32, grid_every=0, log_every=2, net=UNetConfig(width=8)
)
FAST = SampleConfig(block=4, solver=SolverConfig(steps=3))


def write_images(path: Path, per_class: int = 20, side: int = 8, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    images = rng.integers(256, size=(2 * per_class, side, side, 1)).astype(np.uint8)
    labels = np.arange(2 * per_class) % 2
    return write_parts({"": PoolPart([(images, labels)], ("a", "b"), 2 * per_class)}, path)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "pool")


@pytest.fixture(scope="module")
def trained(pool: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_generator(TINY, [pool], tmp_path_factory.mktemp("generator") / "gen", show=False)


def read_weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def stop_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a signal come during step number ``steps``."""
    original: Callable[..., torch.Tensor] = generator_training.train_generator_step

    def step_and_signal(state: generator_training.GeneratorState, *rest: object) -> torch.Tensor:
        loss = original(state, *rest)
        if state.step == steps:
            signal.raise_signal(signal.SIGTERM)
        return loss

    monkeypatch.setattr(generator_training, "train_generator_step", step_and_signal)


def test_a_resumed_training_ends_in_the_same_bits(
    pool: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(Interrupted, match="step 3 of 6"):
            train_generator(TINY, [pool], tmp_path / "gen", show=False)
    assert not (tmp_path / "gen" / "model.safetensors").exists()
    resume_generator(tmp_path / "gen", show=False)
    assert read_weights(tmp_path / "gen") == read_weights(trained)
    steps = [json.loads(line)["step"] for line in (tmp_path / "gen" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [2, 4, 6]


def test_another_seed_gives_another_net(pool: Path, trained: Path, tmp_path: Path) -> None:
    other = train_generator(dataclasses.replace(TINY, seed=1), [pool], tmp_path / "gen", show=False)
    assert read_weights(other) != read_weights(trained)


def test_learning_rate_warms_up_and_falls() -> None:
    config = dataclasses.replace(TINY, lr=1.0, lr_end=0.1)
    assert find_lr(0, config) == pytest.approx(0.5)
    assert find_lr(1, config) == pytest.approx(1.0)
    assert find_lr(config.steps - 1, config) == pytest.approx(0.1)


def test_images_depend_on_seed_and_index_alone(trained: Path, tmp_path: Path) -> None:
    many = Pool.open(sample_pool(trained, 21, tmp_path / "many", FAST, show=False))
    few = Pool.open(sample_pool(trained, 6, tmp_path / "few", FAST, show=False))
    assert torch.equal(many.batch(range(6)).images, few.batch(range(6)).images)
    assert many.labels.tolist() == [index % 2 for index in range(21)]
    other = Pool.open(sample_pool(trained, 6, tmp_path / "other", dataclasses.replace(FAST, seed=1), show=False))
    assert not torch.equal(other.batch(range(6)).images, few.batch(range(6)).images)
    assert torch.equal(draw_noise(0, range(3, 5), (8, 8, 1)), draw_noise(0, range(5), (8, 8, 1))[3:])


def test_an_interrupted_sampling_goes_on(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from puma.generation.image_sampling import SampleWork

    calls: list[int] = []
    original = SampleWork.sample

    def sample_and_signal(work: SampleWork, start: int) -> NDArray[np.uint8]:
        calls.append(start)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return original(work, start)

    monkeypatch.setattr(SampleWork, "sample", sample_and_signal)
    with pytest.raises(Interrupted, match="same command again"):
        sample_pool(trained, 30, tmp_path / "pool", FAST, show=False)
    assert not (tmp_path / "pool").exists()
    with pytest.raises(PumaError, match="begun with another seed"):
        sample_pool(trained, 30, tmp_path / "pool", dataclasses.replace(FAST, seed=5), show=False)
    resumed = Pool.open(sample_pool(trained, 30, tmp_path / "pool", FAST, show=False))
    assert calls == [0, 4, 8, 12, 16, 20, 24, 28]
    whole = Pool.open(sample_pool(trained, 30, tmp_path / "whole", FAST, show=False))
    assert resumed.fingerprint == whole.fingerprint
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".parts")] == []


def test_the_pool_says_what_made_it(trained: Path, tmp_path: Path) -> None:
    out = sample_pool(trained, 5, tmp_path / "pool", FAST, npz=tmp_path / "pool.npz", show=False)
    described = json.loads((out / "pool.json").read_text())
    fingerprint = load_generator(trained).fingerprint
    assert described["generator"]["generator"] == fingerprint
    assert [(link["kind"], link["hash"]) for link in described["links"]] == [("generator", fingerprint)]
    opened = Pool.open(out)
    assert set(opened.origin.tolist()) == {int(Origin.GENERATED)}
    with np.load(tmp_path / "pool.npz") as arrays:
        assert np.array_equal(arrays["image"], opened.batch(range(5)).images.permute(0, 2, 3, 1).numpy())
        assert arrays["label"].tolist() == opened.labels.tolist()


def test_a_generator_learns_and_keeps_margins(pool: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2)).eval()
    measure_pool(model, Pool.open(pool), tmp_path / "margins.parquet")
    config = dataclasses.replace(TINY, eps=0.01)
    gen = train_generator(config, [pool], tmp_path / "gen", margins=tmp_path / "margins.parquet", show=False)
    _, margins = GeneratorFolder(gen).read_conditions()
    band = (float(np.quantile(margins, 0.2)), float(np.quantile(margins, 0.8)))
    asked = sample_pool(gen, 4, tmp_path / "asked", dataclasses.replace(FAST, band=band), show=False)
    assert len(Pool.open(asked)) == 4
    with pytest.raises(PumaError, match="no training image has a margin from 1e\\+06"):
        sample_pool(gen, 4, tmp_path / "none", dataclasses.replace(FAST, band=(1e6, 2e6)), show=False)
    assert not (tmp_path / "none").exists()
    other = write_images(tmp_path / "other", seed=1)
    with pytest.raises(PumaError, match="another pool"):
        train_generator(config, [other], tmp_path / "x", margins=tmp_path / "margins.parquet", show=False)
    with pytest.raises(PumaError, match="--eps"):
        train_generator(TINY, [pool], tmp_path / "x", margins=tmp_path / "margins.parquet", show=False)
    assert not (tmp_path / "x").exists()


def test_bad_input_is_one_sentence_and_leaves_nothing(pool: Path, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(PumaError, match="at least 16 images"):
        train_generator(TINY, [write_images(tmp_path / "few", per_class=3)], out)
    with pytest.raises(PumaError, match="8, 14, 28, 32, 64 px"):
        train_generator(TINY, [write_images(tmp_path / "odd", side=9)], out)
    with pytest.raises(PumaError, match="lr must be positive"):
        train_generator(dataclasses.replace(TINY, lr=0.0), [pool], out)
    with pytest.raises(PumaError, match="other settings"):
        resume_generator(trained, dataclasses.replace(TINY, lr=0.5))
    with pytest.raises(PumaError, match="is not empty"):
        train_generator(TINY, [pool], trained)
    with pytest.raises(PumaError, match="at least 1"):
        sample_pool(trained, 0, out)
    with pytest.raises(PumaError, match="trained without margins"):
        sample_pool(trained, 4, out, SampleConfig(band=(0.0, 2.0)))
    with pytest.raises(PumaError, match="not a generator"):
        sample_pool(pool.parent, 4, out)
    assert not out.exists()


def test_what_would_be_passed_over_or_fail_in_the_end_is_refused_at_once(
    pool: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with pytest.raises(PumaError, match="give --margins FILE too"):
        train_generator(dataclasses.replace(TINY, eps=0.1), [pool], out)
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr("puma.generation.image_sampling._sample_parts", lambda *_, **__: pytest.fail("it was sampled"))
    with pytest.raises(PumaError, match=r"cannot write .*/file/pool.npz: "):
        sample_pool(trained, 4, out, FAST, npz=tmp_path / "file" / "pool.npz")
    with pytest.raises(PumaError, match="lies in the pool"):
        sample_pool(trained, 4, out, FAST, npz=out / "pool.npz")
    assert {path.name for path in tmp_path.iterdir()} == {"file"}


def test_the_verbs(pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--samples-seen 32 --batch-size 16 --net.width 8 --grid-every 16".split()
    main(["generate", "train", str(pool), "--dry-run", *flags])
    assert "parameters" in capsys.readouterr().out
    gen, out = tmp_path / "gen", tmp_path / "pool"
    main(["generate", "train", str(pool), "--out", str(gen), *flags])
    main(["generate", "show", str(gen)])
    assert "samples seen: 32 of 32" in capsys.readouterr().out
    assert len(list((gen / "samples").glob("*.png"))) == 2
    main(["generate", "sample", str(gen), "--count", "3", "--out", str(out), "--solver.steps", "2", "--block", "4"])
    assert len(Pool.open(out)) == 3


@pytest.mark.parametrize(("count", "seconds"), [(3, 10), (16, 10), (17, 20), (160, 100)])
def test_a_dry_run_counts_on_from_the_images_that_its_trial_made(
    count: int, seconds: int, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter((0.0, 10.0))  # of a part of four blocks
    monkeypatch.setattr("puma.cli.generate.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    flags = ["--out", "nowhere", "--solver.steps", "2", "--block", "4", "--dry-run"]
    main(["generate", "sample", str(trained), "--count", str(count), *flags])
    assert f"time         about {format_seconds(seconds)} on one cpu" in capsys.readouterr().out
