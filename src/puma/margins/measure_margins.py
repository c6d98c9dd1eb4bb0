"""Margins of images in memory: what is checked first, how a model is made ready, and the measurement itself."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from puma.attacks import check_batch, check_count, check_label_range, check_number, check_radius, find_norm, to_tensors
from puma.errors import PumaError
from puma.files import UNKNOWN_HASH
from puma.margins.margins_file import MarginProvenance, Margins
from puma.margins.search.engine import Arrival, Rows, SearchMethod, Status, run_search
from puma.margins.search.line_search import Box
from puma.margins.search.methods import SearchSetting, find_method, make_ready
from puma.margins.search.network import Network
from puma.models import flush_subnormals, frozen
from puma.progress import progress_bar

_EXAMPLES = 8  # images that a model is tried on first
# logits within 2 to the plus or minus 64 leave room for sums over all pixels; 2 to the 120 is still a finite factor
_PLAIN_BITS, _MOST_BITS = 64, 120
_ANY_FAILURE = (RuntimeError, ValueError, TypeError, LookupError, AssertionError, AttributeError)


def measure_margins(
    model: nn.Module,
    images: Any,
    labels: Any,
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

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2, bias=False))
        >>> model[1].weight.data = torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 2.0]])
        >>> images = torch.tensor([[0.7, 0.7, 0.7, 0.5], [0.1, 0.1, 0.1, 0.5]]).view(2, 1, 2, 2)
        >>> margins = puma.measure_margins(model, images, [0, 0])  # numpy arrays do as well
        >>> margins.margin.numpy().round(2)  # (n,) float32, in pixel units; the second image is taken for class 1
        array([ 0.4 , -0.05], dtype=float32)
        >>> margins.crossed, margins.prediction  # (n,) bool: was the boundary found; (n,) int64
        (tensor([True, True]), tensor([0, 1]))

    Args:
        model: any module that takes ``images`` and gives logits (n, classes); it comes back as it was.
        images: (n, ...) floats within ``bounds``, a tensor or a numpy array.
        labels: (n,) whole numbers, a tensor, an array or a list.
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
    check_settings(model, batch_size, cap, bounds, norm)
    batch_size = int(batch_size)
    images, labels = to_tensors(images, labels)
    if images.is_floating_point():
        low, high = torch.tensor(bounds, dtype=images.dtype).tolist()  # as pixels know them
        bounds = (low, high)
    check_batch(images, labels, bounds)
    made_from = MarginProvenance(
        pool=UNKNOWN_HASH,
        pool_size=len(images),
        model=UNKNOWN_HASH,
        method=method,
        config=dataclasses.asdict(find_method(method).config),
        norm=find_norm(norm).name,
        cap=cap,
        batch_size=batch_size,
        part_size=max(len(images), 1),
        precision=name_precision(autocast, compiled),
    ).describe()
    points = images.detach().cpu().clone() if boundary else None
    if not len(images):
        whole, count = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int32)
        status = count.to(torch.int8)
        return Margins(torch.zeros(0), status, whole, whole, whole, count, count, whole, made_from, points)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(images), batch_size):
            yield images[start : start + batch_size], labels[start : start + batch_size]

    with (
        prepare_measurement(
            model, images, method=method, norm=norm, bounds=bounds, cap=cap, autocast=autocast, compiled=compiled
        ) as prepared,
        progress_bar("margins", len(images), enabled=progress) as advance,
    ):
        check_label_range(labels, prepared.setting.classes)
        found = prepared.measure(batches(), len(images), batch_size, boundary=points, advance=advance)
    return dataclasses.replace(found, made_from=made_from)


@dataclass(frozen=True)
class PreparedMeasurement:
    """A search assembled for one model; use within ``prepare_measurement``."""

    setting: SearchSetting
    method: SearchMethod
    device: torch.device
    dtype: torch.dtype

    def measure(
        self,
        batches: Iterable[tuple[Tensor, Tensor]],
        count: int,
        batch_size: int,
        *,
        boundary: Tensor | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> Margins:
        """Measure ``count`` samples that come as (images, labels); boundary points are written to ``boundary``."""
        setting = self.setting
        columns = _Columns(count, setting, self.device)

        def arrivals() -> Iterator[Arrival]:
            start = 0
            for images, labels in batches:
                owner = torch.arange(start, start + len(images), device=self.device)
                rows = setting.network.to_rows(images.to(self.device, self.dtype))
                yield Arrival(owner, rows, labels.to(self.device))
                start += len(images)

        def finished(rows: Rows) -> None:
            points = columns.write(rows)
            if boundary is not None:
                boundary[rows.owner.to(boundary.device)] = setting.network.to_images(points).to(boundary)
            if advance is not None:
                advance(len(rows))

        run_search(self.method, arrivals(), batch_size, finished=finished, spent=columns.spend)
        return columns.to_margins(boundary)


@contextmanager
def prepare_measurement(
    model: nn.Module,
    examples: Tensor,
    *,
    method: str,
    norm: str,
    bounds: tuple[float, float],
    cap: float | None,
    autocast: torch.dtype | None = None,
    compiled: bool = False,
    pool_classes: int | None = None,
) -> Iterator[PreparedMeasurement]:
    """Freeze the model, prepare a copy, assemble the search; afterwards the model and the RNG are as they were."""
    device, dtype = find_placement(model)
    examples = examples[:_EXAMPLES].to(device, dtype)
    with frozen(model), torch.random.fork_rng(), ExitStack() as stack:
        with flush_subnormals(enabled=False):
            logits = examine_model(model, examples, pool_classes)
            classes, scale = logits.shape[1], find_logit_scale(logits)
        stack.enter_context(flush_subnormals(enabled=scale <= 1))  # logits so small must not be flushed
        search, kept = make_ready(model, examples, logits, compiled=compiled)
        network = Network(search, model, tuple(examples.shape[1:]), autocast, scale)
        box, chosen = Box(float(bounds[0]), float(bounds[1])), find_norm(norm)
        known = kept.recall(chosen.name, box, autocast, scale)
        setting = SearchSetting(network, chosen, box, classes, cap, network.to_rows(examples), known)
        yield PreparedMeasurement(setting, find_method(method).assemble(setting), device, dtype)


class _Columns:
    """Collects finished rows."""

    def __init__(self, count: int, setting: SearchSetting, device: torch.device) -> None:
        self._norm, self._box, self._cap = setting.norm, setting.box, setting.cap
        self.done = 0
        self.margin = torch.full((count,), torch.nan, device=device)
        self.status = torch.full((count,), int(Status.NON_FINITE), dtype=torch.int8, device=device)
        self.label, self.prediction, self.rival = (torch.full((count,), -1, device=device) for _ in range(3))
        self.forwards, self.backwards = (torch.zeros(count, dtype=torch.int32, device=device) for _ in range(2))

    def spend(self, owner: Tensor, forwards: int, backwards: int) -> None:
        """Count passes through the model."""
        self.forwards.index_add_(0, owner, torch.full_like(owner, forwards, dtype=torch.int32))
        self.backwards.index_add_(0, owner, torch.full_like(owner, backwards, dtype=torch.int32))

    def write(self, rows: Rows) -> Tensor:
        """Write rows down and return their boundary points."""
        crossed = rows.status == Status.CROSSED
        boundary = torch.where(crossed[:, None], self._box.ray(rows.origin, rows.pattern, rows.high), rows.origin)
        length = self._norm.length(boundary - rows.origin)
        if self._cap is not None:  # an L2 ray is followed farther than the cap, since clipping shortens it
            too_far = crossed & (length > self._cap)
            crossed = crossed & ~too_far
            boundary = torch.where(too_far[:, None], rows.origin, boundary)
            rows = rows.change(status=torch.where(too_far, int(Status.CAPPED), rows.status))
        length = torch.where(crossed, length.clamp_min(torch.finfo(torch.float32).tiny), torch.nan)
        nowhere = (rows.status == Status.NOT_CROSSED) | (rows.status == Status.OUT_OF_STEPS)
        length = length.where(~nowhere, torch.inf)
        length = length.where(rows.status != Status.CAPPED, self._cap if self._cap is not None else torch.nan)
        self.margin[rows.owner] = torch.where(rows.right, length, -length).float()
        self.status[rows.owner] = rows.status.to(torch.int8)
        self.label[rows.owner] = rows.label
        self.prediction[rows.owner] = rows.prediction
        self.rival[rows.owner] = rows.rival
        self.done += len(rows)
        return boundary

    def to_margins(self, boundary: Tensor | None) -> Margins:
        """Return what was collected, once for every sample."""
        if self.done != len(self.margin):
            raise AssertionError(f"{self.done} searches ended for {len(self.margin)} samples")
        return Margins(
            margin=self.margin.cpu(),
            status=self.status.cpu(),
            label=self.label.cpu(),
            prediction=self.prediction.cpu(),
            rival=self.rival.cpu(),
            forwards=self.forwards.cpu(),
            backwards=self.backwards.cpu(),
            sample_id=torch.arange(len(self.margin)),
            boundary=boundary,
        )


def check_settings(
    model: object, batch_size: int, cap: float | None, bounds: tuple[float, float], norm: str = "linf"
) -> None:
    """Refuse what makes no sense."""
    if not isinstance(model, nn.Module):
        raise PumaError(
            f"model must be a torch.nn.Module, got {type(model).__name__}; puma.load_model gives one for a name."
        )
    check_count(batch_size, "batch_size")
    if cap is not None:
        check_number(cap, "cap")
    if cap is not None and not 0 < cap < float("inf"):
        raise PumaError(f"cap must be a positive number, got {cap}.")
    if not bounds[0] < bounds[1]:
        raise PumaError(f"bounds must be (low, high) with low < high, got {bounds}.")
    if cap is not None:
        check_radius(cap, "cap", norm=find_norm(norm).name, bounds=bounds)


def name_precision(autocast: torch.dtype | None, compiled: bool) -> str:
    """Say in words how a search computes."""
    return str(autocast or torch.float32).removeprefix("torch.") + (" compiled" if compiled else "")


def find_placement(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Return where the model's parameters are and what they are; half precision raises."""
    tensors = [*model.parameters(), *model.buffers()]
    first = next((tensor for tensor in tensors if tensor.is_floating_point()), torch.empty(0))
    if first.dtype not in (torch.float32, torch.float64):
        raise PumaError(f"the model's weights are {first.dtype}; verdicts need fp32: pass model.float().")
    return first.device, first.dtype


