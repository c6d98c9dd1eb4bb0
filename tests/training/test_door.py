from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import puma
from puma import Plan, Pool, PumaError
from puma.training import TrainConfig
from puma.training.config import override_config
from puma.training.run import start_run

from .test_run import same_files


def small_net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.SiLU(), nn.Linear(16, 10))


def test_a_name_and_a_folder_train_what_the_command_trains(
    tmp_path: Path, pool_folder: Path, config: TrainConfig
) -> None:
    run = puma.train("small-8px", pool_folder, recipe=config, out=tmp_path / "door")
    same = start_run(config, [pool_folder], tmp_path / "verb", show=False)
    assert same_files(run.path / "model.safetensors", same / "model.safetensors")
    assert [line["step"] for line in run.metrics] == list(range(1, 9))
    accuracy = run.evaluate(pool_folder)
    assert set(accuracy) == {"clean", "cw"}
    assert accuracy["cw"] <= accuracy["clean"]
    assert repr(run).startswith(f"Run('{tmp_path / 'door'}': small-8px, 128 samples, loss ")
    assert "\n" not in repr(run)


def test_a_module_with_a_pool_and_a_plan_in_memory(tmp_path: Path, pool: Pool, config: TrainConfig) -> None:
    net, part = small_net(), pool.subset(torch.arange(96) < 80)
    before = [parameter.clone() for parameter in net.parameters()]
    plan = Plan(torch.arange(80), torch.arange(80) % 4 > 0, torch.full((80,), 0.05), part.fingerprint)
    run = puma.train(net, part, plan=plan, recipe=config, out=tmp_path / "run")
    assert all(torch.equal(old, new) for old, new in zip(before, net.parameters(), strict=True))
    assert run.model(torch.rand(2, 1, 8, 8)).shape == (2, 10)
    assert [(link.role, link.kind) for link in run.links] == [("pool", "pool"), ("plan", "plan"), ("model", "model")]
    written = (run.path / "model.safetensors").stat().st_mtime_ns
    again = puma.train(small_net(), part, plan=plan, recipe=config, out=tmp_path / "run")
    assert (again.path / "model.safetensors").stat().st_mtime_ns == written
    with pytest.raises(PumaError, match=r"call puma\.train with them again"):
        puma.training.run.resume_run(run.path)
    for change, sentence in (
        ({"seed": 4}, "other settings"),
        ({"plan": replace(plan, strength=plan.strength / 2)}, "another plan"),
    ):
        with pytest.raises(PumaError, match=sentence):
            puma.train(small_net(), part, **{"plan": plan, "recipe": config, "out": run.path, **change})  # type: ignore[arg-type]
    other = small_net()
    next(other.parameters()).data.zero_()
    with pytest.raises(PumaError, match="another net, or other first weights"):
        puma.train(other, part, plan=plan, recipe=config, out=run.path)


def test_settings_by_their_names() -> None:
    changed = override_config(
        TrainConfig(), {"samples_seen": 1e6, "eps": 0.1, "attack": {"steps": 3}, "optimizer.lr": 0.3, "device": "cpu"}
    )
    assert (changed.samples_seen, changed.attack.eps, changed.attack.steps) == (1_000_000, 0.1, 3)
    assert changed.optimizer.lr == 0.3
    for name, sentence in (("sample_seen", "did you mean 'samples_seen'"), ("warmup", "unknown setting 'warmup'")):
        with pytest.raises(PumaError, match=sentence):
            override_config(TrainConfig(), {name: 1})
    with pytest.raises(PumaError, match=r"setting attack\.steps must be int, got 'many'"):
        override_config(TrainConfig(), {"attack": {"steps": "many"}})


def test_trades_loss_has_the_usual_defaults() -> None:
    images, labels = torch.rand(6, 1, 8, 8), torch.arange(6)
    one, two = (torch.Generator().manual_seed(1) for _ in range(2))
    usual = puma.trades_loss(small_net(), images, labels, 0.1, generator=one)
    told = puma.trades_loss(small_net(), images, labels, 0.1, beta=5.0, step_size=0.025, steps=10, generator=two)
    assert torch.equal(usual, told)
    assert puma.trades_loss(small_net(), images, labels, 0.0).isfinite()
