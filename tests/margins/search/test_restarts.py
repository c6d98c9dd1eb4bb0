"""Models whose gradient at the image says little about what lies beyond: the boundary is found all the same."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from margins.problems import ENGINE, NORMS
from puma.margins import Status, measure_margins
from puma.margins.search.deepfool import DEEPFOOL, TIGHT

_DEAD = 0.3  # pixels below this do not count


class Threshold(nn.Module):
    """Two classes by a weighted sum of pixels beyond a threshold: flat in most pixels of a dark image."""

    def __init__(self, pixels: int = 24, seed: int = 0) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(0.5 + torch.rand(pixels, generator=random))
        self.need = nn.Parameter(0.25 * self.weight.detach().sum())

    def forward(self, images: Tensor) -> Tensor:
        excess = ((images.flatten(1) - _DEAD).relu() * self.weight).sum(1) - self.need
        return torch.stack([-excess, excess], 1)

    def exact_linf(self, image: NDArray[np.float64]) -> float:
        """Every pixel moves up by r as far as it can; bisect r."""
        weight, need = self.weight.detach().double().numpy(), float(self.need.detach())
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            moved = np.minimum(image + middle, 1.0)
            crossed = (np.maximum(moved - _DEAD, 0) * weight).sum() > need
            low, high = (low, middle) if crossed else (middle, high)
        return high


def dark_images(count: int = 24, pixels: int = 24) -> Tensor:
    """Pixels below the threshold, but for one or two: their gradient alone does not reach the boundary in the box."""
    random = torch.Generator().manual_seed(1)
    images = 0.25 * torch.rand(count, pixels, generator=random)
    images[:, 0] = 0.35 + 0.5 * torch.rand(count, generator=random)
    images[::2, 1] = 0.4
    return images


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", ENGINE)
def test_a_gap_that_does_not_close_by_the_first_gradient_is_crossed(method: str, norm: str, label: int) -> None:
    model, images = Threshold(), dark_images()
    labels = torch.full((len(images),), label)
    result = measure_margins(model, images, labels, method=method, norm=norm, boundary=True)
    assert result.crossed.all()
    assert result.boundary is not None
    assert (model(result.boundary).argmax(1) == 1).all()
    assert torch.equal(result.margin > 0, labels == 0)
    if norm == "linf":
        exact = np.array([model.exact_linf(image) for image in images.double().numpy()])
        ratio = result.margin.abs().numpy() / exact
        print(f"{method} label {label}: mean {ratio.mean():.3f}, max {ratio.max():.3f}")
        assert ratio.min() > 1 - 1e-4
        assert ratio.mean() < (1.1 if method == "tight" else 1.35)


@pytest.mark.parametrize("method", ENGINE)
def test_a_rescued_sample_does_not_depend_on_its_neighbours(method: str) -> None:
    model, images = Threshold(), dark_images()
    labels = torch.zeros(len(images), dtype=torch.int64)
    whole = measure_margins(model, images, labels, method=method)
    alone = torch.cat([measure_margins(model, images[i : i + 1], labels[:1], method=method).margin for i in range(6)])
    torch.testing.assert_close(alone, whole.margin[:6], rtol=2e-3, atol=0)


@pytest.mark.parametrize("method", ENGINE)
def test_rescues_cost_nothing_where_all_cross(method: str) -> None:
    """Bright images have a gradient in every pixel."""
    model, images = Threshold(100), 0.4 + 0.3 * dark_images(pixels=100)
    labels = model(images).argmax(1)
    result = measure_margins(model, images, labels, method=method)
    config = DEEPFOOL if method == "deepfool" else TIGHT
    assert result.crossed.all()
    assert (result.backwards <= 1 + config.steps).all()


def test_what_is_not_crossed_says_why() -> None:
    """One class everywhere: the end of the pixel range. A way longer than the steps: out of steps."""

    def status(model: Callable[[Tensor], Tensor], method: str) -> Status:
        class Net(nn.Module):
            def forward(self, images: Tensor) -> Tensor:
                return model(images.flatten(1).mean(1))

        result = measure_margins(Net(), torch.full((1, 3, 4, 4), 0.05), torch.tensor([0]), method=method)
        assert result.margin.item() == torch.inf
        return Status(int(result.status[0]))

    assert {status(lambda x: torch.stack([2 * x + 1, x], 1), method) for method in ENGINE} == {Status.NOT_CROSSED}
    for method in ("fast", "fast-ce"):
        assert status(lambda x: torch.stack([0.9 - x, 0 * x], 1), method) is Status.OUT_OF_STEPS
    assert status(lambda x: torch.stack([2 - x, 0 * x], 1), "deepfool-classic") is not Status.CROSSED
