"""A model made ready for measuring, once, for any number of batches."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from puma.attacks.norms import find_norm
from puma.errors import PumaError
from puma.margins.checks import check_settings, examine
from puma.margins.geometry import Box
from puma.margins.methods import Setting, method_named
from puma.margins.network import Network
from puma.margins.result import Margins, Tally
from puma.margins.rows import Arrival, Rows
from puma.margins.stream import Method, run
from puma.models import frozen
from puma.models.prepare import prepare_model

_EXAMPLES = 8


@dataclass(frozen=True)
class Meter:
    """A search assembled for one model; use within ``ready``."""

    setting: Setting
    method: Method
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
        tally = Tally(count, setting.norm, setting.box, self.device, setting.cap)

        def arrivals() -> Iterator[Arrival]:
            start = 0
            for images, labels in batches:
                owner = torch.arange(start, start + len(images), device=self.device)
                rows = setting.network.rows(images.to(self.device, self.dtype))
                yield Arrival(owner, rows, labels.to(self.device))
                start += len(images)

        def finished(rows: Rows) -> None:
            points = tally.finish(rows)
            if boundary is not None:
                boundary[rows.owner.to(boundary.device)] = setting.network.images(points).to(boundary)
            if advance is not None:
                advance(len(rows))

        run(self.method, arrivals(), batch_size, finished=finished, spent=tally.spend)
        return tally.result(torch.device("cpu"), boundary)


@contextmanager
def ready(
    model: nn.Module,
    examples: Tensor,
    *,
    method: str,
    norm: str,
    bounds: tuple[float, float],
    cap: float | None,
    autocast: torch.dtype | None = None,
    compiled: bool = False,
) -> Iterator[Meter]:
    """Freeze the model, prepare a copy, assemble the search; afterwards the model and the RNG are as they were."""
    check_settings(1, cap, bounds)
    offer, chosen = method_named(method), find_norm(norm)
    device, dtype = place_of(model)
    examples = examples[:_EXAMPLES].to(device, dtype)
    with frozen(model), torch.random.fork_rng():
        classes = examine(model, examples)
        search = prepare_model(model, examples)
        if compiled and search is not model:
            search.compile()
        network = Network(search, model, tuple(examples.shape[1:]), autocast)
        box = Box(float(bounds[0]), float(bounds[1]))
        setting = Setting(network, chosen, box, classes, cap, network.rows(examples))
        yield Meter(setting, offer.assemble(setting), device, dtype)


def place_of(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Return where the model's parameters are and what they are; half precision raises."""
    tensors = [*model.parameters(), *model.buffers()]
    first = next((tensor for tensor in tensors if tensor.is_floating_point()), torch.empty(0))
    if first.dtype not in (torch.float32, torch.float64):
        raise PumaError(f"the model's weights are {first.dtype}; verdicts need fp32: pass model.float().")
    return first.device, first.dtype
