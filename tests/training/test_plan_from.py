"""A plan that takes effect after a share of the training, and the models that a run keeps on its way."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import Run
from puma import Pool, PumaError
from puma.processes import ProcessGroup
from puma.scores.score_table import open_scores
from puma.training import TrainConfig, load_model, loop
from puma.training.batches import iterate_visits, load_samples, make_batch_source
from puma.training.outcomes import score_difficulty, score_snapshots
from puma.training.run import resume_run, start_run
from puma.training.run_folder import RunFolder
from puma.training.step import StepResult, TrainState, train_step

from .conftest import WritePool
from .test_run import Killed, die_after, plan_of, same_files


@pytest.fixture
def plan(tmp_path: Path, pool: Pool) -> Path:
    """A plan that keeps two thirds, at strengths from -0.1 to 0.1."""
    return plan_of(pool, tmp_path / "plan.parquet", torch.arange(96) % 3 > 0, torch.linspace(-0.1, 0.1, 96))


def test_batches_are_those_of_training_without_a_plan_and_then_those_of_the_plan(
    pool_folder: Path, config: TrainConfig, plan: Path
) -> None:
    def source(config: TrainConfig, plan: Path | None) -> object:
        return make_batch_source(config, load_samples(config, [pool_folder], plan), ProcessGroup())

    config = replace(config, held_out=10)
    both = source(replace(config, plan_from=0.5), plan)
    before, after = source(config, None), source(config, plan)
    for step in range(8):
        found, expected = (one.batch(step) for one in (both, before if step < 4 else after))  # type: ignore[attr-defined]
        for name in ("images", "labels", "strength"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), (step, name)
        assert bool((found.strength == 0.1).all()) == (step < 4)


@pytest.mark.parametrize(("share", "step"), [(0.0, 0), (0.5, 4), (0.51, 5), (0.99, 8)])
def test_the_step_at_which_it_begins(config: TrainConfig, share: float, step: int) -> None:
    assert replace(config, plan_from=share).plan_step == step


def test_a_resumed_run_is_the_undisturbed_one(
    tmp_path: Path, pool_folder: Path, config: TrainConfig, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(config, plan_from=0.5, snapshot_every=32)
    whole = start_run(config, [pool_folder], tmp_path / "whole", plan=plan, show=False)
    for step in (2, 4):
        out = tmp_path / f"run{step}"
        with monkeypatch.context() as patch:
            die_after(step, patch)
            with pytest.raises(Killed):
                start_run(config, [pool_folder], out, plan=plan, show=False)
        resume_run(out, show=False)
        assert same_files(whole / "model.safetensors", out / "model.safetensors")
        names = [path.name for path in RunFolder(whole).list_snapshots()]
        assert names == [f"step-{number:010d}.safetensors" for number in (2, 4, 6, 8)]
        for name in names:
            assert same_files(whole / "snapshots" / name, out / "snapshots" / name)
    always = start_run(replace(config, plan_from=0.0), [pool_folder], tmp_path / "always", plan=plan, show=False)
    assert not same_files(whole / "model.safetensors", always / "model.safetensors")
    config_read, inputs = RunFolder(whole).read()
    assert config_read.plan_from == 0.5
    assert [link.role for link in inputs.links] == ["pool", "plan"]


def test_difficulty_counts_both_parts(
    tmp_path: Path, write: WritePool, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools = [write("real", 40), write("generated", 30, origin=1, seed=1)]
    whole = Pool.open(pools[0]) + Pool.open(pools[1])
    keep = torch.arange(70) % 4 > 0
    plan = plan_of(whole, tmp_path / "plan.parquet", keep, torch.full((70,), 0.05))
    config = replace(config, plan_from=0.5, held_out=4, generated_fraction=0.5)
    visits = iterate_visits(config, load_samples(config, pools, plan), range(8))
    rows = list(visits)
    seen: dict[int, list[bool]] = {}

    def listening(state: TrainState, batch: object, config: TrainConfig) -> StepResult:
        result = train_step(state, batch, config)  # type: ignore[arg-type]
        here = rows[batch.step]  # type: ignore[attr-defined]
        assert np.array_equal(whole.labels[here], batch.labels.numpy())  # type: ignore[attr-defined]
        assert result.clean_right is not None
        for row, right in zip(here, result.clean_right.tolist(), strict=True):
            seen.setdefault(int(row), []).append(right)
        return result

    monkeypatch.setattr(loop, "train_step", listening)
    run = start_run(config, pools, tmp_path / "run", plan=plan, show=False)
    assert any(not keep[row] for step in range(4) for row in rows[step])
    assert all(bool(keep[row]) for step in range(4, 8) for row in rows[step])
    clean = next(score for score in score_difficulty(run) if score.kind == "cd_clean")
    for row, value in enumerate(clean.score):
        outcomes = seen.get(row, [])
        assert np.isnan(value) if not outcomes else value == np.float32(outcomes.count(False) / len(outcomes))


def test_it_is_told_and_bad_input_refused(
    tmp_path: Path, pool_folder: Path, config: TrainConfig, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = replace(config, plan_from=0.5)
    with pytest.raises(PumaError, match=r"plan_from 0\.5 is about a plan; give one with --plan"):
        start_run(late, [pool_folder], tmp_path / "run", show=False)
    with pytest.raises(PumaError, match=r"plan_from must lie in \[0, 1\), a share of the training, got 1"):
        start_run(replace(config, plan_from=1.0), [pool_folder], tmp_path / "run", plan=plan, show=False)
    assert not (tmp_path / "run").exists()
    start_run(late, [pool_folder], tmp_path / "run", plan=plan, show=False)
    assert "the plan takes effect at step 4 of 8; before it all is trained on at eps" in capsys.readouterr().err


def test_scores_by_the_models_that_were_kept(
    tmp_path: Path, pool_folder: Path, pool: Pool, config: TrainConfig, puma: Run
) -> None:
    run = start_run(replace(config, snapshot_every=32), [pool_folder], tmp_path / "run", show=False)
    out = tmp_path / "dynamics.parquet"
    code, said, err = puma("scores", "dynamics", str(run), "--window", "3", "--out", str(out))
    assert code == 0, err
    assert "input_gradient: mean" in said
    gradient, uncertainty = score_snapshots(run, window=3)
    assert np.array_equal(open_scores(out, "input_gradient").score, gradient.score)
    assert np.array_equal(open_scores(out, "uncertainty").score, uncertainty.score)
    snapshots = RunFolder(run).list_snapshots()
    batch = pool.batch(range(96))
    with torch.no_grad():
        right = torch.stack([
            load_model(run, weights=path)(batch.images / 255).softmax(1)[torch.arange(96), batch.labels]
            for path in snapshots
        ])  # fmt: skip
    windows = torch.stack([right[start : start + 3].std(dim=0) for start in range(2)])
    assert np.allclose(uncertainty.score, windows.mean(dim=0), atol=1e-5)
    plan = ["plan", str(pool_folder), "--eps", "0.1", "--out", str(tmp_path / "p.parquet"), "--force"]
    assert puma(*plan, "--score", f"{out}:input_gradient", "--prune-difficult", "0.25")[0] == 0
    assert puma(*plan, "--score", f"{out}:uncertainty", "--prune-easy", "0.25")[0] == 0
    for words, sentence in (
        (["--window", "5"], "a window of 5 needs as many models of the training, got 4"),
        (["--window", "1"], "window must be at least 2, got 1"),
    ):
        code, _, err = puma("scores", "dynamics", str(run), *words, "--out", str(out), "--force")
        assert (code, sentence in err) == (2, True)
    without = start_run(config, [pool_folder], tmp_path / "without", show=False)
    code, _, err = puma("scores", "dynamics", str(without), "--out", str(out), "--force")
    assert (code, "has kept no models; train with --snapshot-every" in err) == (2, True)
