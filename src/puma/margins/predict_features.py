"""What one forward pass tells about a sample: its gap, its logits, and the features before the last linear layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from puma.margins.measure_margins import examine_model, find_placement
from puma.margins.search.network import mask_label, pick_logit
from puma.models import frozen

Table = NDArray[np.float32]
CORE = ("gap", "log_gap", "scaled_gap", "log_scale", "logit", "rival_1", "rival_2", "rival_3", "rival_4", "total",
        "length", "label", "rival")  # fmt: skip
CODES = 2  # of these, the last are numbers of classes
_WIDEST = 512  # features beyond are projected: a fit on thousands of samples gains nothing from more
_TINY = 1e-12  # keeps quotients and logarithms finite


@dataclass(frozen=True)
class PassReading:
    """What a batch's forward pass told: a row of features per sample, and what the model says of it."""

    features: Table  # (n, CORE + features of the last layer)
    prediction: Tensor
    rival: Tensor

    @property
    def gap(self) -> NDArray[np.float32]:
        """Label's logit less the strongest other (n,): the sign of the margin."""
        return self.features[:, 0]


@dataclass(frozen=True)
class PassReader:
    """A model whose forward passes are read; use within ``open_reader``."""

    model: nn.Module
    head: nn.Linear | None  # the last linear layer, where there is one
    classes: int
    device: torch.device
    dtype: torch.dtype
    caught: list[Tensor]  # what went into the head in the last pass
    projection: Tensor | None

    @torch.no_grad()
    def read(self, images: Tensor, labels: Tensor) -> PassReading:
        """Run a batch through the model once."""
        self.caught.clear()
        label = labels.to(self.device)
        logits: Tensor = self.model(images.to(self.device, self.dtype))
        others, places = mask_label(logits, label).topk(min(4, self.classes - 1), 1)
        rival = places[:, 0]
        logit = pick_logit(logits, label)
        gap = logit - others[:, 0]
        wide = self._widen(logits)
        scale = torch.ones_like(gap)
        if self.head is not None:
            weight = self.head.weight
            scale = (weight[label] - weight[rival]).norm(dim=1).clamp_min(_TINY)
        padded = torch.cat([others, others[:, -1:].expand(-1, 4 - others.shape[1])], 1)
        columns = [
            gap,
            gap.abs().clamp_min(_TINY).log(),
            gap / scale,
            scale.log(),
            logit,
            *padded.unbind(1),
            logits.logsumexp(1),
            wide.norm(dim=1),
            label.to(logits),
            rival.to(logits),
        ]
        features = torch.cat([torch.stack(columns, 1), wide], 1).float().cpu().numpy()
        return PassReading(features, logits.argmax(1).cpu(), rival.cpu())

    def _widen(self, logits: Tensor) -> Tensor:
        wide = self.caught[-1].flatten(1) if self.head is not None else logits
        return wide if self.projection is None else wide @ self.projection


@contextmanager
def open_reader(model: nn.Module, examples: Tensor) -> Iterator[PassReader]:
    """Freeze the model and listen to its last linear layer; a model without one is read by its logits."""
    device, dtype = find_placement(model)
    examples = examples.to(device, dtype)
    with frozen(model), torch.random.fork_rng():
        classes = examine_model(model, examples).shape[1]
        caught: list[Tensor] = []
        head = _find_head(model, examples, classes)
        width = head.in_features if head is not None else classes
        projection = None
        if width > _WIDEST:
            generator = torch.Generator().manual_seed(0)
            projection = (torch.randn(width, _WIDEST, generator=generator) / _WIDEST**0.5).to(device, dtype)
        listening = head.register_forward_pre_hook(lambda _, given: caught.append(given[0])) if head else None
        try:
            yield PassReader(model, head, classes, device, dtype, caught, projection)
        finally:
            if listening is not None:
                listening.remove()


@torch.no_grad()
def _find_head(model: nn.Module, examples: Tensor, classes: int) -> nn.Linear | None:
    """Return the linear layer whose outputs are the logits, as a pass over examples shows; None without one."""
    for layer in reversed([module for module in model.modules() if isinstance(module, nn.Linear)]):
        if layer.out_features != classes:
            continue
        seen: list[tuple[Tensor, Tensor]] = []
        listening = layer.register_forward_hook(lambda _, given, out, seen=seen: seen.append((given[0], out)))
        try:
            logits = model(examples)
        finally:
            listening.remove()
        if len(seen) == 1 and seen[0][0].dim() == 2 and torch.equal(seen[0][1], logits):
            return layer
    return None
