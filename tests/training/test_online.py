import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from puma import Plan, Pool
from puma.errors import PumaError
from puma.processes import ProcessGroup
from puma.training import TrainConfig
from puma.training.batches import TrainBatch
from puma.training.checkpoint import load_newest
from puma.training.config import OnlineConfig, check_train_config
from puma.training.loop import summarize_online
from puma.training.losses import InnerAttack
from puma.training.online import (
    OnlineCandidates,
    OnlineState,
    choose_early,
    choose_late,
    compute_online_loss,
    is_right_at,
    pick_rows,
    segment_point,
    segment_strength,
    update_class_thresholds,
    update_threshold,
)
from puma.training.run import make_model, resume_run, start_run
from puma.training.run_folder import RunFolder
from puma.training.step import OnlineSummary, make_train_state

from .test_run import Killed, die_after, same_files

EPS = 0.1


class Wall(nn.Module):
    """One pixel, two classes: right (class 1) exactly where the pixel is below the wall."""

    def __init__(self, wall: float) -> None:
        super().__init__()
        self.wall = wall
        self.scale: nn.Parameter | float = 1.0

    def forward(self, images: Tensor) -> Tensor:
        value = self.scale * (self.wall - images.flatten(1)[:, :1])
        return torch.cat([-value, value], dim=1)


def along(start: list[float]) -> tuple[Tensor, Tensor, Tensor]:
    """Images at the given values, all of class 1, attacked upwards by EPS."""
    images = torch.tensor(start, dtype=torch.float64).view(-1, 1, 1, 1)
    return images, torch.ones(len(start), dtype=torch.int64), (images + EPS).clamp(0, 1)


@given(starts=st.lists(st.floats(0.25, 0.75), min_size=1, max_size=10), compact=st.booleans())
@settings(max_examples=100, deadline=None)
def test_strength_is_the_distance_to_the_wall(starts: list[float], compact: bool) -> None:
    images, labels, attacked = along(starts)
    model = Wall(0.5)
    clean_right = model(images).argmax(1) == labels
    found = segment_strength(model, images, labels, attacked, clean_right, EPS, steps=12, compact=compact)
    expected = (0.5 - images.flatten()).clamp(-EPS, EPS)
    assert (found <= expected + 1e-9).all()  # from the side where the model is right
    torch.testing.assert_close(found, expected, rtol=0, atol=EPS / 2**11)


def test_points_on_the_segment() -> None:
    images, _, attacked = along([0.5, 0.5, 0.98])
    points = segment_point(images, attacked, torch.tensor([0.05, -0.2, 0.5], dtype=torch.float64), EPS)
    torch.testing.assert_close(points.flatten(), torch.tensor([0.55, 0.3, 1.0], dtype=torch.float64))


def test_right_beyond_and_within_the_attack() -> None:
    images, labels, attacked = along([0.1, 0.25, 0.35, 0.45, 0.6])
    for distance in (0.2, 0.3, 0.06):
        found = is_right_at(Wall(0.5), images, labels, attacked, EPS, distance)
        assert found.tolist() == (images.flatten() + distance < 0.5).tolist()


def test_pruned_samples_are_replaced_or_missing() -> None:
    pruned = torch.tensor([True, False, True, False, False, True])
    assert pick_rows(pruned, 3, fill=True).tolist() == [1, 3, 4]
    assert pick_rows(pruned, 5, fill=True).tolist() == [1, 3, 4, 0, 2]
    assert pick_rows(pruned, 6, fill=False).tolist() == [1, 3, 4]
    assert pick_rows(pruned, 2, fill=False).tolist() == [1, 3]
    assert pick_rows(torch.ones(3, dtype=torch.bool), 3, fill=False).tolist() == []


@pytest.fixture
def walled(config: TrainConfig) -> TrainConfig:
    attack = replace(config.attack, eps=EPS, step_size=EPS / 2, steps=4)
    return replace(config, attack=attack, batch_size=4, online=OnlineConfig("ours", prune_fraction=0.5, probe_steps=2))


def batch_of(starts: list[float], config: TrainConfig) -> tuple[OnlineCandidates, InnerAttack]:
    images, labels, _ = along(starts)
    attack = InnerAttack(step_size=config.attack.step_size, steps=config.attack.steps, loss="cw", start=images)
    return OnlineCandidates(images, labels, Wall(0.5)(images)), attack


