from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import puma
from puma import Plan, Pool, PumaError
from puma.training import TrainConfig
from puma.training.batches import load_samples
from puma.training.config import check_train_config


class Wrapped(nn.Module):
    """A net that gives its logits inside something else."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.kind, self.linear = kind, nn.Linear(64, 10)

    def forward(self, images: Tensor) -> object:
        logits = self.linear(images.flatten(1))
        return {"logits": logits} if self.kind is dict else (logits,)


@pytest.mark.parametrize("kind", [tuple, dict])
def test_a_net_that_gives_no_tensor_is_told(kind: type, tmp_path: Path, pool_folder: Path, config: TrainConfig) -> None:
    sentence = f"must give its logits as one tensor, it gave {kind.__name__}"
    with pytest.raises(PumaError, match=sentence):
        puma.train(Wrapped(kind), pool_folder, recipe=config, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    for batchnorm in ("eval", "batch"):
        with pytest.raises(PumaError, match=r"logits|model must give"):
            puma.trades_loss(
                Wrapped(kind),
                torch.rand(4, 1, 8, 8),
                torch.arange(4),
                0.1,
                batchnorm=batchnorm,
            )


def test_eps_beyond_the_pixels_is_refused() -> None:
    config = TrainConfig()
    with pytest.raises(PumaError, match=r"larger than the range of the pixels, \[0, 1\]; did you mean 8/255 = 0.03137"):
        check_train_config(replace(config, attack=replace(config.attack, eps=8.0)))
    check_train_config(replace(config, attack=replace(config.attack, eps=8.0, norm="l2")))


def test_a_plan_for_another_eps_and_a_net_for_other_images_are_said(
    tmp_path: Path, pool: Pool, pool_folder: Path, config: TrainConfig
) -> None:
    keep = torch.ones(96, dtype=torch.bool)

    def warn(strength: float, model: str = "small-8px", **made_from: str) -> tuple[str, ...]:
        plan = Plan(torch.arange(96), keep, torch.full((96,), strength), pool.fingerprint, made_from)
        asked = replace(config, model=model)
        return load_samples(asked, [pool_folder], plan.save(tmp_path / "plan.parquet")).warnings

    assert warn(0.1) == ()
    assert warn(0.05, **{"strength.eps": "0.1"}) == ()
    for warnings in (warn(0.2), warn(0.05, **{"strength.eps": "0.2"})):
        assert warnings == ("the plan was made for eps 0.2, attack.eps is 0.1: held-out images are attacked at that",)
    assert warn(0.1, "small-14px") == ("model small-14px is made for images of 14 px, these have 8 x 8",)
