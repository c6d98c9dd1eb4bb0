"""The loss of a batch under online PUMA."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from puma.models import frozen
from puma.training.batch_attack import inner_attack
from puma.training.config import TrainConfig
from puma.training.distributed import Ranks
from puma.training.feed import StepBatch
from puma.training.inner_attack import InnerAttack, unwrapped
from puma.training.online import OnlineState, followed, pick, right_at, segment_point, segment_strength
from puma.training.trades import Outcome, full_precision, trades_terms

_ORDER = 3  # a stream of randomness of its own


@dataclass(frozen=True)
class Candidates:
    """Samples that a batch is made from, in random order, with what the model says of them as they are."""

    images: Tensor
    labels: Tensor
    clean: Tensor

    def take(self, rows: Tensor) -> "Candidates":
        """Only these."""
        return Candidates(self.images[rows], self.labels[rows], self.clean[rows])


@dataclass(frozen=True)
class Chosen:
    """What is trained on: samples, their attacked images, their strengths.

    And which share of the candidates was easy, and which share was left out for that.
    """

    samples: Candidates
    attacked: Tensor
    strength: Tensor
    easy_share: float
    pruned_share: float


def online_loss(
    model: nn.Module,
    state: OnlineState,
    ranks: Ranks,
    images: Tensor,
    labels: Tensor,
    piece: StepBatch,
    config: TrainConfig,
) -> tuple[Outcome, Tensor, Chosen]:
    """Return the loss, the labels it was taken of, and what was chosen; ``state`` moves on by one step."""
    online, eps = config.online, config.attack.eps
    wanted = config.batch_size // ranks.count
    pruning = online.mode == "paper" or piece.step >= online.warmup * config.steps
    order = np.random.default_rng((config.seed, piece.step, _ORDER, ranks.rank)).permutation(len(labels))
    order = order if pruning else order[:wanted]
    rows = torch.from_numpy(order).to(images.device)
    bare = unwrapped(model)
    with frozen(bare, config.attack.batchnorm), torch.no_grad():
        candidates = Candidates(images[rows], labels[rows], full_precision(bare(images[rows])))
    strength = images.new_full((len(rows),), eps)
    attack = inner_attack(candidates.images, strength, replace(piece, rows=piece.rows[order]), config)
    choose = choose_early if online.replaces else choose_late
    chosen = choose(bare, candidates, attack, config, state.threshold, wanted, pruning=pruning)
    state.threshold = followed(state.threshold, ranks.mean(chosen.easy_share), eps, online)
    trained = chosen.samples
    if not len(trained.labels):  # everything was pruned; the passes happen all the same, other processes wait for them
        nothing = 0 * (model(candidates.images).sum() + model(candidates.images).sum())
        return Outcome(nothing, None, None), trained.labels, chosen
    points = segment_point(trained.images, chosen.attacked, chosen.strength, eps)
    outcome = trades_terms(
        full_precision(model(trained.images)),
        full_precision(model(points)),
        trained.labels,
        beta=config.beta,
        label_smoothing=config.label_smoothing,
    )
    return outcome, trained.labels, chosen


def choose_early(
    model: nn.Module,
    candidates: Candidates,
    attack: InnerAttack,
    config: TrainConfig,
    threshold: float,
    wanted: int,
    *,
    pruning: bool,
) -> Chosen:
    """Attack all candidates for a few steps, prune, and go on with a full batch of the others."""
    eps, early = config.attack.eps, min(config.online.probe_steps, config.attack.steps)
    probe = replace(attack, steps=early).perturb(model, candidates.images, candidates.labels, eps, candidates.clean)
    with frozen(model, config.attack.batchnorm), torch.no_grad():
        easy = right_at(model, candidates.images, candidates.labels, probe, eps, threshold)
    pruned = easy if pruning else torch.zeros_like(easy)
    rows = pick(pruned, wanted, fill=True)
    samples = candidates.take(rows)
    later = replace(attack, steps=config.attack.steps - early, start=probe[rows])
    attacked = later.perturb(model, samples.images, samples.labels, eps, samples.clean)
    strength = _strength(model, samples, attacked, config)
    left_out = pruned.index_fill(0, rows, False)
    return Chosen(samples, attacked, strength, _share(easy), _share(left_out))


def choose_late(
    model: nn.Module,
    candidates: Candidates,
    attack: InnerAttack,
    config: TrainConfig,
    threshold: float,
    wanted: int,
    *,
    pruning: bool,
) -> Chosen:
    """Attack all candidates, then leave out those that are still right at the threshold; nothing replaces them."""
    eps = config.attack.eps
    attacked = attack.perturb(model, candidates.images, candidates.labels, eps, candidates.clean)
    easy = torch.zeros(len(candidates.labels), dtype=torch.bool, device=attacked.device)
    if pruning and config.online.mode == "paper" and threshold > 0:
        with frozen(model, config.attack.batchnorm), torch.no_grad():
            easy = right_at(model, candidates.images, candidates.labels, attacked, eps, threshold)
    rows = pick(easy, wanted, fill=False)
    rows = rows if len(rows) > 1 else rows[:0]  # BN cannot normalise a single sample
    samples, attacked = candidates.take(rows), attacked[rows]
    return Chosen(samples, attacked, _strength(model, samples, attacked, config), _share(easy), _share(easy))


def _strength(model: nn.Module, samples: Candidates, attacked: Tensor, config: TrainConfig) -> Tensor:
    if not len(attacked):
        return attacked.new_zeros(0)
    batchnorm = config.attack.batchnorm
    with frozen(model, batchnorm), torch.no_grad():
        return segment_strength(
            model,
            samples.images,
            samples.labels,
            attacked,
            samples.clean.argmax(dim=1) == samples.labels,
            config.attack.eps,
            steps=config.online.search_steps,
            compact=batchnorm == "eval",
        )


def _share(mask: Tensor) -> float:
    return float(mask.double().mean())
