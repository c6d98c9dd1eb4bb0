from pathlib import Path

import pytest
import torch
from torch import nn

from puma import PumaError
from puma.models.ema import copy_for_ema
from puma.training.checkpoint import TrainProgress, list_checkpoints, load_newest, save_checkpoint
from puma.training.config import OptimizerConfig
from puma.training.optimizer import make_sgd, momentum_buffers


def trained(seed: int) -> tuple[nn.Module, nn.Module, torch.optim.SGD]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    average = copy_for_ema(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    optimizer = make_sgd(model, OptimizerConfig())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return model, average, optimizer


def save_steps(folder: Path, *steps: int) -> None:
    for step in steps:
        save_checkpoint(folder, *trained(step), TrainProgress(step, 0.5, {"scale": 3.0}))


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_everything_comes_back(tmp_path: Path) -> None:
    save_steps(tmp_path, 7)
    saved, restored = trained(7), trained(8)
    assert load_newest(tmp_path, *restored, tell=pytest.fail) == TrainProgress(7, 0.5, {"scale": 3.0})
    assert_same(saved[0].state_dict(), restored[0].state_dict())
    assert_same(saved[1].state_dict(), restored[1].state_dict())
    assert_same(momentum_buffers(saved[2], saved[0]), momentum_buffers(restored[2], restored[0]))


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 2, 3, 12)
    assert [path.name for path in list_checkpoints(tmp_path)] == [
        "step-0000000012.safetensors",
        "step-0000000003.safetensors",
    ]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("length", [0, 4, 100, -1])
def test_one_cut_short_falls_back_and_says_so(tmp_path: Path, length: int) -> None:
    save_steps(tmp_path, 4, 5)
    newest = list_checkpoints(tmp_path)[0]
    newest.write_bytes(newest.read_bytes()[:length])
    told: list[str] = []
    restored = trained(8)
    progress = load_newest(tmp_path, *restored, tell=told.append)
    assert progress is not None
    assert progress.step == 4
    assert_same(trained(4)[0].state_dict(), restored[0].state_dict())
    assert len(told) == 1
    assert "step-0000000005.safetensors is damaged" in told[0]
    assert "going back" in told[0]


def test_no_checkpoint_is_none_and_only_damaged_ones_raise(tmp_path: Path) -> None:
    assert load_newest(tmp_path / "absent", *trained(0), tell=pytest.fail) is None
    save_steps(tmp_path, 4, 5)
    for path in list_checkpoints(tmp_path):
        path.write_bytes(b"short")
    with pytest.raises(PumaError, match="none of the 2 checkpoints"):
        load_newest(tmp_path, *trained(0), tell=lambda _: None)


def test_a_checkpoint_of_another_net_raises(tmp_path: Path) -> None:
    save_steps(tmp_path, 1)
    model = nn.Linear(2, 2)
    with pytest.raises(PumaError, match="does not fit the model"):
        load_newest(tmp_path, model, copy_for_ema(model), make_sgd(model, OptimizerConfig()), tell=pytest.fail)
