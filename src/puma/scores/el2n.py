"""EL2N: the length of the error vector, averaged over briefly trained nets."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from puma.errors import PumaError
from puma.models import frozen
from puma.pools import Pool, to_unit
from puma.progress import progress_bar


def error_length(logits: Tensor, labels: Tensor) -> Tensor:
    """Return ||softmax(logits) - onehot(label)||_2 for each sample (n,)."""
    error = logits.softmax(dim=1)
    error = error - F.one_hot(labels, logits.shape[1])
    length: Tensor = torch.linalg.vector_norm(error, dim=1)
    return length


def el2n(models: Iterable[nn.Module], pool: Pool, *, batch_size: int = 512, progress: bool = False) -> Tensor:
    """Return the score of every sample of the pool (n,), on images as they are, averaged over the models."""
    total, count = torch.zeros(len(pool), dtype=torch.float64), 0
    for model in models:
        count += 1
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        done = 0
        with (
            frozen(model),
            torch.inference_mode(),
            progress_bar(f"EL2N, net {count}", len(pool), enabled=progress) as advance,
        ):
            for batch in pool.batches(batch_size):
                logits = model(to_unit(batch.images.to(device)))
                total[done : done + len(batch)] += error_length(logits.float(), batch.labels.to(device)).cpu()
                done += len(batch)
                advance(len(batch))
    if count == 0:
        raise PumaError("EL2N needs at least one net, got none.")
    return (total / count).float()
