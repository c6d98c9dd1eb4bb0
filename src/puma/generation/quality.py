"""How good generated images are: their distance from real ones, copies among them, and labels that others doubt."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from puma.errors import PumaError, tell_missing
from puma.models import frozen
from puma.pools import Pool, to_unit

Floats = NDArray[np.float64]
_BATCH = 500  # images at a time: fits into memory at 224 px


@dataclass(frozen=True, eq=False)
class PoolAnswers:
    """What a classifier says of a pool: the features before its last layer (n, d), and the logits (n, classes)."""

    features: Floats
    logits: Tensor


@torch.no_grad()
def answer_pool(model: nn.Module, pool: Pool) -> PoolAnswers:
    """Pass a pool through a classifier whose last layer is linear; the model stays as it was."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise PumaError("features are what a net's last linear layer reads; this model has none.")
    features: list[Tensor] = []
    logits: list[Tensor] = []
    hook = layers[-1].register_forward_pre_hook(lambda _, inputs: features.append(inputs[0].flatten(1).cpu()))
    try:
        with frozen(model):
            logits.extend(model(to_unit(batch.images)).cpu() for batch in pool.batches(_BATCH))
    finally:
        hook.remove()
    return PoolAnswers(torch.cat(features).double().numpy(), torch.cat(logits))


def measure_frechet(one: Floats, two: Floats) -> float:
    """Return the squared Frechet distance of the Gaussians with the means and covariances of two sets (n, d)."""
    if min(len(one), len(two)) < 2:
        raise PumaError("a Frechet distance needs at least two images on each side.")
    with tell_missing("data"):
        from scipy import linalg
    covariances = [np.atleast_2d(np.cov(features, rowvar=False)) for features in (one, two)]
    cross = linalg.eigvals(covariances[0] @ covariances[1])  # of a product of two positive ones: real, not negative
    root = np.sqrt(np.clip(cross.real, 0, None)).sum()
    means = np.square(one.mean(0) - two.mean(0)).sum()
    return float(means + np.trace(covariances[0]) + np.trace(covariances[1]) - 2 * root)


def find_nearest(images: Pool, among: Pool) -> Tensor:
    """Return the L2 distance (n,), pixels in [0, 1], of each image to its nearest one of the other pool."""
    wanted = torch.cat([to_unit(batch.images).flatten(1) for batch in images.batches(_BATCH)])
    nearest = torch.full((len(wanted),), torch.inf)
    for batch in among.batches(_BATCH):
        nearest = torch.minimum(nearest, torch.cdist(wanted, to_unit(batch.images).flatten(1)).amin(1))
    return nearest


def keep_agreed(logits: Tensor, labels: Tensor) -> Tensor:
    """Return which images (n,) a classifier gives the class they are labelled with."""
    return logits.argmax(1) == labels


def keep_confident(logits: Tensor, labels: Tensor, share: float) -> Tensor:
    """Return the share (n,) of each class whose label a classifier is surest of, as the public 1M set was made."""
    if not 0 < share <= 1:
        raise PumaError(f"the share to keep must lie in (0, 1], got {share:g}.")
    confidence = logits.log_softmax(1).gather(1, labels[:, None])[:, 0]
    keep = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(logits.shape[1]):
        members = (labels == label).nonzero()[:, 0]
        best = confidence[members].argsort(descending=True, stable=True)
        keep[members[best[: math.ceil(share * len(members))]]] = True
    return keep
