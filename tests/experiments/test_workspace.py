"""Stages: what is in their files, and that each is made once."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conftest import Run
from puma.experiments.presets import Changes, Setting, changed
from puma.experiments.spec import REAL_ONLY, TRADES, Measured, Model, Online, pruned, puma
from puma.experiments.workspace import Workspace, plan_counts
from puma.planning import Plan, adaptive_strength
from puma.pools import Origin, open_pools
from puma.scores.table import open_scores
from puma.training import run as training_run
from puma.training.run_folder import RunFolder

COMMAND = [sys.executable, "-m", "puma", "run", "tab-gap", "--preset", "smoke", "--samples-seen", "512"]


@pytest.mark.parametrize(("gap", "eps"), [(0.0, 1.0), (1 / 8, 1.0), (0.0, 0.75), (0.0, 1.25)])
def test_strengths_follow_equations_2_and_3(gap: float, eps: float, workspace: Workspace) -> None:
    model = puma(0.2, by=TRADES, gap=gap, eps=eps)
    pools = workspace.images(model).pools
    assert model.planned is not None
    plan = Plan.open(workspace.plan(model.planned, pools, 0))
    pool = open_pools(pools)
    margin = torch.from_numpy(open_scores(workspace.margins(Measured(TRADES), pools, 0), "margin").of(pool))
    assert torch.equal(plan.strength, adaptive_strength(margin, eps * 0.1, gap=gap * 0.1))
    assert int((~plan.keep).sum()) == int(0.2 * len(pool))
    assert float(margin[plan.keep].max()) <= float(margin[~plan.keep].min())


def test_shares_of_a_plan(workspace: Workspace) -> None:
    model = pruned(easy=0.22, difficult=0.12)
    assert model.planned is not None
    path = workspace.plan(model.planned, workspace.images(model).pools, 0)
    plan = Plan.open(path)
    counts = plan_counts(path, 0.1)
    assert counts == {"kept_share": float(plan.keep.double().mean()), "weakened_share": 0.0, "helped_share": 0.0}
    assert bool((plan.strength == 0.1).all())


def test_configurations(workspace: Workspace) -> None:
    pools = workspace.images(TRADES).pools
    assert [int(origin) for origin in set(open_pools(pools).origin.tolist())] == [Origin.REAL, Origin.GENERATED]
    usual = workspace.config(TRADES, 5, pools)
    assert (usual.seed, usual.generated_fraction, usual.held_out) == (5, 0.7, 100)
    assert workspace.config(REAL_ONLY, 0, workspace.images(REAL_ONLY).pools).generated_fraction == 0
    assert workspace.config(Model(net="second"), 0, pools).model == "small-14px"
    online = workspace.config(Model(online=Online("paper", 3.25)), 0, pools).online
    assert online.mode == "paper"
    assert online.prune_at == pytest.approx(0.325)
    shifted = replace(workspace, setting=changed(workspace.setting, Changes(eps=0.05, batch_size=32)))
    config = shifted.config(TRADES, 0, pools)
    assert (config.attack.eps, config.attack.step_size, config.batch_size) == (0.05, 0.025, 32)
    assert shifted.setting.changed == "batch_size 32, eps 0.05"


def test_a_stage_is_made_once_and_other_settings_are_other_stages(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = workspace.trained(puma(0.2, by=TRADES), 0)
    assert RunFolder(run).read()[1].plan is not None

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a finished stage was made again")

    monkeypatch.setattr(training_run, "train", never)
    monkeypatch.setattr("puma.experiments.workspace.measure_pool", never)
    monkeypatch.setattr("puma.experiments.workspace.make_plan", never)
    assert workspace.trained(puma(0.2, by=TRADES), 0) == run
    longer: Setting = changed(workspace.setting, Changes(samples_seen=2560))
    with pytest.raises(AssertionError, match="made again"):
        replace(workspace, setting=longer).trained(TRADES, 0)
    with pytest.raises(AssertionError, match="made again"):
        workspace.trained(TRADES, 77)


def test_iterated_margins_are_those_of_the_first_result(workspace: Workspace) -> None:
    first = puma(0.2, by=TRADES)
    pools = workspace.images(first).pools
    by_first = workspace.margins(Measured(first), pools, 0)
    by_trades = workspace.margins(Measured(TRADES), pools, 0)
    assert by_first != by_trades
    again = puma(0.2, by=first).planned
    assert again is not None
    plan = Plan.open(workspace.plan(again, pools, 0))
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
    setting = changed(workspace.setting, Changes(samples_seen=128))
    together = Workspace(tmp_path / "work", setting, tmp_path, processes=2)
    run = together.trained(REAL_ONLY, 0)
    assert (run / "model.safetensors").is_file()
    assert len(list((run / "outcomes").glob("clean-*-of-2.bits"))) == 2
    pools = together.images(REAL_ONLY).pools
    margins = together.margins(Measured(REAL_ONLY), pools, 0)
    assert len(open_scores(margins, "margin")) == len(open_pools(pools))
