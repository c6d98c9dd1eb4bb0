import pytest
import torch

from puma.training.schedule import ScheduleConfig, one_cycle, rate_at


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
