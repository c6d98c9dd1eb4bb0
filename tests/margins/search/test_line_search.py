"""Norms, rays, and rivals ranked by norms."""

import pytest
import torch

from margins.problems import NORMS, affine, net_images, smooth_net
from puma.attacks.norms import find_norm
from puma.margins.search.line_search import Box, newton_on_ray
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
    found = estimate_pair_norms(network, norm, Box(0.0, 1.0), 6, network.to_rows(problem.images))
    weight = torch.from_numpy(problem.weight).float()
    for label in range(6):
        exact = norm.dual(weight - weight[label])
        others = torch.arange(6) != label
        torch.testing.assert_close(found[label][others], exact[others], rtol=1e-3, atol=1e-4)


def test_rows_and_images_are_inverse() -> None:
    images = net_images(4)
    network = Network(smooth_net(), smooth_net(), (3, 8, 8))
    assert torch.equal(network.to_images(network.to_rows(images)), images)
    assert network.to_images(network.to_rows(images)).is_contiguous(memory_format=torch.channels_last)
