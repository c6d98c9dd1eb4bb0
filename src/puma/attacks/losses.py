"""Attack losses per sample: an attack raises them (or lowers them, for a negative strength)."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from puma.errors import unknown_name

Loss = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def cross_entropy(logits: Tensor, labels: Tensor, clean_logits: Tensor | None) -> Tensor:  # noqa: ARG001
    """CE to the label."""
    return F.cross_entropy(logits, labels, reduction="none")


def kl_to_clean(logits: Tensor, labels: Tensor, clean_logits: Tensor | None) -> Tensor:  # noqa: ARG001
    """KL(clean prediction || prediction), the clean one held fixed (TRADES)."""
    assert clean_logits is not None
    clean = F.log_softmax(clean_logits, dim=1)
    return F.kl_div(F.log_softmax(logits, dim=1), clean, reduction="none", log_target=True).sum(dim=1)


def margin_loss(logits: Tensor, labels: Tensor, clean_logits: Tensor | None) -> Tensor:  # noqa: ARG001
    """C&W: the best other class's logit minus the label's."""
    label = labels.unsqueeze(1)
    others = logits.scatter(1, label, -torch.inf)
    return others.amax(dim=1) - logits.gather(1, label).squeeze(1)


LOSSES: dict[str, Loss] = {"ce": cross_entropy, "kl": kl_to_clean, "cw": margin_loss}


def loss_by_name(name: str) -> Loss:
    """Look a loss up; an unknown name raises."""
    if name not in LOSSES:
        raise unknown_name("attack loss", name, list(LOSSES))
    return LOSSES[name]
