"""Small ReLU nets have exact margins too, by mixed-integer programming."""

import itertools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from oracles import Layers, relu_margin_linf
from puma.margins import measure_margins

Case = tuple[nn.Sequential, Tensor, Tensor, NDArray[np.float64]]


def net(seed: int, sizes: tuple[int, ...]) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for fan_in, fan_out in itertools.pairwise(sizes):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def arrays(model: nn.Sequential) -> Layers:
    linear = [layer for layer in model if isinstance(layer, nn.Linear)]
    return [(p.weight.detach().double().numpy(), p.bias.detach().double().numpy()) for p in linear]


def solve(model: nn.Sequential, images: Tensor, labels: Tensor) -> Case:
    pixels = images.double().numpy()
    exact = [relu_margin_linf(arrays(model), pixels[i], int(labels[i])) for i in range(len(images))]
    return model, images, labels, np.array(exact)


def untrained(seed: int, sizes: tuple[int, ...], count: int = 6) -> Case:
    """Every fourth sample gets the label of its second class: a wrong one."""
    model = net(seed, sizes)
    images = torch.rand(count, sizes[0], generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        ranked = model(images).argsort(1, descending=True)
    labels = ranked[:, 0].clone()
    labels[::4] = ranked[::4, 1]
    return solve(model, images, labels)


def trained_on_digits(count: int = 4) -> Case:
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    images, labels = F.avg_pool2d(pixels, 2).flatten(1), torch.tensor(digits.target)
    model = net(0, (16, 12, 10))
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return solve(model, images[:count], labels[:count])


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    sizes = ((4, 8, 3), (6, 16, 3), (8, 8, 8, 3), (10, 12, 4), (6, 8, 8, 2))
    return [*(untrained(seed, shape) for seed, shape in enumerate(sizes)), trained_on_digits()]


@pytest.mark.parametrize(
    ("method", "mean"), [("deepfool", 1.1), ("tight", 1.005), ("fast", 1.3), ("deepfool-classic", 1.3)]
)
def test_never_below_exact_and_close_to_it(cases: list[Case], method: str, mean: float) -> None:
    ratios = []
    for model, images, labels, exact in cases:
        result = measure_margins(model, images, labels, method=method)
        reachable = np.isfinite(exact)
        assert ((result.prediction == labels).numpy() == (exact > 0)).all()
        assert (np.sign(result.margin.numpy()) == np.sign(exact))[result.crossed.numpy()].all()
        assert not result.crossed[torch.from_numpy(~reachable)].any()
        ratios.append(result.margin.numpy()[reachable] / exact[reachable])
    ratio = np.concatenate(ratios)
    crossed = ratio[np.isfinite(ratio)]
    print(f"{method}: mean {crossed.mean():.4f}, max {crossed.max():.3f}, crossed {len(crossed)}/{len(ratio)}")
    assert crossed.min() > 1 - 1e-4
    assert crossed.mean() <= mean
    assert len(crossed) >= (0.95 if method == "tight" else 0.85) * len(ratio)
