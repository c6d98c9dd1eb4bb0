"""Margins of a hundred classes cost as many passes a sample as those of ten."""

import pytest
import torch
from torch import nn

import puma


@pytest.mark.parametrize("method", ["deepfool", "fast"])
def test_passes_do_not_grow_with_the_number_of_classes(method: str) -> None:
    images = torch.rand(32, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    passes = {}
    for classes in (10, 100, 1000):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(512, classes)).eval()
        margins = puma.measure_margins(net, images, net(images).argmax(1), method=method)
        assert bool((margins.status == puma.Status.CROSSED).all())
        passes[classes] = float((margins.forwards + margins.backwards).float().mean())
    assert passes[100] <= 1.15 * passes[10]
    assert passes[1000] <= 1.15 * passes[10]