def find_logit_scale(logits: Tensor) -> float:
    """Return 1, or for logits near the ends of fp32's range the power of two that brings them near 1.

    Multiplying by it is exact and changes no prediction.
    """
    largest = float(logits.abs().amax()) if len(logits) else 1.0
    if not math.isfinite(largest) or largest == 0 or 2.0**-_PLAIN_BITS < largest < 2.0**_PLAIN_BITS:
        return 1.0
    return float(2.0 ** max(-_MOST_BITS, min(_MOST_BITS, -round(math.log2(largest)))))


def examine_model(model: nn.Module, examples: Tensor, classes: int | None = None) -> Tensor:
    """Run a few images through the model, warn of what spoils margins, and return their logits.

    ``classes`` is how many the images are of, where that is known.
    """
    shape = tuple(examples.shape[1:])
    points = examples.detach().clone().requires_grad_()
    try:
        logits = model(points)
    except _ANY_FAILURE as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise PumaError(
            f"the model cannot take images of shape {shape} (channels, height, width): {reason}."
        ) from error
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(examples):
        got = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise PumaError(f"the model must give logits of shape ({len(examples)}, classes), got {got}.")
    if classes is not None and logits.shape[1] > classes:
        warnings.warn(
            f"the model knows {logits.shape[1]} classes, the pool has {classes}: margins count the others as wrong; "
            "check that the classes have the same order.",
            stacklevel=4,
        )
    if logits.shape[1] < 2:
        raise PumaError(f"a margin needs at least 2 classes, the model gives {logits.shape[1]} logit.")
    if not logits.requires_grad:
        raise PumaError(
            "the model's logits have no gradient to the pixels; does forward use no_grad, detach, numpy or rounding?"
        )
    _warn_of_outputs(model, logits.detach(), examples)
    return logits.detach()


@torch.no_grad()
def _warn_of_outputs(model: nn.Module, logits: Tensor, examples: Tensor) -> None:
    total = logits.sum(1)
    if bool(((logits >= 0) & (logits <= 1)).all()) and bool(((total - 1).abs() < 1e-3).all()):
        warnings.warn(
            "the model's outputs look like probabilities; margins need logits, remove the final softmax.",
            stacklevel=4,
        )
    again = model(examples)
    if bool(((again - logits).abs() > 1e-3 * logits.abs().amax()).any()):
        warnings.warn(
            "the model is random in eval mode: the same images gave other logits; margins will be unreliable.",
            stacklevel=4,
        )
