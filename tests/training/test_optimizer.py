import pytest
import torch
from torch import nn

from puma.training.config import Decay, OptimizerConfig, ScheduleConfig
from puma.training.optimizer import decay_groups, make_sgd, momentum_buffers, one_cycle, rate_at, restore_momentum


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.bn1 = nn.BatchNorm2d(2)
        self.batchnorm_like_name = nn.Linear(2, 2)
        self.group = nn.GroupNorm(1, 2)


@pytest.mark.parametrize(
    ("decay", "spared"),
    [
        ("weights", {"conv.bias", "bn1.weight", "bn1.bias", "batchnorm_like_name.bias", "group.weight", "group.bias"}),
        ("all-but-norms", {"bn1.weight", "bn1.bias", "group.weight", "group.bias"}),
        ("all", set()),
    ],
)
def test_layers_are_spared_by_their_type(decay: Decay, spared: set[str]) -> None:
    model = Net()
    names = {parameter: name for name, parameter in model.named_parameters()}
    decayed, free = decay_groups(model, decay)
    assert {names[parameter] for parameter in free} == spared
    assert {names[parameter] for parameter in decayed} == set(names.values()) - spared


def test_a_shared_parameter_is_updated_once() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    decayed, spared = decay_groups(nn.Sequential(first, second), "weights")
    assert len(decayed) == 1
    assert len(spared) == 2


def test_sgd_is_nesterov_with_decay_against_a_hand_computation() -> None:
    model = nn.Linear(1, 1)
    model.weight.data.fill_(2.0)
    model.bias.data.fill_(2.0)
    optimizer = make_sgd(model, OptimizerConfig(lr=0.1, momentum=0.5, weight_decay=0.25))
    weight, bias, weight_speed, bias_speed = 2.0, 2.0, 0.0, 0.0
    for step in range(3):
        model.weight.grad, model.bias.grad = torch.tensor([[1.0 + step]]), torch.tensor([1.0 + step])
        optimizer.step()
        weight_gradient, bias_gradient = 1.0 + step + 0.25 * weight, 1.0 + step
        weight_speed = weight_gradient if step == 0 else 0.5 * weight_speed + weight_gradient
        bias_speed = bias_gradient if step == 0 else 0.5 * bias_speed + bias_gradient
        weight -= 0.1 * (weight_gradient + 0.5 * weight_speed)
        bias -= 0.1 * (bias_gradient + 0.5 * bias_speed)
    assert model.weight.item() == pytest.approx(weight, rel=1e-6)
    assert model.bias.item() == pytest.approx(bias, rel=1e-6)


def test_momentum_is_carried_over() -> None:
    model = Net()
    optimizer = make_sgd(model, OptimizerConfig())
    assert momentum_buffers(optimizer, model) == {}
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    saved = {name: buffer.clone() for name, buffer in momentum_buffers(optimizer, model).items()}
    other = make_sgd(model, OptimizerConfig())
    restore_momentum(other, model, saved)
    again = momentum_buffers(other, model)
    assert saved.keys() == again.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(saved[name], again[name]) for name in saved)


@pytest.mark.parametrize(("steps", "warmup"), [(10, 0.3), (41, 0.3), (41, 0.025), (400, 0.025), (400, 0.3)])
@pytest.mark.parametrize("cycle", [False, True])
def test_one_cycle_is_torchs(steps: int, warmup: float, cycle: bool) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.2, momentum=0.9)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.2, total_steps=steps, pct_start=warmup, cycle_momentum=cycle
    )
    low, high = (0.85, 0.95) if cycle else (None, None)
    config = ScheduleConfig(warmup=warmup, low_momentum=low, high_momentum=high)
    for step in range(steps):
        group = optimizer.param_groups[0]
        lr, momentum = one_cycle(step, steps, config, lr=0.2, momentum=0.9)
        assert lr == pytest.approx(group["lr"], rel=1e-9)
        assert momentum == pytest.approx(group["momentum"], rel=1e-9)
        optimizer.step()
        if step < steps - 1:
            theirs.step()


def test_a_run_of_one_step_has_a_rate() -> None:
    lr, _ = one_cycle(0, 1, ScheduleConfig(), lr=0.2, momentum=0.9)
    assert 0 < lr <= 0.2


def test_rates_change_every_so_many_samples() -> None:
    config = ScheduleConfig(every=100)
    rates = [rate_at(step, 20, 25, config, lr=0.2, momentum=0.9) for step in range(20)]
    by_period = [one_cycle(period, 5, config, lr=0.2, momentum=0.9) for period in range(5)]
    assert rates == [by_period[step // 4] for step in range(20)]
