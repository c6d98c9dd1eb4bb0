from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import Run
from puma import Pool, PumaError
from puma.planning import PruneRule, StrengthRule, build_plan
from puma.processes import ProcessGroup, resolve_device
from puma.scores.difficulty import OutcomeRecord, outcome_file, read_outcomes
from puma.scores.score_table import open_named_scores
from puma.training import TrainConfig, loop
from puma.training.batches import load_samples, make_batch_source
from puma.training.outcomes import score_difficulty
from puma.training.run import resume_run, start_run
from puma.training.step import StepResult, TrainState, train_step

from .conftest import WritePool
from .test_run import Killed, die_after


def test_difficulty_against_what_every_step_said(
    tmp_path: Path, write: WritePool, mixed_config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools = [write("real", 40), write("generated", 30, origin=1, seed=1)]
    config = replace(mixed_config, held_out=8)
    source = make_batch_source(config, load_samples(config, pools, None), ProcessGroup(0, 1, resolve_device("cpu")))
    seen: dict[int, list[bool]] = {}

    def listening(state: TrainState, batch: object, config: TrainConfig) -> StepResult:
        result = train_step(state, batch, config)  # type: ignore[arg-type]
        ids = source.pool.sample_id[source.sampler.positions(batch.step)]  # type: ignore[attr-defined]
        assert result.clean_right is not None
        for sample_id, right in zip(ids, result.clean_right.tolist(), strict=True):
            seen.setdefault(int(sample_id), []).append(right)
        return result

    monkeypatch.setattr(loop, "train_step", listening)
    run = start_run(config, pools, tmp_path / "run", show=False)
    scores = {score.kind: score for score in score_difficulty(run)}
    assert set(scores) == {"cd_clean", "cd_adversarial", "forgetting_clean", "forgetting_adversarial"}
    assert len(scores["cd_clean"]) == 70
    for sample_id, value in zip(scores["cd_clean"].sample_id, scores["cd_clean"].score, strict=True):
        outcomes = seen.get(int(sample_id))
        if outcomes is None:
            assert np.isnan(value)
        else:
            assert value == np.float32(outcomes.count(False) / len(outcomes))
    assert int(np.isnan(scores["cd_clean"].score).sum()) >= 8


def test_a_resumed_run_has_the_outcomes_of_an_undisturbed_one(
    tmp_path: Path, pool_folder: Path, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = start_run(config, [pool_folder], tmp_path / "whole", show=False)
    with monkeypatch.context() as patch:
        die_after(4, patch)
        with pytest.raises(Killed):
            start_run(config, [pool_folder], tmp_path / "run", show=False)
    resume_run(tmp_path / "run", show=False)
    for one, two in zip(score_difficulty(whole), score_difficulty(tmp_path / "run"), strict=True):
        assert np.array_equal(one.score, two.score, equal_nan=True)


def test_scores_on_the_command_line(tmp_path: Path, pool_folder: Path, config: TrainConfig, puma: Run) -> None:
    run = start_run(config, [pool_folder], tmp_path / "run", show=False)
    cd, el2n = str(tmp_path / "cd.parquet"), str(tmp_path / "el2n.parquet")
    code, said, _ = puma("scores", "cd", str(run), "--out", cd)
    assert code == 0
    assert "cd_adversarial: mean" in said
    nets = ["--runs", str(tmp_path / "nets"), "--nets", "2", "--samples-seen", "256"]
    assert puma("scores", "el2n", str(pool_folder), "--out", el2n, *nets)[0] == 0
    code, _, err = puma("scores", "el2n", str(pool_folder), "--out", el2n, *nets)
    assert (code, "give --force" in err) == (2, True)
    longer = [*nets[:-1], "512", "--force"]
    code, _, err = puma("scores", "el2n", str(pool_folder), "--out", el2n, *longer)
    assert (code, "was begun with other settings (samples_seen" in err) == (2, True)
    pool = Pool.open(pool_folder)
    assert open_named_scores(el2n).easiness(pool).max() <= 0
    plan = ["plan", str(pool_folder), "--score", f"{cd}:cd_clean", "--prune-easy", "0.2", "--strength", "constant"]
    assert puma(*plan, "--drop-failed", "--out", str(tmp_path / "plan.parquet"))[0] == 0


def test_outcomes_of_two_processes_are_put_together(tmp_path: Path, pool_folder: Path, config: TrainConfig) -> None:
    run = start_run(config, [pool_folder], tmp_path / "run", show=False)
    alone = score_difficulty(run)
    for kind in ("clean", "adversarial"):
        file = outcome_file(run, kind)
        right = read_outcomes(file, config.batch_size, range(config.steps))
        for rank in range(2):
            with OutcomeRecord(outcome_file(run, kind, rank, 2), config.batch_size // 2, 0) as record:
                for row in right:
                    record.add(row[rank::2])  # a process gets every second sample of a batch
        file.unlink()
    for one, two in zip(alone, score_difficulty(run), strict=True):
        assert np.array_equal(one.score, two.score, equal_nan=True)


def test_another_number_of_processes_goes_on_without_recording(
    tmp_path: Path, pool_folder: Path, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        die_after(4, patch)
        with pytest.raises(Killed):
            start_run(config, [pool_folder], tmp_path / "run", show=False)
    for kind in ("clean", "adversarial"):
        outcome_file(tmp_path / "run", kind).rename(outcome_file(tmp_path / "run", kind, 0, 2))
    resume_run(tmp_path / "run", show=False)
    with pytest.raises(PumaError, match="has not ended, or was resumed by other processes"):
        score_difficulty(tmp_path / "run")


def test_a_replaced_plan_is_noticed(tmp_path: Path, pool_folder: Path, config: TrainConfig) -> None:
    pool, path = Pool.open(pool_folder), tmp_path / "plan.parquet"
    build_plan(pool, PruneRule(random=0.2), StrengthRule("constant", 0.1)).save(path)
    run = start_run(config, [pool_folder], tmp_path / "run", plan=path, show=False)
    build_plan(pool, PruneRule(random=0.2, seed=1), StrengthRule("constant", 0.1)).save(path)
    with pytest.raises(PumaError, match="the pool or plan has changed"):
        score_difficulty(run)


def test_runs_without_outcomes_are_told(tmp_path: Path, pool_folder: Path, config: TrainConfig) -> None:
    run = start_run(replace(config, record_outcomes=False), [pool_folder], tmp_path / "run", show=False)
    with pytest.raises(PumaError, match="has no recorded outcomes; train with --record-outcomes"):
        score_difficulty(run)
