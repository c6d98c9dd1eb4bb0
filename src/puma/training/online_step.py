"""The loss of a batch under online PUMA."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from puma.models import frozen
from puma.training.batch_attack import inner_attack
from puma.training.config import TrainConfig
from puma.training.distributed import Ranks
from puma.training.feed import StepBatch
from puma.training.inner_attack import unwrapped
from puma.training.online import OnlineBatch, OnlineState, choose, followed
from puma.training.trades import Outcome, full_precision, trades_terms

_ORDER = 3  # a stream of randomness of its own


def online_loss(
    model: nn.Module,
    state: OnlineState,
    ranks: Ranks,
    images: Tensor,
    labels: Tensor,
    piece: StepBatch,
    config: TrainConfig,
) -> tuple[Outcome, Tensor, OnlineBatch]:
    """Return the loss, the labels it was taken of, and what was chosen; ``state`` moves on by one step."""
    online, eps = config.online, config.attack.eps
    wanted = config.batch_size // ranks.count
    pruning = online.mode == "paper" or piece.step >= online.warmup * config.steps
    order = np.random.default_rng((config.seed, piece.step, _ORDER, ranks.rank)).permutation(len(labels))
    if not pruning:
        order = order[:wanted]
    rows = torch.from_numpy(order).to(images.device)
    images, labels = images[rows], labels[rows]
    bare = unwrapped(model)
    with frozen(bare, config.attack.batchnorm), torch.no_grad():
        clean = full_precision(bare(images))
    strength = images.new_full((len(images),), eps)
    attack = inner_attack(images, strength, replace(piece, rows=piece.rows[order]), config)
    attacked = attack.perturb(model, images, labels, strength, clean)
    chosen = choose(
        bare,
        images,
        labels,
        attacked,
        clean.argmax(dim=1) == labels,
        eps=eps,
        config=online,
        batchnorm=config.attack.batchnorm,
        threshold=state.threshold,
        wanted=wanted,
        pruning=pruning,
    )
    state.threshold = followed(state.threshold, ranks.mean(chosen.easy_share), eps, online)
    trained, points, weight = chosen.rows, chosen.points, 1.0
    if not len(trained):  # everything was pruned; the passes must happen all the same, other processes wait for them
        trained, points, weight = rows.new_zeros(1), attacked[:1], 0.0
    outcome = trades_terms(
        full_precision(model(images[trained])),
        full_precision(model(points)),
        labels[trained],
        beta=config.beta,
        label_smoothing=config.label_smoothing,
    )
    return replace(outcome, loss=weight * outcome.loss), labels[trained], chosen
