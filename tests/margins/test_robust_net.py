"""Real robust CIFAR-10 nets: everything is found, and verdicts hold on the original model."""

from pathlib import Path

import numpy as np
import pytest
import torch

from puma.margins import measure_margins
from puma.models import build, load_weights
from puma.pools import Pool, to_unit


@pytest.mark.parametrize("radius", [2, 8])
@pytest.mark.parametrize(("method", "norm"), [("deepfool", "linf"), ("deepfool", "l2"), ("fast", "linf")])
def test_found_signed_and_flipping(shared_data: Path, cifar10_test: Pool, radius: int, method: str, norm: str) -> None:
    model = load_weights(build("resnet4b", 10), shared_data / f"robust_cifar10_eps{radius}.safetensors").eval()
    batch = cifar10_test.batch(np.arange(128))
    images, labels = to_unit(batch.images), batch.labels
    result = measure_margins(model, images, labels, method=method, norm=norm, boundary=True)
    assert result.boundary is not None
    with torch.no_grad():
        right = model(images).argmax(1) == labels
        beyond = model(result.boundary).argmax(1) == labels
    assert torch.equal(result.margin > 0, right)
    assert result.crossed[right].all()
    assert result.crossed.float().mean() > 0.98
    assert torch.equal(beyond[result.crossed], ~right[result.crossed])
