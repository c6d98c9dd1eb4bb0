"""Small ReLU nets have exact margins too, by mixed-integer programming."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from margins.problems import METHODS
from oracles import Layers, relu_margin_linf
from puma.margins import measure_margins

Case = tuple[nn.Module, Tensor, Tensor, NDArray[np.float64]]


def net(seed: int, sizes: tuple[int, ...]) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for fan_in, fan_out in zip(sizes, sizes[1:], strict=False):
            linear = nn.Linear(fan_in, fan_out)
            nn.init.normal_(linear.weight, std=fan_in**-0.5)
            nn.init.normal_(linear.bias, std=0.3)
            layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def arrays(model: nn.Sequential) -> Layers:
    linear = [layer for layer in model if isinstance(layer, nn.Linear)]
    return [(p.weight.detach().double().numpy(), p.bias.detach().double().numpy()) for p in linear]


def solve(seed: int, sizes: tuple[int, ...], count: int) -> Case:
    model = net(seed, sizes)
    random = torch.Generator().manual_seed(seed)
    images = torch.rand(count, sizes[0], generator=random)
    with torch.no_grad():
        labels = model(images).argsort(1, descending=True)[:, 0]
        labels[::4] = model(images[::4]).argsort(1, descending=True)[:, 1]
    exact = [relu_margin_linf(arrays(model), images[i].double().numpy(), int(labels[i])) for i in range(count)]
    return model, images, labels, np.array(exact)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [solve(0, (8, 10, 8, 3), 12), solve(1, (6, 12, 4), 12), solve(2, (10, 8, 8, 3), 12)]


@pytest.mark.parametrize("method", METHODS)
def test_never_below_exact_and_close_to_it(cases: list[Case], method: str) -> None:
    ratios = []
    for model, images, labels, exact in cases:
        result = measure_margins(model, images, labels, method=method)
        reachable = np.isfinite(exact)
        assert (np.sign(result.margin.numpy()) == np.sign(exact)).all()
        assert not result.crossed[torch.from_numpy(~reachable)].any()
        ratios.append(result.margin.numpy()[reachable] / exact[reachable])
        assert ratios[-1].min() > 1 - 1e-4
    ratio = np.concatenate(ratios)
    crossed = ratio[np.isfinite(ratio)]
    print(method, f"mean {crossed.mean():.4f} max {crossed.max():.3f} crossed {len(crossed)} of {len(ratio)}")
    assert len(crossed) >= 0.9 * len(ratio)
    if method == "tight":
        assert len(crossed) == len(ratio)
        assert crossed.mean() <= 1.005
    if method == "deepfool":
        assert crossed.mean() <= 1.1
