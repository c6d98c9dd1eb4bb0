"""The net: shapes at every size, and that each condition reaches the answer."""

import pytest
import torch

from puma.errors import PumaError
from puma.generation.unet import LEVELS, Condition, UNet, UNetConfig


def make_unet(side: int, channels: int, *, margins: bool = False) -> UNet:
    torch.manual_seed(0)
    net = UNet(UNetConfig(width=8), (side, side, channels), 3, margins=margins)
    for parameter in net.parameters():  # the last layers begin at zero: give them something to say
        torch.nn.init.normal_(parameter, std=0.2)
    return net


@pytest.mark.parametrize("side", LEVELS)
@pytest.mark.parametrize("channels", [1, 3])
def test_answer_has_the_shape_of_the_images(side: int, channels: int) -> None:
    images = torch.randn(2, channels, side, side)
    residual = make_unet(side, channels)(images, torch.zeros(2), Condition(torch.tensor([0, 2])))
    assert residual.shape == images.shape


def test_a_new_net_answers_zero() -> None:
    net = UNet(UNetConfig(width=8), (8, 8, 1), 3)
    residual = net(torch.randn(2, 1, 8, 8), torch.zeros(2), Condition(torch.tensor([0, 1])))
    assert not residual.detach().any()


def test_every_condition_changes_the_answer() -> None:
    net = make_unet(8, 1, margins=True)
    image, zero = torch.randn(1, 1, 8, 8), torch.zeros(1)

    def answer(noise: float = 0.0, label: int = 0, margin: float = torch.nan, moved: float = 0.0) -> torch.Tensor:
        condition = Condition(torch.tensor([label]), torch.tensor([margin]), torch.tensor([[0.0, moved, 0.0]]))
        with torch.no_grad():
            found: torch.Tensor = net(image, zero + noise, condition)
        return found

    plain = answer()
    for other in (answer(noise=0.3), answer(label=1), answer(margin=0.0), answer(margin=1.5), answer(moved=0.5)):
        assert float((other - plain).abs().max()) > 1e-3
    assert not torch.equal(answer(margin=0.0), answer(margin=1.5))
    with torch.no_grad():
        torch.testing.assert_close(net(image, zero, Condition(torch.tensor([0]))), plain)


@pytest.mark.parametrize("shape", [(12, 12, 1), (14, 16, 1), (32, 32, 4)])
def test_unknown_sizes_are_told(shape: tuple[int, int, int]) -> None:
    with pytest.raises(PumaError, match="8, 14, 28, 32, 64 px"):
        UNet(UNetConfig(), shape, 3)
