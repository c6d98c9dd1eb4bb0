"""Margins of images in memory."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from puma.attacks.norms import find_norm
from puma.attacks.validation import check_batch
from puma.errors import PumaError
from puma.margins.checks import check_settings
from puma.margins.meter import ready
from puma.margins.methods import method_named
from puma.margins.result import Margins
from puma.progress import progress_bar


def measure_margins(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    method: str = "deepfool",
    norm: str = "linf",
    bounds: tuple[float, float] = (0.0, 1.0),
    batch_size: int = 128,
    cap: float | None = None,
    progress: bool = False,
    boundary: bool = False,
    autocast: torch.dtype | None = None,
    compiled: bool = False,
) -> Margins:
    """Measure how far every image is from the decision boundary of ``model``.

    Args:
        model: any module that takes ``images`` and gives logits; it comes back as it was.
        images: (n, ...) floats within ``bounds``.
        labels: (n,) int64.
        method: ``deepfool``, ``tight``, ``fast``, ``fast-ce`` or ``deepfool-classic``.
        norm: ``linf`` or ``l2``.
        bounds: the pixel box; the search never leaves it.
        batch_size: samples that go through the model together.
        cap: do not look farther than this; samples without a boundary so near get the status CAPPED. In L2 it saves
            no work: where pixels are clipped, a long ray may cover a short distance.
        progress: show a progress bar.
        boundary: also return the points just beyond the boundary.
        autocast: search in this lower precision; verdicts stay in fp32.
        compiled: search with a ``torch.compile``d copy of the model.

    Returns:
        Signed margins with a status for each: positive is the distance to leaving the label, negative is minus the
        distance to reaching it.
    """
    check_settings(batch_size, cap, bounds)
    method_named(method), find_norm(norm)
    if images.is_floating_point():
        low, high = torch.tensor(bounds, dtype=images.dtype).tolist()  # as pixels know them
        bounds = (low, high)
    check_batch(images, labels, bounds)
    if not len(images):
        return _nothing(images if boundary else None)
    points = images.detach().cpu().clone() if boundary else None

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(images), batch_size):
            yield images[start : start + batch_size], labels[start : start + batch_size]

    with (
        ready(
            model, images, method=method, norm=norm, bounds=bounds, cap=cap, autocast=autocast, compiled=compiled
        ) as meter,
        progress_bar("margins", len(images), enabled=progress) as advance,
    ):
        check_labels(labels, meter.setting.classes)
        return meter.measure(batches(), len(images), batch_size, boundary=points, advance=advance)


def check_labels(labels: Tensor, classes: int) -> None:
    """Refuse labels that the model has no logit for."""
    low, high = (int(value) for value in labels.aminmax())
    if low < 0 or high >= classes:
        raise PumaError(f"labels must lie in 0..{classes - 1} for this model's {classes} classes, got {low}..{high}.")


def _nothing(boundary: Tensor | None) -> Margins:
    whole, count = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int32)
    return Margins(torch.zeros(0), whole.to(torch.int8), whole, whole, count, count, boundary)
