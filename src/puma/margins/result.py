"""What a measurement returns."""

from dataclasses import dataclass

import torch
from torch import Tensor

from puma.attacks.norms import Norm
from puma.margins.geometry import Box
from puma.margins.rows import Rows
from puma.margins.status import Status


@dataclass(frozen=True)
class Margins:
    """Signed margins of n samples, in pixel units.

    Positive: distance to leaving the label. Negative: minus the distance to reaching it. A value is measured only
    where ``status`` is CROSSED; it is infinite (with the sign) for NOT_CROSSED, plus or minus the cap for CAPPED, and
    NaN for ZERO_GRADIENT and NON_FINITE.
    """

    margin: Tensor  # (n,) float32
    status: Tensor  # (n,) int8, values of Status
    prediction: Tensor  # (n,) int64
    rival: Tensor  # (n,) int64: the class on the other side (right sample), or the last to be overtaken (wrong one)
    forwards: Tensor  # (n,) int32
    backwards: Tensor  # (n,) int32
    boundary: Tensor | None = None  # the image just beyond the boundary; the sample itself where none was found

    def __len__(self) -> int:
        return len(self.margin)

    @property
    def crossed(self) -> Tensor:
        """Was the boundary found (n,)."""
        return self.status == Status.CROSSED


class Tally:
    """Collects finished rows into columns."""

    def __init__(self, count: int, norm: Norm, box: Box, device: torch.device, cap: float | None) -> None:
        self._norm, self._box, self._cap = norm, box, cap
        self.done = 0
        self.margin = torch.full((count,), torch.nan, device=device)
        self.status = torch.full((count,), int(Status.NON_FINITE), dtype=torch.int8, device=device)
        self.prediction = torch.full((count,), -1, device=device)
        self.rival = torch.full((count,), -1, device=device)
        self.forwards = torch.zeros(count, dtype=torch.int32, device=device)
        self.backwards = torch.zeros(count, dtype=torch.int32, device=device)

    def spend(self, owner: Tensor, forwards: int, backwards: int) -> None:
        """Count passes through the model."""
        self.forwards.index_add_(0, owner, torch.full_like(owner, forwards, dtype=torch.int32))
        self.backwards.index_add_(0, owner, torch.full_like(owner, backwards, dtype=torch.int32))

    def finish(self, rows: Rows) -> Tensor:
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
        length = length.where(rows.status != Status.NOT_CROSSED, torch.inf)
        length = length.where(rows.status != Status.CAPPED, self._cap if self._cap is not None else torch.nan)
        self.margin[rows.owner] = torch.where(rows.right, length, -length).float()
        self.status[rows.owner] = rows.status.to(torch.int8)
        self.prediction[rows.owner] = rows.prediction
        self.rival[rows.owner] = rows.rival
        self.done += len(rows)
        return boundary

    def result(self, device: torch.device, boundary: Tensor | None) -> Margins:
        """Return what was collected, once for every sample."""
        if self.done != len(self.margin):
            raise AssertionError(f"{self.done} searches ended for {len(self.margin)} samples")
        return Margins(
            margin=self.margin.to(device),
            status=self.status.to(device),
            prediction=self.prediction.to(device),
            rival=self.rival.to(device),
            forwards=self.forwards.to(device),
            backwards=self.backwards.to(device),
            boundary=boundary,
        )
