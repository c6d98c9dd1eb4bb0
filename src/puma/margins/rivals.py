"""Which rivals are worth a gradient.

The nearest rival has the smallest gap / ||gradient||, but gradients of all K rivals cost K backwards. The norms
differ far less between images than between pairs of classes, so they are estimated once, on a few smooth
random images, and rank the rivals of every sample. For an affine model the ranking is exact.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from puma.attacks.norms import Norm
from puma.margins.geometry import Box
from puma.margins.network import Network, gradient

_EXACT_PAIRS = 128  # above this many classes, pairs are compared in L2, which is one matrix product
# beyond these, rivals are ranked by their gaps alone
_MOST_CLASSES = 256
_LARGEST_JACOBIAN = 2**26
_ROWS = 128


def pair_norms(network: Network, norm: Norm, box: Box, classes: int, like: Tensor) -> Tensor:
    """Return the (K, K) typical dual norms of logit-difference gradients; all ones where too dear to get."""
    flat = torch.ones(1, 1, device=like.device, dtype=like.dtype).expand(classes, classes)
    if classes > _MOST_CLASSES or classes * like.shape[1] > _LARGEST_JACOBIAN:
        return flat
    probes = smooth_images(network, box, 8 if classes <= 32 else 2, like)
    wanted = torch.arange(classes, device=like.device).repeat(len(probes))
    points = probes.repeat_interleave(classes, 0)
    pieces = zip(torch.split(points, _ROWS), torch.split(wanted, _ROWS), strict=True)
    jacobian = torch.cat([_logit_gradients(network, *piece) for piece in pieces])
    power = 1.0 if norm.name == "linf" and classes <= _EXACT_PAIRS else 2.0
    by_probe = jacobian.view(len(probes), classes, -1)
    norms = torch.cdist(by_probe, by_probe, p=power).mean(0)
    return torch.where(norms.isfinite() & (norms > 0), norms, flat)


def smooth_images(network: Network, box: Box, count: int, like: Tensor) -> Tensor:
    """Return rows of smooth noise: always the same, so that a margin does not depend on its neighbours."""
    random = torch.Generator().manual_seed(0)
    if len(network.shape) != 3:
        pixels = torch.rand(count, like.shape[1], generator=random)
    else:
        channels, height, width = network.shape
        coarse = torch.rand(count, channels, min(4, height), min(4, width), generator=random)
        pixels = network.rows(F.interpolate(coarse, size=(height, width), mode="bilinear"))
    return (box.low + (box.high - box.low) * pixels).to(like)


def _logit_gradients(network: Network, points: Tensor, wanted: Tensor) -> Tensor:
    points = points.detach().requires_grad_()
    return gradient(network.logits(points).gather(1, wanted[:, None]).sum(), points)
