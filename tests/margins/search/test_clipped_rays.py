"""L2 margins where large pixels stand at their bound, so that a ray is much longer than the distance it covers."""

import pytest
import torch
from torch import Tensor, nn

from puma.margins import Status, measure_margins


class Plane(nn.Module):
    """Class 0 where ``weight . x`` is above a half."""

    def __init__(self, weight: list[float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, images: Tensor) -> Tensor:
        gap = images.flatten(1) @ self.weight - 0.5
        return torch.stack([gap, torch.zeros_like(gap)], dim=1)


@pytest.mark.parametrize("method", ["deepfool", "tight"])
@pytest.mark.parametrize("weight", [[3.0, 1.0], [100.0, 1.0], [10.0] * 19 + [1.0]])
def test_the_boundary_is_found_beyond_clipped_pixels(weight: list[float], method: str) -> None:
    image = torch.zeros(1, len(weight))
    image[0, -1] = 0.9  # the other pixels cannot fall any further: exactly 0.4 to go on this one
    label = torch.tensor([0])
    found = measure_margins(Plane(weight), image, label, norm="l2", method=method)
    assert found.status.item() == Status.CROSSED
    assert found.margin.item() == pytest.approx(0.4, rel=1e-3)
    near = measure_margins(Plane(weight), image, label, norm="l2", method=method, cap=0.5)
    assert near.status.item() == Status.CROSSED
    assert near.margin.item() == pytest.approx(0.4, rel=1e-3)
    far = measure_margins(Plane(weight), image, label, norm="l2", method=method, cap=0.3, boundary=True)
    assert far.status.item() == Status.CAPPED
    assert far.margin.item() == pytest.approx(0.3)
    assert far.boundary is not None
    assert torch.equal(far.boundary, image)
