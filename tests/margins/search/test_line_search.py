"""Norms, rays, and rivals ranked by norms."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from margins.problems import NORMS, affine, net_images, smooth_net
from puma.attacks.norms import find_norm
from puma.margins.search.engine import DONE, Arrival, Status, open_rows
from puma.margins.search.line_search import Box, LineSearch, newton_on_ray, search_line
from puma.margins.search.network import Network
from puma.margins.search.opening import estimate_pair_norms


@pytest.mark.parametrize("name", NORMS)
def test_the_dual_norm_is_dual(name: str) -> None:
    norm = find_norm(name)
    random = torch.Generator().manual_seed(0)
    slant = torch.randn(20, 30, generator=random)
    torch.testing.assert_close(norm.length(norm.steepest(slant)), torch.ones(20))
    torch.testing.assert_close((slant * norm.steepest(slant)).sum(1), norm.dual(slant))
    others = torch.randn(20, 30, generator=random)
    others /= norm.length(others)[:, None]
    assert ((slant * others).sum(1) <= norm.dual(slant)).all()
    torch.testing.assert_close(norm.confine(norm.steepest(slant)), norm.steepest(slant))


@pytest.mark.parametrize("name", NORMS)
def test_tiny_and_huge_vectors_keep_their_direction(name: str) -> None:
    norm = find_norm(name)
    slant = torch.tensor([[3e-30, -4e-30], [3e30, -4e30], [0.0, 0.0]])
    torch.testing.assert_close(norm.steepest(slant)[0], norm.steepest(slant)[1])
    assert torch.equal(norm.steepest(slant)[2], torch.zeros(2))
    assert norm.dual(slant).isfinite().all()


def test_newton_stops_at_the_box() -> None:
    box, origin = Box(0.0, 1.0), torch.tensor([[0.9, 0.5]])
    slant, gap = torch.tensor([[-1.0, -1.0]]), torch.tensor([0.4])
    pattern, radius = torch.ones(1, 2), torch.zeros(1)
    for _ in range(2):
        radius, slope = newton_on_ray(box, origin, pattern, radius, origin, gap, slant)
    assert radius.item() == pytest.approx(0.3)  # 0.1 from the first pixel, the rest from the second alone
    assert slope.item() == pytest.approx(1.0)


@pytest.mark.parametrize("name", NORMS)
def test_rivals_of_an_affine_model_are_ranked_by_exact_norms(name: str) -> None:
    problem, norm = affine(6), find_norm(name)
    network = Network(problem.model, problem.model, (3, 4, 4))
    found = estimate_pair_norms(network, norm, Box(0.0, 1.0), 6, network.to_rows(problem.images)).table
    assert found is not None
    weight = torch.from_numpy(problem.weight).float()
    for label in range(6):
        exact = norm.dual(weight - weight[label])
        others = torch.arange(6) != label
        torch.testing.assert_close(found[label][others], exact[others], rtol=1e-3, atol=1e-4)


class Curved(nn.Module):
    """Two classes, one pixel: the gap falls along a curve and closes at ``root``."""

    def __init__(self, root: float, bend: float) -> None:
        super().__init__()
        self.root, self.bend = root, bend

    def forward(self, images: Tensor) -> Tensor:
        pixel = images.flatten(1)[:, 0]
        gap = (self.root - pixel) * (1 + self.bend * pixel)
        return torch.stack([gap, torch.zeros_like(gap)], 1)


@pytest.mark.parametrize("bend", [-0.5, 0.0, 2.0])
@pytest.mark.parametrize("error", [-0.05, -0.01, 0.005, 0.02, 0.1])
def test_a_guess_beyond_the_boundary_is_as_good_as_one_before_it(error: float, bend: float) -> None:
    """The secant may aim next to either end of the bracket: two or three looks, however wide the bracket is."""
    model, box, root = Curved(0.4, bend), Box(0.0, 1.0), 0.4
    origin = torch.zeros(1, 1)
    arrival = Arrival(torch.zeros(1, dtype=torch.int64), origin, torch.zeros(1, dtype=torch.int64))
    rows = open_rows(arrival, arrival.label, torch.tensor([root]), arrival.label + 1)
    steep = torch.tensor([1 + bend * root])
    rows = rows.change(pattern=torch.ones(1, 1), radius=torch.tensor([root * (1 + error)]), slope=steep)
    network, config = Network(model, model, (1,)), LineSearch(tolerance=1e-3, reach=1.0)
    while bool((rows.stage >= 0).all()):
        rows = search_line(rows, network, box, config)
    assert root <= rows.high.item() <= (1 + 1.1e-3) * root  # the overshoot is reckoned by a slope
    assert rows.looks.item() <= (2 if abs(error) <= 0.01 else 3)


def test_rows_and_images_are_inverse() -> None:
    images = net_images(4)
    network = Network(smooth_net(), smooth_net(), (3, 8, 8))
    assert torch.equal(network.to_images(network.to_rows(images)), images)
    assert network.to_images(network.to_rows(images)).is_contiguous(memory_format=torch.channels_last)


def count_looks(gap: Callable[[Tensor], Tensor], first: float, tolerance: float) -> tuple[int, float]:
    """Search one ray for the root of a gap at 1 from a first radius; return the looks and where it ended."""

    class Gap(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            found = gap(images.flatten(1)[:, 0].double()).float()
            return torch.stack([found, torch.zeros_like(found)], 1)

    network, label = Network(Gap(), Gap(), (1, 1, 1)), torch.zeros(1, dtype=torch.int64)
    scale = gap(torch.zeros(1).double()).float()
    rows = open_rows(Arrival(label, torch.zeros(1, 1), label), label, scale, label + 1)
    rows = rows.change(pattern=torch.ones(1, 1), radius=torch.tensor([first]), slope=scale / first)
    config = LineSearch(tolerance=tolerance, reach=8.0)
    while rows.stage.item() != DONE:
        rows = search_line(rows, network, Box(0.0, 8.0), config)
    assert rows.status.item() == Status.CROSSED
    return int(rows.looks), float(rows.high)


_GAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "line": lambda r: 1 - r,
    "step": lambda r: torch.where(r < 1, 1.0, -1.0),
    "S-curve": lambda r: torch.tanh(5 * (1 - r)),
    "steep S-curve": lambda r: torch.tanh(100 * (1 - r)),
    "concave": lambda r: 1 - r**2,
    "convex": lambda r: torch.exp(-r) - math.exp(-1),
    "kink": lambda r: torch.where(r < 0.9, 1 - r, 0.1 - 20 * (r - 0.9)) + 1.9 * (r >= 0.9),
}


@pytest.mark.parametrize(
    ("name", "tolerance", "mean", "most"),
    [
        ("line", 1e-3, 3.4, 4),
        ("line", 2e-4, 3.4, 4),
        ("kink", 2e-4, 4.5, 7),
        ("concave", 1e-3, 5.2, 9),
        ("convex", 2e-4, 5.5, 8),
        ("S-curve", 1e-3, 6.5, 12),
        ("S-curve", 2e-4, 7.0, 17),
        ("steep S-curve", 1e-3, 13.5, 17),
        ("step", 1e-3, 15.5, 17),
        ("step", 2e-4, 18.2, 20),
    ],
)
def test_looks_are_few_and_never_many(name: str, tolerance: float, mean: float, most: int) -> None:
    """A gap that is nearly a line takes a few looks; one that is none takes a few more than halving alone would."""
    found = [count_looks(_GAPS[name], float(first), tolerance) for first in torch.linspace(0.5, 2.0, 61)]
    looks = [looks for looks, _ in found]
    assert (sum(looks) / len(looks) <= mean, max(looks) <= most) == (True, True), (sum(looks) / len(looks), max(looks))
    assert all(1 <= end <= 1 + 2 * tolerance for _, end in found)
