import pytest
import torch
from torch import nn

from puma.models.ema import EmaConfig, copy_for_ema, ema_decay, update_ema


def net(value: float) -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data.fill_(value)
    return model


@pytest.mark.parametrize("buffers", ["average", "copy"])
def test_average_against_a_hand_computation(buffers: str) -> None:
    config = EmaConfig(decay=0.3, copy_steps=2, buffers="copy" if buffers == "copy" else "average")
    average = copy_for_ema(net(1.0))
    # steps 0 and 1 copy; then t = 0, 1, 2 with decays min(0.3, 1/10), min(0.3, 2/11), min(0.3, 3/12)
    seen = [4.0, 8.0, 16.0, 32.0, 64.0]
    by_hand = 1.0
    for step, (value, decay) in enumerate(zip(seen, [0.0, 0.0, 1 / 10, 2 / 11, 3 / 12], strict=True)):
        assert ema_decay(step, config) == decay
        update_ema(average, net(value), step, config)
        by_hand = decay * by_hand + (1 - decay) * value
        torch.testing.assert_close(average.get_parameter("0.weight"), torch.full((2, 2), by_hand))
        running = by_hand if buffers == "average" else value
        torch.testing.assert_close(average.get_buffer("1.running_mean"), torch.full((2,), running))
        assert average.get_buffer("1.num_batches_tracked") == value
    assert ema_decay(50, config) == 0.3


def test_a_copy_is_exact_and_nothing_is_shared() -> None:
    model = net(1.0)
    average = copy_for_ema(model)
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data.copy_(torch.randn(tensor.shape))
    update_ema(average, model, 0, EmaConfig(copy_steps=5))
    mine, its = average.state_dict(), model.state_dict()
    assert all(torch.equal(mine[name], its[name]) for name in its)
    assert not {tensor.data_ptr() for tensor in mine.values()} & {tensor.data_ptr() for tensor in its.values()}
    assert not average.training
    assert not any(parameter.requires_grad for parameter in average.parameters())
