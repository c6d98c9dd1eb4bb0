"""Guide a sampler towards a band of margins of a classifier, through the denoised estimate.

The denoised image is moved along the gradient of the classifier's gap (logit of the label less the largest other) until
its margin, to first order, is the one asked for. How far is Bayes' rule for Gaussian images and a linear gap, where it
is exact (the pseudo-inverse guidance of Song et al., 2023): the estimate is unsure by r^2 = sigma^2 s^2 / (sigma^2 +
s^2), so the step is strong while an image is still open and vanishes when it is decided.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from puma.attacks import Norm, per_sample
from puma.errors import PumaError

_LEAST = 1e-12  # keeps a gap without a gradient from dividing by zero


@dataclass(frozen=True, eq=False)
class Guide:
    """A classifier and what is asked of it.

    Attributes:
        model: takes images (n, channels, height, width) in [0, 1], gives logits; frozen and in eval mode.
        labels: classes of the images (n,).
        targets: the margins to reach (n,), in pixels of [0, 1].
        spread: how far from its target a margin may lie, as a standard deviation, in the same unit.
        norm: which distance the margins are.
    """

    model: nn.Module
    labels: Tensor
    targets: Tensor
    spread: float
    norm: Norm

    def move(self, denoised: Tensor, sigma: Tensor, sigma_data: float) -> Tensor:
        """Return the denoised images (in [-1, 1]) moved towards their targets, given the noise level of each."""
        gap, slope = self.measure_gap(denoised)
        flat = slope.flatten(1)
        # the first-order margin is gap over the gradient's dual norm, with pixels of [0, 1]: half of those here
        dual = 2 * self.norm.dual(flat)
        wanted, tolerance = self.targets * dual, self.spread * dual
        unsure = (sigma * sigma_data).square() / (sigma.square() + sigma_data**2)
        reach = tolerance.square() + unsure * flat.square().sum(1)
        step = unsure * (wanted - gap) / reach.clamp(min=_LEAST)
        return denoised + per_sample(step, denoised) * slope

    def measure_gap(self, denoised: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gap (n,) of images in [-1, 1], and its gradient by them."""
        with torch.enable_grad():
            images = denoised.detach().requires_grad_()
            logits = self.model((images + 1) / 2).float()
            own = logits.gather(1, self.labels[:, None])[:, 0]
            rival = logits.scatter(1, self.labels[:, None], -torch.inf).amax(1)
            gap = own - rival
            (slope,) = torch.autograd.grad(gap.sum(), images)
        return gap.detach(), slope


def check_guide(guide: str | None, eps: float | None, band: tuple[float, float] | None, spread: float) -> None:
    """Raise where a guide's settings do not go together."""
    if guide is None:
        if eps is not None:
            raise PumaError("--eps goes with --guide; a generator that was trained with margins knows its own.")
        return
    if band is None or eps is None:
        raise PumaError("--guide needs --band LOW HIGH and --eps: the margins to reach, in multiples of eps.")
    if not 0 < eps <= 1:
        raise PumaError(f"--eps must lie in (0, 1], since pixels do, got {eps:g}; did you mean {eps:g}/255?")
    if not spread > 0:
        raise PumaError(f"--guide-spread must be positive, got {spread:g}; it is in multiples of eps.")
