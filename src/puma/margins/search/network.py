"""The model as the searches see it: rows of pixels in, logits and gradients out."""

import contextlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Network:
    """Two views of one model: a copy prepared for speed, and the original that has the last word."""

    search: nn.Module
    verdict: nn.Module
    shape: tuple[int, ...]
    autocast: torch.dtype | None = None
    scale: float = 1.0  # a power of two that logits are multiplied by, so that no gap or norm of theirs overflows

    @property
    def pixels(self) -> int:
        """Number of values in one image."""
        return math.prod(self.shape)

    def to_images(self, rows: Tensor) -> Tensor:
        """View rows as images; channels come last in memory, so convolutions need no copy."""
        if len(self.shape) != 3:
            return rows.view(-1, *self.shape)
        channels, height, width = self.shape
        return rows.view(-1, height, width, channels).permute(0, 3, 1, 2)

    def to_rows(self, images: Tensor) -> Tensor:
        """Lay images out as rows: the inverse of ``to_images``."""
        if len(self.shape) == 3:
            images = images.permute(0, 2, 3, 1)
        return images.reshape(len(images), -1)

    def logits(self, rows: Tensor) -> Tensor:
        """Logits for a search: differentiable, of the prepared copy, maybe of lower precision."""
        with self._precision(rows):
            logits: Tensor = self.search(self.to_images(rows))
        return self._rescale(logits.to(rows.dtype))

    @torch.no_grad()
    def judge(self, rows: Tensor) -> Tensor:
        """Logits for a verdict: of the original model, in fp32."""
        logits: Tensor = self.verdict(self.to_images(rows))
        return self._rescale(logits.to(rows.dtype))

    def _rescale(self, logits: Tensor) -> Tensor:
        return logits if self.scale == 1.0 else logits * self.scale

    def _precision(self, rows: Tensor) -> contextlib.AbstractContextManager[object]:
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(rows.device.type, dtype=self.autocast)


def take_gradient(total: Tensor, points: Tensor, *, again: bool = False) -> Tensor:
    """Gradient of a sum over rows; ``again`` keeps the graph for another call."""
    return torch.autograd.grad(total, points, retain_graph=again)[0]


def pick_logit(logits: Tensor, index: Tensor) -> Tensor:
    """Return one logit per row."""
    return logits.gather(1, index[:, None]).squeeze(1)


def mask_label(logits: Tensor, label: Tensor) -> Tensor:
    """Return the logits with the label's set to minus infinity."""
    return logits.scatter(1, label[:, None], -torch.inf)


def measure_gap(logits: Tensor, label: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is left to the boundary, positive before it, and the strongest rival.

    A right sample leaves its label when any rival overtakes it; a wrong one reaches it when it overtakes all.
    """
    top, rival = mask_label(logits, label).max(1)
    lead = pick_logit(logits, label) - top
    return torch.where(right, lead, -lead), rival
