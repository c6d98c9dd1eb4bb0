"""The first look at a sample: is it right, by how much, and can it be measured at all."""

import torch
from torch import Tensor

from puma.margins.network import Network, true_gap
from puma.margins.rows import Arrival, Rows, new_rows
from puma.margins.status import Status
from puma.margins.stream import DONE

# leads below this share of the largest logit are decided by the original model, not by its prepared copy
NEAR_TIE = 1e-3


def assess(arrival: Arrival, logits: Tensor, network: Network) -> Rows:
    """Open rows with the original model's prediction; samples with non-finite logits are done at once."""
    logits = logits.detach()
    prediction = logits.argmax(1)
    lead = (logits.topk(2, 1).values * logits.new_tensor([1.0, -1.0])).sum(1)
    unsure = ~(lead > NEAR_TIE * logits.abs().amax(1)) | (network.autocast is not None)
    if bool(unsure.any()):
        exact = network.judge(arrival.origin[unsure])
        logits, prediction = logits.clone(), prediction.clone()
        logits[unsure], prediction[unsure] = exact, exact.argmax(1)
    gap, rival = true_gap(logits, arrival.label, prediction == arrival.label)
    rows = new_rows(arrival, prediction, gap, rival)
    return close(rows, ~logits.isfinite().all(1), Status.NON_FINITE)


def close(rows: Rows, which: Tensor, status: Status) -> Rows:
    """End the search of some rows."""
    return rows.change(stage=torch.where(which, DONE, rows.stage), status=torch.where(which, int(status), rows.status))