@pytest.mark.parametrize("mode", ["ours", "paper"])
def test_a_batch_is_chosen_attacked_and_measured(walled: TrainConfig, mode: str) -> None:
    walled = replace(walled, online=replace(walled.online, mode=mode))  # type: ignore[arg-type]
    candidates, attack = batch_of([0.1, 0.45, 0.15, 0.48, 0.6, 0.2], walled)  # rows 0, 2, 5 are right even 0.2 farther
    choose = choose_early if mode == "ours" else choose_late
    found = choose(Wall(0.5), candidates, attack, walled, 0.2, 4, pruning=True)
    values = found.samples.images.flatten()
    assert found.easy_share == 0.5
    assert found.pruned_share == (pytest.approx(1 / 3) if mode == "ours" else 0.5)  # one is filled in again
    assert values.tolist() == pytest.approx([0.45, 0.48, 0.6, 0.1] if mode == "ours" else [0.45, 0.48, 0.6])
    torch.testing.assert_close(found.attacked.flatten(), (values + EPS).clamp(0, 1))  # the whole attack, both halves
    torch.testing.assert_close(found.strength, (0.5 - values).clamp(-EPS, EPS), rtol=0, atol=EPS / 2**5)


def test_nothing_is_pruned_while_warming_up(walled: TrainConfig) -> None:
    candidates, attack = batch_of([0.1, 0.45, 0.15, 0.48], walled)
    found = choose_early(Wall(0.5), candidates, attack, walled, 0.2, 4, pruning=False)
    assert (found.easy_share, found.pruned_share) == (0.5, 0.0)
    assert len(found.samples.labels) == 4


def test_the_threshold_finds_the_quantile() -> None:
    margins = torch.rand(100_000, generator=torch.Generator().manual_seed(0)) * 0.4
    config = OnlineConfig("ours", prune_fraction=0.3)
    threshold = 2 * EPS
    for step in range(600):
        batch = margins[step * 128 : (step + 1) * 128]
        threshold = update_threshold(threshold, float((batch > threshold).double().mean()), EPS, config)
    assert threshold == pytest.approx(0.28, abs=0.02)  # 30 % of the margins lie above
    assert update_threshold(0.2, 0.9, EPS, OnlineConfig("paper")) == 0.2


def test_every_class_finds_its_own_quantile() -> None:
    """Margins of class c are uniform on [0, 0.2 (c + 1)]; class 2 is drawn a tenth as often."""
    rng = np.random.default_rng(0)
    config = OnlineConfig("ours", prune_fraction=0.3, per_class=True)
    thresholds = torch.full((3,), 2 * EPS, dtype=torch.float64)
    for _ in range(4000):
        labels = torch.from_numpy(rng.choice(3, size=128, p=[10 / 21, 10 / 21, 1 / 21]))
        margins = torch.from_numpy(rng.random(128)) * 0.2 * (labels + 1)
        easy = torch.bincount(labels[margins > thresholds[labels]], minlength=3)
        drawn = torch.bincount(labels, minlength=3)
        thresholds = update_class_thresholds(thresholds, easy, drawn, EPS, config)
    assert thresholds.tolist() == pytest.approx([0.14, 0.28, 0.42], abs=0.02)
    still = update_class_thresholds(thresholds, torch.zeros(3), torch.tensor([5, 5, 0]), EPS, config)
    assert still[2] == thresholds[2]  # a class that was not drawn


@pytest.mark.parametrize("mode", ["ours", "paper"])
def test_margins_by_the_averaged_model(walled: TrainConfig, mode: str) -> None:
    """The model that is trained has its wall at 0.5 and leads the attack, the average has it at 0.4 and measures."""
    walled = replace(walled, online=replace(walled.online, mode=mode))  # type: ignore[arg-type]
    candidates, attack = batch_of([0.05, 0.3, 0.15, 0.38, 0.45, 0.22], walled)
    candidates = replace(candidates, right=candidates.images.flatten() < 0.4)
    choose = choose_early if mode == "ours" else choose_late
    found = choose(Wall(0.5), candidates, attack, walled, 0.2, 4, pruning=True, judge=Wall(0.4))
    assert found.easy.tolist() == [True, False, True, False, False, False]
    values = found.samples.images.flatten()
    torch.testing.assert_close(found.strength, (0.4 - values).clamp(-EPS, EPS), rtol=0, atol=EPS / 2**5)
    each = choose(
        Wall(0.5), candidates, attack, walled, torch.tensor([0.2, 0.05, 0.5, 0.01, 0.5, 0.1]), 4, pruning=True
    )
    assert each.easy.tolist() == [True, True, False, True, False, True]


def test_candidates_leave_a_full_batch() -> None:
    assert OnlineConfig("ours", prune_fraction=0.2).candidates(256, 1) == 320
    assert OnlineConfig("ours", prune_fraction=0.3).candidates(64, 4) == 92
    assert OnlineConfig("ours", prune_fraction=0.0).candidates(256, 1) == 256
    assert OnlineConfig("paper").candidates(256, 1) == 256


