"""EDM: denoising diffusion as Karras et al. (2022) set it out, on tensors alone.

A denoiser is any function of noisy images and their noise levels (n,) that gives the expected clean images. Images are
in [-1, 1]. Equation and table numbers are those of "Elucidating the Design Space of Diffusion-Based Generative Models".
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

Denoiser = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class NoiseConfig:
    """Which noise a denoiser is trained with (Table 1, column "Ours").

    Attributes:
        sigma_data: standard deviation of the images; the preconditioning keeps inputs and targets at unit variance.
        log_mean: mean of ln(sigma) in training (P_mean): the levels at which there is something to learn.
        log_std: standard deviation of ln(sigma) in training (P_std).
    """

    sigma_data: float = 0.5
    log_mean: float = -1.2
    log_std: float = 1.2


@dataclass(frozen=True)
class SolverConfig:
    """How the sampler walks from noise to an image (Eq. 5, Algorithm 1 without its churn).

    Attributes:
        steps: noise levels, each but the last with two passes: 18 are 35 passes.
        sigma_min: the last level before 0.
        sigma_max: the level that an image begins at.
        rho: how much closer together the levels lie near the end.
    """

    steps: int = 18
    sigma_min: float = 0.002
    sigma_max: float = 80.0
    rho: float = 7.0

    @property
    def passes(self) -> int:
        """Passes through the denoiser for one image."""
        return 2 * self.steps - 1


def precondition(sigma: Tensor, sigma_data: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return c_skip, c_out, c_in and c_noise (Table 1): D(x) = c_skip x + c_out F(c_in x; c_noise)."""
    total = sigma**2 + sigma_data**2
    return sigma_data**2 / total, sigma * sigma_data / total.sqrt(), 1 / total.sqrt(), sigma.log() / 4


def weigh_loss(sigma: Tensor, sigma_data: float) -> Tensor:
    """Return lambda(sigma): it makes every noise level count the same at the start of training."""
    return (sigma**2 + sigma_data**2) / (sigma * sigma_data) ** 2


def draw_sigmas(count: int, config: NoiseConfig, generator: Generator | None = None) -> Tensor:
    """Draw noise levels (n,) for training, ln(sigma) being normal."""
    return (torch.randn(count, generator=generator) * config.log_std + config.log_mean).exp()


def denoise(net: Callable[[Tensor, Tensor], Tensor], noisy: Tensor, sigma: Tensor, sigma_data: float) -> Tensor:
    """Return the denoised images: what the net adds to the scaled noisy ones (Eq. 7)."""
    c_skip, c_out, c_in, c_noise = precondition(sigma, sigma_data)
    scale = (-1, *(1,) * (noisy.ndim - 1))
    residual = net(c_in.view(scale) * noisy, c_noise).to(noisy.dtype)
    return c_skip.view(scale) * noisy + c_out.view(scale) * residual


def measure_loss(denoised: Tensor, images: Tensor, sigma: Tensor, sigma_data: float) -> Tensor:
    """Return the weighted squared error (n,) of each image, averaged over its pixels (Eq. 2 with lambda)."""
    return weigh_loss(sigma, sigma_data) * (denoised - images).square().flatten(1).mean(1)


def list_levels(config: SolverConfig) -> Tensor:
    """Return the noise levels (steps + 1,) of the sampler, falling from sigma_max to sigma_min and then 0 (Eq. 5)."""
    ramp = torch.linspace(0, 1, config.steps, dtype=torch.float64)
    high, low = config.sigma_max ** (1 / config.rho), config.sigma_min ** (1 / config.rho)
    return torch.cat([(high + ramp * (low - high)) ** config.rho, torch.zeros(1, dtype=torch.float64)])


@torch.no_grad()
def solve_heun(denoiser: Denoiser, noise: Tensor, levels: Tensor) -> Tensor:
    """Turn unit noise into samples by Heun's method along the probability flow (Algorithm 1, deterministic).

    The result has the noise's dtype. The last step, to level 0, is Euler's.
    """
    points = noise * float(levels[0])
    for here, there in zip(levels[:-1].tolist(), levels[1:].tolist(), strict=True):
        slope = (points - denoiser(points, points.new_full((len(points),), here))) / here
        ahead = points + (there - here) * slope
        if there > 0:
            corrected = (ahead - denoiser(ahead, points.new_full((len(points),), there))) / there
            ahead = points + (there - here) / 2 * (slope + corrected)
        points = ahead
    return points
