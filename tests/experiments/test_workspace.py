"""Stages: what is in their files, and that each is made once."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from matplotlib.axes import Axes

from conftest import Run
from puma.errors import PumaError
from puma.experiments.experiment_run import summarise_margin_file
from puma.experiments.images import ImageLibrary
from puma.experiments.presets import ExperimentSetting, GeneratedImages, SettingChanges, change_setting, find_setting
from puma.experiments.results import ResultOrigin, ResultSummary, draw_lines
from puma.experiments.spec import (
    REAL_ONLY,
    TRADES,
    MarginSpec,
    ModelSpec,
    OnlineSpec,
    PlanSpec,
    specify_pruning,
    specify_puma,
)
from puma.experiments.workspace import Workspace, list_changes, summarise_plan
from puma.files import lock
from puma.margins import Margins, measure_margins
from puma.planning import Plan, adaptive_strength
from puma.pools import Origin, Pool, open_pools, to_unit
from puma.pools.writer import PoolPart, write_parts
from puma.scores.score_table import open_scores
from puma.training import TrainConfig, load_model
from puma.training import run as training_run
from puma.training.config import AttackConfig
from puma.training.run_folder import RunFolder

COMMAND = [sys.executable, "-m", "puma", "run", "tab-gap", "--preset", "smoke", "--samples-seen", "512"]


@pytest.mark.parametrize(("gap", "eps"), [(0.0, 1.0), (1 / 8, 1.0), (0.0, 0.75), (0.0, 1.25)])
def test_strengths_follow_equations_2_and_3(gap: float, eps: float, workspace: Workspace) -> None:
    model = specify_puma(0.2, by=TRADES, gap=gap, eps=eps)
    pools = workspace.find_pools(model).pools
    assert model.plan is not None
    plan = Plan.open(workspace.make_plan(model.plan, pools, 0))
    pool = open_pools(pools)
    margin = torch.from_numpy(open_scores(workspace.measure_margins(MarginSpec(TRADES), pools, 0), "margin").of(pool))
    assert torch.equal(plan.strength, adaptive_strength(margin, eps * 0.1, gap=gap * 0.1))
    assert int((~plan.keep).sum()) == int(0.2 * len(pool))
    assert float(margin[plan.keep].max()) <= float(margin[~plan.keep].min())


def test_shares_of_a_plan(workspace: Workspace) -> None:
    model = specify_pruning(easy=0.22, difficult=0.12)
    assert model.plan is not None
    path = workspace.make_plan(model.plan, workspace.find_pools(model).pools, 0)
    plan = Plan.open(path)
    counts = summarise_plan(path, 0.1)
    assert counts == {"kept_share": float(plan.keep.double().mean()), "weakened_share": 0.0, "helped_share": 0.0}
    assert bool((plan.strength == 0.1).all())


def test_configurations(workspace: Workspace) -> None:
    pools = workspace.find_pools(TRADES).pools
    assert [int(origin) for origin in set(open_pools(pools).origin.tolist())] == [Origin.REAL, Origin.GENERATED]
    usual = workspace.resolve_config(TRADES, 5, pools)
    assert (usual.seed, usual.generated_fraction, usual.held_out) == (5, 0.7, 100)
    assert workspace.resolve_config(REAL_ONLY, 0, workspace.find_pools(REAL_ONLY).pools).generated_fraction == 0
    assert workspace.resolve_config(ModelSpec(net="second"), 0, pools).model == "small-14px"
    online = workspace.resolve_config(ModelSpec(online=OnlineSpec("paper", 3.25)), 0, pools).online
    assert online.mode == "paper"
    assert online.prune_at == pytest.approx(0.325)
    shifted = replace(workspace, setting=change_setting(workspace.setting, SettingChanges(eps=0.05, batch_size=32)))
    config = shifted.resolve_config(TRADES, 0, pools)
    assert (config.attack.eps, config.attack.step_size, config.batch_size) == (0.05, 0.025, 32)
    assert shifted.setting.changed == "batch_size 32, eps 0.05"
    half = replace(workspace, setting=change_setting(workspace.setting, SettingChanges(precision="bf16")))
    assert half.resolve_config(TRADES, 0, pools).compute.precision == "bf16"
    assert half.setting.changed == "precision bf16"


def test_a_stage_is_made_once_and_other_settings_are_other_stages(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = workspace.train_model(specify_puma(0.2, by=TRADES), 0)
    assert RunFolder(run).read()[1].plan is not None

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a finished stage was made again")

    monkeypatch.setattr(training_run, "_train_to_end", never)
    monkeypatch.setattr("puma.experiments.workspace.measure_pool", never)
    monkeypatch.setattr("puma.experiments.workspace.build_plan", never)
    assert workspace.train_model(specify_puma(0.2, by=TRADES), 0) == run
    longer: ExperimentSetting = change_setting(workspace.setting, SettingChanges(samples_seen=2560))
    with pytest.raises(AssertionError, match="made again"):
        replace(workspace, setting=longer).train_model(TRADES, 0)
    with pytest.raises(AssertionError, match="made again"):
        workspace.train_model(TRADES, 77)


def test_only_settings_that_were_changed_name_a_stage() -> None:
    config = replace(TrainConfig(), seed=3, attack=AttackConfig(steps=7))
    assert list_changes(config) == {"seed": 3, "attack": {"steps": 7}}
    assert list_changes(TrainConfig()) == {}


def test_a_seed_has_its_own_margins_plans_and_draws(workspace: Workspace) -> None:
    pools = workspace.find_pools(TRADES).pools
    pool = open_pools(pools)
    for seed in (0, 1):
        plan = Plan.open(workspace.make_plan(PlanSpec(easy=0.2, margins=MarginSpec(TRADES)), pools, seed))
        model = load_model(str(workspace.train_model(TRADES, seed)), 10, channels=1)
        margin = open_scores(workspace.measure_margins(MarginSpec(TRADES), pools, seed), "margin").of(pool)
        batch = pool.batch(range(16))
        again = measure_margins(model, to_unit(batch.images), batch.labels).margin
        assert torch.allclose(again, torch.from_numpy(margin[:16]), rtol=0.01)
        assert torch.equal(plan.strength, adaptive_strength(torch.from_numpy(margin), 0.1))
    drawn = [
        Plan.open(workspace.make_plan(PlanSpec(random=0.3, strength="constant"), pools, seed)).keep for seed in (0, 1)
    ]
    assert not torch.equal(drawn[0], drawn[1])
    settings = [workspace.resolve_config(TRADES, seed, pools).seed for seed in (0, 1)]
    assert settings == [0, 1]
    told = [
        json.loads((workspace.evaluate_model(TRADES, seed) / "metrics.json").read_text())["seed"] for seed in (0, 1)
    ]
    assert told == [0, 1]


def test_plans_that_differ_in_anything_are_different_files(workspace: Workspace) -> None:
    pools = workspace.find_pools(TRADES).pools
    base = PlanSpec(easy=0.2, score="cd_clean", strength="margin", margins=MarginSpec(TRADES))
    others = [
        base,
        replace(base, easy=0.3),
        replace(base, difficult=0.1),
        replace(base, score="margin"),
        replace(base, score="cd_adversarial"),
        replace(base, strength="margin-if-difficult"),
        replace(base, eps=0.5),
        replace(base, gap=0.1),
        replace(base, margins=MarginSpec(TRADES, "fast")),
        replace(base, margins=MarginSpec(REAL_ONLY)),
    ]
    assert len({workspace.make_plan(planned, pools, 0) for planned in others}) == len(others)


def test_stand_ins_are_other_images_than_the_real_ones(tmp_path: Path) -> None:
    setting = replace(find_setting("small-real"), real=40, generated={"usual": GeneratedImages("none", 25)})
    images = np.random.default_rng(0).integers(256, size=(100, 14, 14, 1)).astype(np.uint8)
    labels = np.arange(100) % 10
    for part in ("train", "test"):
        described = PoolPart([(images, labels)], [str(label) for label in range(10)], 100)
        write_parts({"": described}, tmp_path / "data" / "fashion-mnist-14px" / part)
    whole = Pool.open(tmp_path / "data/fashion-mnist-14px/train").batch(range(100)).images.numpy().tobytes()
    places = ImageLibrary(tmp_path / "data", tmp_path / "work", setting).find_pools("usual")
    real, other = (Pool.open(path) for path in places.pools)
    assert (len(real), len(other)) == (40, 25)
    assert set(other.origin) == {Origin.GENERATED}
    tiles = [{image.tobytes() for image in pool.batch(range(len(pool))).images.numpy()} for pool in (real, other)]
    assert not tiles[0] & tiles[1]
    assert all(tile in whole for tile in tiles[0] | tiles[1])


def test_numbers_of_margins(tmp_path: Path) -> None:
    margin = torch.tensor([-0.3, -0.1, 0.05, 0.1, 0.2, 0.4, torch.inf])
    status = torch.tensor([0, 0, 0, 0, 0, 0, 1], dtype=torch.int8)
    zeros = torch.zeros(7, dtype=torch.int64)
    made_from = {"norm": "linf", "method": "deepfool"}
    Margins(margin, status, zeros, zeros, zeros, zeros, zeros, torch.arange(7), made_from).save(tmp_path / "m.parquet")
    found = summarise_margin_file(tmp_path / "m.parquet", 0.1)
    assert found["margin_q50"] == pytest.approx(0.075)
    assert found["crossed_share"] == pytest.approx(6 / 7)
    assert found["negative_share"] == pytest.approx(2 / 7)
    assert found["below_eps_share"] == pytest.approx(3 / 7)


def test_lines_are_drawn_in_percent_over_their_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[list[float], list[float], list[float], str]] = []

    def note(self: Axes, x: list[float], y: list[float], *, yerr: list[float], label: str, **_: object) -> None:
        drawn.append((x, y, yerr, label))

    monkeypatch.setattr(Axes, "errorbar", note)
    lines = [
        ResultSummary(ResultOrigin("fig", "small", "digits"), "a", at, "clean_accuracy", by_seed, None, "")
        for at, by_seed in {0.2: {0: 0.5, 1: 0.7}, 0.1: {0: 0.4}, None: {0: 0.9}}.items()
    ]
    draw_lines(lines, {"clean_accuracy": "accuracy"}, tmp_path / "x.png", title="t", axis="pruned")
    ((x, y, spread, label),) = drawn
    assert (x, label) == ([0.1, 0.2], "a")
    assert y == pytest.approx([40, 60])
    assert spread == pytest.approx([0, 100 * 0.02**0.5])


def test_a_moved_work_folder_goes_on(
    tmp_path: Path, setting: ExperimentSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = change_setting(setting, SettingChanges(samples_seen=128))
    before = Workspace(tmp_path / "before", short, tmp_path)
    name = before.train_model(specify_puma(0.2, by=TRADES), 0).name
    (tmp_path / "before").rename(tmp_path / "after")

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a finished stage was made again")

    monkeypatch.setattr(training_run, "run_steps", never)
    run = Workspace(tmp_path / "after", short, tmp_path).train_model(specify_puma(0.2, by=TRADES), 0)
    assert run == tmp_path / "after" / "runs" / name
    assert "before" not in (run / "config.json").read_text()


def test_damaged_stages(tmp_path: Path, setting: ExperimentSetting) -> None:
    workspace = Workspace(tmp_path, change_setting(setting, SettingChanges(samples_seen=128)), tmp_path)
    model = specify_puma(0.2, by=TRADES)
    metrics = workspace.evaluate_model(model, 0) / "metrics.json"
    whole = metrics.read_text()
    for damaged in (whole[:50], "[]", ""):
        metrics.write_text(damaged)
        workspace.evaluate_model(model, 0)
        assert metrics.read_text() == whole
    margins = workspace.measure_margins(MarginSpec(TRADES), workspace.find_pools(model).pools, 0)
    margins.write_bytes(margins.read_bytes()[:100])
    with pytest.raises(PumaError, match=f"delete {margins}, and the same command makes it again"):
        workspace.train_model(specify_puma(0.3, by=TRADES), 0)


def test_a_child_that_outlives_us_keeps_the_lock(tmp_path: Path) -> None:
    with lock(tmp_path / "stage", wait=True) as held:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(held,))
    with (tmp_path / ".stage.lock").open("w") as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        child.communicate(b"\n")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_an_interrupted_run_takes_its_processes_along(tmp_path: Path) -> None:
    """Terminate it while two processes train: none of them is left, and the same command can go on at once."""
    words = [*COMMAND[:-1], "200000", "--processes", "2", "--work", "work", "--out", "out"]
    process = subprocess.Popen(words, cwd=tmp_path, env=_environment(), stderr=subprocess.DEVNULL)
    end = time.monotonic() + 100
    while not list(tmp_path.glob("work/runs/*/metrics.jsonl")) and time.monotonic() < end:
        assert process.poll() is None
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 3  # torchrun and its two processes
    process.terminate()  # not SIGINT, which is ignored by what a shell has started in the background
    assert process.wait() == 143
    psutil.wait_procs(family, timeout=20)
    assert not [member for member in family if member.is_running() and member.status() != psutil.STATUS_ZOMBIE]


def test_iterated_margins_are_those_of_the_first_result(workspace: Workspace) -> None:
    first = specify_puma(0.2, by=TRADES)
    pools = workspace.find_pools(first).pools
    by_first = workspace.measure_margins(MarginSpec(first), pools, 0)
    by_trades = workspace.measure_margins(MarginSpec(TRADES), pools, 0)
    assert by_first != by_trades
    again = specify_puma(0.2, by=first).plan
    assert again is not None
    plan = Plan.open(workspace.make_plan(again, pools, 0))
    margin = torch.from_numpy(open_scores(by_first, "margin").of(open_pools(pools)))
    assert torch.equal(plan.strength, adaptive_strength(margin, 0.1))


def _environment() -> dict[str, str]:
    source = str(Path(__file__).parents[2] / "src")
    return {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}


def test_a_killed_run_goes_on_to_the_same_numbers(tmp_path: Path, puma: Run) -> None:
    """Kill at two moments; then another process takes it up. The first run of all is undisturbed."""
    work = str(tmp_path / "undisturbed-work")
    assert puma(*COMMAND[3:], "--work", work, "--out", str(tmp_path / "undisturbed"))[0] == 0
    words = [*COMMAND, "--work", "work", "--out", "out"]
    for moment in ("runs/*/metrics.jsonl", "plans/*.parquet"):
        process = subprocess.Popen(words, cwd=tmp_path, env=_environment(), stderr=subprocess.DEVNULL)
        end = time.monotonic() + 100
        while process.poll() is None and not list((tmp_path / "work").glob(moment)) and time.monotonic() < end:
            pass
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, moment
    subprocess.run(words, cwd=tmp_path, env=_environment(), check=True, capture_output=True)
    assert (tmp_path / "out/tab-gap.csv").read_text() == (tmp_path / "undisturbed/tab-gap.csv").read_text()


def test_two_at_the_same_time_share_the_work(tmp_path: Path) -> None:
    words = [*COMMAND, "--work", "work", "--out"]
    both = [subprocess.Popen([*words, out], cwd=tmp_path, env=_environment(), stderr=subprocess.PIPE) for out in "ab"]
    errors = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    assert (tmp_path / "a/tab-gap.csv").read_text() == (tmp_path / "b/tab-gap.csv").read_text()
    assert len(list((tmp_path / "work/runs").glob("[a-z]*"))) == 3  # the margin model and two rows


def test_several_processes_train_and_measure(tmp_path: Path, workspace: Workspace) -> None:
    """Run torchrun for real: two processes on this machine."""
    setting = change_setting(workspace.setting, SettingChanges(samples_seen=128))
    together = Workspace(tmp_path / "work", setting, tmp_path, processes=2)
    run = together.train_model(REAL_ONLY, 0)
    assert (run / "model.safetensors").is_file()
    assert len(list((run / "outcomes").glob("clean-*-of-2.bits"))) == 2
    pools = together.find_pools(REAL_ONLY).pools
    margins = together.measure_margins(MarginSpec(REAL_ONLY), pools, 0)
    assert len(open_scores(margins, "margin")) == len(open_pools(pools))


def test_wrong_labels_and_the_filter_against_them(workspace: Workspace) -> None:
    plain = Pool.open(workspace.find_pools(TRADES).pools[-1])
    noisy_place = workspace.find_pools(ModelSpec(noise=0.4)).pools[-1]
    noisy = Pool.open(noisy_place)
    wrong = noisy.labels != plain.labels
    assert int(wrong.sum()) == int(0.4 * len(plain))
    assert torch.equal(noisy.batch(np.arange(len(noisy))).images, plain.batch(np.arange(len(plain))).images)
    assert (
        len({(int(right), int(told)) for right, told in zip(plain.labels[wrong], noisy.labels[wrong], strict=True)})
        > 50
    )
    found = workspace.find_pools(ModelSpec(noise=0.4, filtered=True))
    kept = Pool.open(found.pools[-1])
    judge = load_model(workspace.train_model(REAL_ONLY, 0))
    with torch.no_grad():
        answers = judge(to_unit(noisy.batch(np.arange(len(noisy))).images)).argmax(1).numpy()
    agreed = np.flatnonzero(answers == noisy.labels)
    assert torch.equal(kept.batch(np.arange(len(kept))).images, noisy.batch(agreed).images)
    assert np.array_equal(kept.labels, noisy.labels[agreed])
    assert len(found.notes) == len(workspace.find_pools(TRADES).notes) + 2
    assert workspace.find_pools(ModelSpec(generated="none", noise=0.4)) == workspace.find_pools(REAL_ONLY)


def test_a_margin_model_may_be_trained_for_another_length(workspace: Workspace) -> None:
    pools = workspace.find_pools(TRADES).pools
    usual = workspace.resolve_config(TRADES, 0, pools)
    half = workspace.resolve_config(ModelSpec(length=0.5), 0, pools)
    assert half == replace(usual, samples_seen=usual.samples_seen // 2)