@pytest.fixture
def online(config: TrainConfig) -> TrainConfig:
    return replace(config, online=OnlineConfig("ours", prune_fraction=0.25, warmup=0.3))


def test_a_run_prunes_after_the_warm_up_and_says_so(tmp_path: Path, pool_folder: Path, online: TrainConfig) -> None:
    run = start_run(online, [pool_folder], tmp_path / "run", show=False)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["online_pruned_share"] for line in lines[:3]] == [0, 0, 0]
    assert {"online_threshold", "online_strength_q10", "online_strength_q50", "online_negative_share"} <= set(lines[0])
    assert all(abs(line["online_strength_q90"]) <= online.attack.eps + 1e-6 for line in lines)
    assert not (run / "outcomes").exists()


@pytest.mark.parametrize("improved", [False, True])
@pytest.mark.parametrize("step", [1, 4])
def test_an_online_run_resumes_exactly(
    tmp_path: Path, pool_folder: Path, online: TrainConfig, step: int, improved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if improved:
        online = replace(online, online=replace(online.online, margins_by="average", per_class=True))
    whole = start_run(online, [pool_folder], tmp_path / "whole", show=False)
    with monkeypatch.context() as patch:
        die_after(step, patch)
        with pytest.raises(Killed):
            start_run(online, [pool_folder], tmp_path / "run", show=False)
    resume_run(tmp_path / "run", show=False)
    assert same_files(whole / "model.safetensors", tmp_path / "run" / "model.safetensors")
    thresholds = [
        [json.loads(line)["online_threshold"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in (whole, tmp_path / "run")
    ]
    assert thresholds[0] == thresholds[1]


def test_a_line_of_metrics_where_everything_was_pruned() -> None:
    line = summarize_online([OnlineSummary(1.0, 1.0, 0.3, torch.empty(0))])
    assert line == {"online_easy_share": 1.0, "online_pruned_share": 1.0, "online_threshold": 0.3}
    assert summarize_online([]) == {}


def test_a_batch_that_is_pruned_whole_teaches_nothing(walled: TrainConfig) -> None:
    config = replace(walled, online=OnlineConfig("paper", prune_at=0.01))
    images, labels, _ = along([0.1, 0.12, 0.15, 0.2])
    model = Wall(0.5)
    model.scale = nn.Parameter(torch.ones((), dtype=torch.float64))
    piece = TrainBatch(0, images, labels, torch.full((4,), EPS), np.arange(4), 4)
    processes = ProcessGroup(0, 1, torch.device("cpu"))
    outcome, trained, chosen = compute_online_loss(model, OnlineState(0.01), processes, images, labels, piece, config)
    assert (len(trained), chosen.pruned_share, outcome.loss.item()) == (0, 1.0, 0.0)
    outcome.loss.backward()  # type: ignore[no-untyped-call]
    assert model.scale.grad is not None
    assert float(model.scale.grad) == 0


def test_the_threshold_is_part_of_a_checkpoint(tmp_path: Path, pool_folder: Path, online: TrainConfig) -> None:
    run = start_run(online, [pool_folder], tmp_path / "run", show=False)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    state = make_train_state(
        make_model(online, RunFolder(run).read()[1]), online, ProcessGroup(0, 1, torch.device("cpu"))
    )
    progress = load_newest(run / "checkpoint", state.model, state.average, state.optimizer, tell=print)
    assert progress is not None
    assert progress.online_threshold == lines[-1]["online_threshold"]
    assert progress.online_threshold != 2 * online.attack.eps


def test_a_plan_is_used_for_what_it_keeps_only(
    tmp_path: Path, pool_folder: Path, online: TrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = Pool.open(pool_folder)
    plan = Plan(
        torch.arange(len(pool)), torch.ones(len(pool), dtype=torch.bool), torch.zeros(len(pool)), pool.fingerprint
    )
    start_run(online, [pool_folder], tmp_path / "run", plan=plan.save(tmp_path / "plan.parquet"), show=False)
    assert "online training finds strengths itself" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"loss": "pgd-at"}, "online needs loss trades"),
        ({"online": OnlineConfig("ours", prune_fraction=1.0)}, "online.prune_fraction and online.warmup must lie in"),
        ({"online": OnlineConfig("paper", per_class=True)}, "online.per_class needs online.mode ours"),
        ({"online": OnlineConfig("paper", prune_at=-1.0)}, "online.prune_at must not be negative"),
    ],
)
def test_bad_input(online: TrainConfig, change: dict[str, object], sentence: str) -> None:
    with pytest.raises(PumaError, match=sentence):
        check_train_config(replace(online, **change))  # type: ignore[arg-type]
