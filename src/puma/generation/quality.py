"""How good generated images are: their distance from real ones, copies among them, and labels that others doubt."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from puma.errors import PumaError, tell_missing
from puma.models import build, frozen
from puma.pools import Pool, to_unit

Floats = NDArray[np.float64]
_BATCH = 500  # images at a time: fits into memory at 224 px
_LR, _RISE = 0.2, 0.2  # peak of the learning rate of a test net, and the share of the steps in which it is reached


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


@dataclass(frozen=True)
class AssessmentConfig:
    """How generated images are assessed.

    Attributes:
        model: name of the net that is trained on them.
        samples_seen: length of each of its trainings, 64 images a step.
        seeds: trainings on each kind of images.
        images: of each kind, from the front of the pool; what a pool has more is not trained on.
        neighbours: images whose nearest real one is looked for.
    """

    model: str
    samples_seen: int = 150_000
    seeds: int = 3
    images: int = 6000
    neighbours: int = 1000


@dataclass(frozen=True)
class ImageAssessment:
    """What generated images are worth beside real ones.

    Attributes:
        accuracy: on test images, for each seed of nets trained on "real", "generated" and "both".
        doubted_share: of the generated images, called something else by the first net of real ones.
        nearest: median distance of generated images, and of test images, to the nearest real one.
        frechet: distance to the test images of generated ones, and of as many real ones, in that net's features.
    """

    accuracy: Mapping[str, list[float]]
    doubted_share: float
    nearest: tuple[float, float]
    frechet: tuple[float, float]

    def list_misses(self, *, least: float = 0.0, gap: float = 1.0, both_win: bool = False) -> list[str]:
        """Return a sentence for every goal that is missed: accuracy on generated images alone, and its gap to real."""
        mean = {kind: fmean(values) for kind, values in self.accuracy.items()}
        misses = []
        if mean["generated"] < least:
            misses.append(f"trained on generated images alone a net has {mean['generated']:.1%}, not {least:.1%}.")
        if mean["real"] - mean["generated"] > gap:
            misses.append(
                f"generated images train a net {100 * (mean['real'] - mean['generated']):.1f} points worse than real "
                f"ones, more than {100 * gap:.1f}."
            )
        if both_win and mean["both"] <= max(mean["real"], mean["generated"]):
            misses.append(f"both together train a net to {mean['both']:.1%}, real ones alone to {mean['real']:.1%}.")
        if self.nearest[0] < self.nearest[1]:
            misses.append(
                f"generated images lie nearer to a real one ({self.nearest[0]:.2f}) than test images do "
                f"({self.nearest[1]:.2f}): some are copies."
            )
        return misses


def assess_images(real: Pool, generated: Pool, test: Pool, config: AssessmentConfig) -> ImageAssessment:
    """Train nets on real images, on as many generated ones, and on both; look for copies; measure the distance."""
    first = {"real": real.batch(range(min(config.images, len(real)))),
             "generated": generated.batch(range(min(config.images, len(generated))))}  # fmt: skip
    images = {kind: to_unit(batch.images) for kind, batch in first.items()}
    labels = {kind: batch.labels for kind, batch in first.items()}
    images["both"], labels["both"] = torch.cat([*images.values()]), torch.cat([*labels.values()])
    asked = test.batch(range(len(test)))
    judge: nn.Module | None = None
    accuracy: dict[str, list[float]] = {}
    for kind in images:
        accuracy[kind] = []
        for seed in range(config.seeds):
            net = _train_plainly(images[kind], labels[kind], real.num_classes, config, seed)
            judge = judge or net
            accuracy[kind].append(float(keep_agreed(answer_pool(net, test).logits, asked.labels).double().mean()))
    assert judge is not None
    answers, beside, wanted = answer_pool(judge, generated), answer_pool(judge, real), answer_pool(judge, test)
    count = min(len(real), len(generated))
    return ImageAssessment(
        accuracy,
        1 - float(keep_agreed(answers.logits, torch.from_numpy(generated.labels)).double().mean()),
        (_measure_nearest(generated, real, config.neighbours), _measure_nearest(test, real, config.neighbours)),
        (
            measure_frechet(answers.features[:count], wanted.features),
            measure_frechet(beside.features[:count], wanted.features),
        ),
    )


def _train_plainly(images: Tensor, labels: Tensor, classes: int, config: AssessmentConfig, seed: int) -> nn.Module:
    """Train a fresh net on clean images with SGD, the learning rate rising and falling once."""
    torch.manual_seed(seed)
    net = build(config.model, classes, channels=images.shape[1]).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=_LR, momentum=0.9, nesterov=True, weight_decay=5e-4)
    draws, steps = torch.Generator().manual_seed(seed), max(1, config.samples_seen // 64)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = _LR * min(
            (step + 1) / (_RISE * steps), (steps - step) / ((1 - _RISE) * steps)
        )
        rows = torch.randint(len(images), (64,), generator=draws)
        loss = nn.functional.cross_entropy(net(images[rows]), labels[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return net.eval()


def _measure_nearest(images: Pool, among: Pool, count: int) -> float:
    first = images.subset(np.arange(len(images)) < count)
    return float(find_nearest(first, among).median())
