"""Precision that is chosen by a short trial, and BN folded away in the attack."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from puma.errors import PumaError
from puma.models import build
from puma.pools import Pool
from puma.processes import ProcessGroup
from puma.training import TrainConfig, precision
from puma.training import run as training_run
from puma.training.config import ComputeConfig, check_train_config
from puma.training.losses import InnerAttack, fold_for_attack
from puma.training.precision import PrecisionChoice, choose_precision, has_bf16
from puma.training.run import resume_run, start_run
from puma.training.run_folder import RunFolder

from .test_run import Killed, die_after, same_files


@pytest.fixture
def auto(config: TrainConfig) -> TrainConfig:
    return replace(config, compute=ComputeConfig(precision="auto"))


@pytest.mark.parametrize("chosen", ["fp32", "bf16"])
def test_a_run_is_the_one_of_the_precision_that_was_chosen(
    chosen: str, tmp_path: Path, pool_folder: Path, auto: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(*_: object) -> PrecisionChoice:
        return PrecisionChoice("bf16" if chosen == "bf16" else "fp32", 2.0, 1.0)

    def never(*_: object) -> PrecisionChoice:
        raise AssertionError("a resumed run chooses again")

    plain = replace(auto, compute=replace(auto.compute, precision="bf16" if chosen == "bf16" else "fp32"))
    expected = start_run(plain, [pool_folder], tmp_path / "expected", show=False)
    monkeypatch.setattr(training_run, "choose_precision", choose)
    with monkeypatch.context() as patch:
        die_after(4, patch)
        with pytest.raises(Killed):
            start_run(auto, [pool_folder], tmp_path / "run", show=False)
    monkeypatch.setattr(training_run, "choose_precision", never)
    run = resume_run(tmp_path / "run", auto, show=False)
    assert same_files(expected / "model.safetensors", run / "model.safetensors")
    assert RunFolder(run).read()[0].compute.precision == "auto"
    assert RunFolder(run).read_precision() == chosen
    RunFolder(run).write_precision({"precision": "fp8"})
    with pytest.raises(PumaError, match=r"precision.json is damaged: it names precision 'fp8'; delete it"):
        RunFolder(run).read_precision()


@pytest.mark.parametrize(("seconds", "chosen"), [((1.0, 0.5), "bf16"), ((1.0, 0.97), "fp32"), ((1.0, 2.0), "fp32")])
def test_the_faster_one_is_chosen_if_it_is_worth_it(
    seconds: tuple[float, float], chosen: str, pool: Pool, auto: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "has_bf16", lambda _: True)
    monkeypatch.setattr(precision, "_time_precisions", lambda *_: seconds)
    found = choose_precision(nn.Identity(), auto, pool, ProcessGroup())
    assert (found.precision, found.fp32_seconds, found.bf16_seconds) == (chosen, *seconds)
    assert found.describe().startswith(f"precision {chosen}: bf16 ran {seconds[0] / seconds[1]:.2f} times as fast")


def test_a_device_without_bf16_takes_fp32(pool: Pool, auto: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "has_bf16", lambda _: False)
    found = choose_precision(nn.Identity(), auto, pool, ProcessGroup())
    assert found.describe() == "precision fp32: this device does not compute in bf16"
    assert not has_bf16(torch.device("meta"))


def test_the_trial_leaves_the_model_alone(pool: Pool, auto: TrainConfig) -> None:
    model = build("small-8px", 10, channels=1).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    slow, fast = precision._time_precisions(model, auto, pool, torch.device("cpu"))
    assert min(slow, fast) > 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_attack_on_a_folded_copy_is_the_same_attack() -> None:
    """In double precision the two differ by rounding alone; the model and its statistics are left as they were."""
    torch.manual_seed(0)
    model = build("small-14px", 10, channels=1).double().train()
    images, labels = torch.rand(16, 1, 14, 14, dtype=torch.float64), torch.arange(16) % 10
    with torch.no_grad():
        model(images)  # statistics of their own
    before = {name: value.clone() for name, value in model.state_dict().items()}
    strength = torch.linspace(-0.1, 0.1, 16, dtype=torch.float64)
    attacked: list[Tensor] = []
    for fold in (False, True):
        attack = InnerAttack(0.02, 5, loss="ce", start=images, fold=fold)
        attacked.append(attack.perturb(model, images, labels, strength))
    torch.testing.assert_close(attacked[0], attacked[1], rtol=0, atol=1e-12)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Untraceable(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images if images.sum() > 0 else -images


def test_what_cannot_be_folded_is_told(config: TrainConfig) -> None:
    with pytest.raises(PumaError, match=r"compute.fold_batchnorm: the model cannot be traced \(.*\); leave it out"):
        fold_for_attack(Untraceable())
    wrong = replace(
        config, attack=replace(config.attack, batchnorm="batch"), compute=ComputeConfig(fold_batchnorm=True)
    )
    with pytest.raises(PumaError, match=r"compute\.fold_batchnorm needs attack\.batchnorm eval"):
        check_train_config(wrong)


def test_a_run_with_folding(tmp_path: Path, pool_folder: Path, config: TrainConfig) -> None:
    folded = replace(config, compute=ComputeConfig(fold_batchnorm=True))
    one, two = (start_run(asked, [pool_folder], tmp_path / name, show=False)
                for name, asked in (("plain", config), ("folded", folded)))  # fmt: skip
    losses = [RunFolder(run).read_metrics()[0]["loss"] for run in (one, two)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
