"""The equations against what is known exactly: identities, and mixtures of Gaussians, whose flow is a quantile map."""

import math
from statistics import NormalDist

import pytest
import torch
from torch import Tensor

from puma.generation.edm import (
    NoiseConfig,
    SolverConfig,
    denoise,
    draw_sigmas,
    list_levels,
    measure_loss,
    precondition,
    solve_heun,
    weigh_loss,
)

SIGMAS = torch.tensor([0.002, 0.1, 0.5, 3.0, 80.0], dtype=torch.float64)
WEIGHTS, MEANS, WIDTH = (0.3, 0.7), (-0.6, 0.5), 0.2


def denoise_mixture(noisy: Tensor, sigma: Tensor) -> Tensor:
    """The posterior mean of a mixture of two Gaussians per coordinate."""
    total = WIDTH**2 + sigma[:, None] ** 2
    likelihood = [math.log(w) - (noisy - mean) ** 2 / (2 * total) for w, mean in zip(WEIGHTS, MEANS, strict=True)]
    shares = torch.stack(likelihood).softmax(0)
    means = torch.stack([(WIDTH**2 * noisy + sigma[:, None] ** 2 * mean) / total for mean in MEANS])
    return (shares * means).sum(0)


def share_below(value: float, sigma: float) -> float:
    width = math.hypot(WIDTH, sigma)
    return sum(w * NormalDist(mean, width).cdf(value) for w, mean in zip(WEIGHTS, MEANS, strict=True))


def follow_exactly(start: float, sigma: float) -> float:
    """Where the probability flow ends that begins at ``start``: in one dimension it keeps the quantile."""
    share, low, high = share_below(start, sigma), -3.0, 3.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if share_below(middle, 0.0) < share else (low, middle)
    return low


def test_precondition_keeps_inputs_and_targets_at_unit_variance() -> None:
    c_skip, c_out, c_in, c_noise = precondition(SIGMAS, 0.5)
    torch.testing.assert_close(c_in**2 * (SIGMAS**2 + 0.25), torch.ones_like(SIGMAS))
    torch.testing.assert_close(c_out**2, (1 - c_skip) ** 2 * 0.25 + c_skip**2 * SIGMAS**2)
    torch.testing.assert_close(weigh_loss(SIGMAS, 0.5) * c_out**2, torch.ones_like(SIGMAS))
    torch.testing.assert_close(c_noise, SIGMAS.log() / 4)


def test_denoise_with_a_perfect_net_is_exact_and_costs_nothing() -> None:
    torch.manual_seed(0)
    images, sigma = torch.randn(5, 1, 4, 4, dtype=torch.float64), SIGMAS
    noisy = images + sigma.view(-1, 1, 1, 1) * torch.randn_like(images)

    def net(scaled: Tensor, c_noise: Tensor) -> Tensor:
        c_skip, c_out, c_in, _ = (c.view(-1, 1, 1, 1) for c in precondition((4 * c_noise).exp(), 0.5))
        return (images - c_skip * scaled / c_in) / c_out

    denoised = denoise(net, noisy, sigma, 0.5)
    torch.testing.assert_close(denoised, images, rtol=0, atol=1e-9)
    assert float(measure_loss(denoised, images, sigma, 0.5).max()) < 1e-9


def test_loss_of_a_net_that_answers_zero_is_one_at_every_level() -> None:
    """The weights make all levels count the same at the start, on images of the assumed variance."""
    generator = torch.Generator().manual_seed(0)
    images = 0.5 * torch.randn(5, 1, 200, 200, dtype=torch.float64, generator=generator)
    noisy = images + SIGMAS.view(-1, 1, 1, 1) * torch.randn(images.shape, dtype=torch.float64, generator=generator)
    denoised = denoise(lambda scaled, _: torch.zeros_like(scaled), noisy, SIGMAS, 0.5)
    torch.testing.assert_close(measure_loss(denoised, images, SIGMAS, 0.5), torch.ones_like(SIGMAS), rtol=0.03, atol=0)


def test_training_levels_are_log_normal() -> None:
    logs = draw_sigmas(20_000, NoiseConfig(), torch.Generator().manual_seed(0)).log()
    assert float(logs.mean()) == pytest.approx(-1.2, abs=0.04)
    assert float(logs.std()) == pytest.approx(1.2, abs=0.03)


def test_levels_fall_from_sigma_max_to_zero() -> None:
    levels = list_levels(SolverConfig())
    assert len(levels) == 19
    assert SolverConfig().passes == 35
    assert [float(levels[i]) for i in (0, 17, 18)] == pytest.approx([80, 0.002, 0])
    assert bool((levels.diff() < 0).all())


def test_heun_counts_its_passes() -> None:
    calls: list[float] = []

    def denoiser(points: Tensor, sigma: Tensor) -> Tensor:
        calls.append(float(sigma[0]))
        return torch.zeros_like(points)

    solve_heun(denoiser, torch.ones(1, 1), list_levels(SolverConfig(steps=5)))
    assert len(calls) == SolverConfig(steps=5).passes


def measure_error(steps: int) -> float:
    """The largest distance to the exact end over seven quantiles."""
    starts = [NormalDist().inv_cdf(share) for share in (0.02, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95)]
    levels = list_levels(SolverConfig(steps=steps, sigma_min=1e-4, sigma_max=10.0))
    noise = torch.tensor(starts, dtype=torch.float64)[:, None]
    found: list[float] = solve_heun(denoise_mixture, noise, levels)[:, 0].tolist()
    return max(abs(end - follow_exactly(10 * start, 10.0)) for start, end in zip(starts, found, strict=True))


def test_heun_converges_with_order_two() -> None:
    errors = [measure_error(steps) for steps in (40, 80, 160)]
    assert [math.log2(errors[i] / errors[i + 1]) for i in (0, 1)] == pytest.approx([2.0, 2.0], abs=0.35)
    assert errors[-1] < 3e-4


@pytest.mark.parametrize(("steps", "error"), [(18, 0.12), (72, 0.01)])
def test_samples_have_the_moments_of_the_mixture(steps: int, error: float) -> None:
    count = 40_000
    noise = torch.randn(count, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = solve_heun(denoise_mixture, noise, list_levels(SolverConfig(steps=steps)))[:, 0]
    mean = sum(w * m for w, m in zip(WEIGHTS, MEANS, strict=True))
    variance = WIDTH**2 + sum(w * (m - mean) ** 2 for w, m in zip(WEIGHTS, MEANS, strict=True))
    spread = 4 * math.sqrt(1 / count)  # four standard errors
    assert float(found.mean()) == pytest.approx(mean, abs=spread * math.sqrt(variance) + 0.1 * error)
    assert float(found.var()) == pytest.approx(variance, rel=error + spread)
    assert float((found < -0.05).double().mean()) == pytest.approx(share_below(-0.05, 0.0), abs=spread + 0.1 * error)
