"""Real robust nets: everything is found, and verdicts hold on the original model.

On digits the net is trained here in seconds; robust CIFAR-10 nets are tried where they are.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from puma import pgd
from puma.margins import measure_margins
from puma.models import build, load_weights
from puma.pools import Pool, to_unit

METHODS = pytest.mark.parametrize(("method", "norm"), [("deepfool", "linf"), ("deepfool", "l2"), ("fast", "linf")])


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Module, Tensor, Tensor]:
    """A net trained on attacked digits, and others to measure."""
    found = load_digits()
    images = torch.from_numpy(found.images).float().div(16).unsqueeze(1)
    labels = torch.from_numpy(found.target)
    torch.manual_seed(0)
    model = build("small-8px", 10, channels=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        for rows in torch.split(torch.randperm(1500), 100):
            attacked = pgd(model.eval(), images[rows], labels[rows], 0.05, steps=3)
            optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(model.train()(attacked), labels[rows]))
            optimizer.step()
    return model.eval(), images[1500:1628], labels[1500:1628]


@METHODS
def test_on_digits(digits: tuple[nn.Module, Tensor, Tensor], method: str, norm: str) -> None:
    model, images, labels = digits
    attacked = pgd(model, images, labels, 0.05, steps=10)
    assert float((model(attacked).argmax(1) == labels).float().mean()) > 0.5  # robust, else nothing is shown
    check_verdicts(model, images, labels, method, norm)


@METHODS
@pytest.mark.parametrize("radius", [2, 8])
def test_on_cifar10(robust_nets: Path, cifar10_test: Pool, radius: int, method: str, norm: str) -> None:
    model = load_weights(build("resnet4b", 10), robust_nets / f"robust_cifar10_eps{radius}.safetensors").eval()
    batch = cifar10_test.batch(np.arange(128))
    check_verdicts(model, to_unit(batch.images), batch.labels, method, norm)


def check_verdicts(model: nn.Module, images: Tensor, labels: Tensor, method: str, norm: str) -> None:
    result = measure_margins(model, images, labels, method=method, norm=norm, boundary=True)
    assert result.boundary is not None
    with torch.no_grad():
        right = model(images).argmax(1) == labels
        beyond = model(result.boundary).argmax(1) == labels
    assert torch.equal(result.margin > 0, right)
    assert result.crossed[right].all()
    assert result.crossed.float().mean() > 0.98
    assert torch.equal(beyond[result.crossed], ~right[result.crossed])
