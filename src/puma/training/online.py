"""Online PUMA: strength and pruning from the attack of the batch at hand, without margins measured beforehand.

After the usual attack, the segment from the image to the attacked image is searched for the largest signed distance m
at which the model is still right; m is the sample's strength. A sample that is still right far out, at m_P, is easy
and pruned. With a fixed m_P (``paper``) a young model may find every sample easy or none; ``ours`` prunes nothing while
it warms up and lets m_P follow the quantile of the margins, so that the share that is pruned is the one asked for.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from puma.attacks import per_sample
from puma.models import BatchNormMode, frozen
from puma.processes import ProcessGroup
from puma.training.batches import TrainBatch
from puma.training.config import OnlineConfig, TrainConfig
from puma.training.losses import (
    InnerAttack,
    LossResult,
    combine_trades_terms,
    make_inner_attack,
    to_full_precision,
    unwrap_ddp,
)

_FOLLOW = 0.5  # how fast m_P follows, in units of its logarithm per unit of share
_LOWEST, _HIGHEST = 1e-3, 30.0  # bounds of m_P in multiples of eps
_ORDER_STREAM = 3  # randomness that must not repeat that of the augmentation (1) or of the attack's start (2)


@dataclass
class OnlineState:
    """What one step hands to the next: the distance m_P, or that of each class (classes,)."""

    threshold: float
    by_class: Tensor | None = None

    @property
    def mean(self) -> float:
        """The distance m_P, over classes."""
        return self.threshold if self.by_class is None else float(self.by_class.mean())


def initial_threshold(config: OnlineConfig, eps: float) -> float:
    """Return m_P before the first step."""
    return config.prune_at if config.mode == "paper" else 2 * eps


def segment_point(images: Tensor, attacked: Tensor, distance: Tensor, eps: float) -> Tensor:
    """Return image + distance / eps * (attacked - image), within the pixel bounds; negative goes the other way."""
    return (images + per_sample(distance / eps, images) * (attacked - images)).clamp(0, 1)


def segment_strength(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    attacked: Tensor,
    clean_right: Tensor,
    eps: float,
    *,
    steps: int,
    compact: bool = True,
) -> Tensor:
    """Return the largest m in [-eps, eps] (n,) at which the model is right on the segment, by bisection.

    Being right at the image, or not, tells which half to search. Where the model is wrong even at -eps, m is -eps;
    where it is right at +eps, m is eps. The model is used as it is; unless ``compact`` is False, as a model that
    normalises by its batch needs it, only undecided samples are evaluated.
    """

    def right(rows: Tensor, distance: Tensor) -> Tensor:
        points = segment_point(images[rows], attacked[rows], distance, eps)
        verdict: Tensor = model(points).argmax(dim=1) == labels[rows]
        return verdict

    radius = images.new_tensor(eps)
    strength = torch.where(clean_right, radius, -radius)
    rows = torch.arange(len(images), device=images.device)
    undecided = right(rows, strength) != clean_right
    low = torch.where(undecided, torch.where(clean_right, 0 * radius, -radius), strength)  # right here
    high = torch.where(undecided, low + radius, strength)  # wrong here; the decided stand still
    if compact:
        rows = undecided.nonzero().squeeze(1)
        low, high = low[rows], high[rows]
    for _ in range(steps if len(rows) else 0):
        middle = (low + high) / 2
        verdict = right(rows, middle)
        low, high = torch.where(verdict, middle, low), torch.where(verdict, high, middle)
    return strength.index_copy(0, rows, low)


def is_right_at(
    model: nn.Module, images: Tensor, labels: Tensor, attacked: Tensor, eps: float, distance: float | Tensor
) -> Tensor:
    """Tell which samples the model gets right at a distance, which may lie beyond the attack (n,); or at one each."""
    if not isinstance(distance, Tensor):
        distance = images.new_full((len(images),), distance)
    points = segment_point(images, attacked, distance, eps)
    verdict: Tensor = model(points).argmax(dim=1) == labels
    return verdict


def pick_rows(pruned: Tensor, wanted: int, *, fill: bool) -> Tensor:
    """Return the first ``wanted`` rows that are not pruned; where there are fewer, ``fill`` up with pruned ones."""
    rows = torch.argsort(pruned.to(torch.int8), stable=True)
    return rows[: wanted if fill else min(wanted, len(pruned) - int(pruned.sum()))]


def update_threshold(threshold: float, easy_share: float, eps: float, config: OnlineConfig) -> float:
    """Move m_P towards the distance at which the asked share of samples is still right (a running quantile)."""
    if not config.replaces:
        return threshold
    moved = threshold * math.exp(_FOLLOW * (easy_share - config.prune_fraction))
    return min(max(moved, _LOWEST * eps), _HIGHEST * eps)


def update_class_thresholds(
    thresholds: Tensor, easy: Tensor, drawn: Tensor, eps: float, config: OnlineConfig
) -> Tensor:
    """Move the distance of every class towards the one at which the asked share of its samples is still right.

    A class follows as fast as it is drawn, so that a few samples a batch do not toss its threshold about.
    """
    share = drawn / drawn.sum().clamp_min(1)
    error = easy / drawn.clamp_min(1) - config.prune_fraction
    return (thresholds * torch.exp(_FOLLOW * share * error)).clamp(_LOWEST * eps, _HIGHEST * eps)


@dataclass(frozen=True)
class OnlineCandidates:
    """Samples that a batch is made from, in random order, with what the model says of them as they are.

    ``right`` are those that the model which finds margins gets right, if that is another one.
    """

    images: Tensor
    labels: Tensor
    clean: Tensor
    right: Tensor | None = None

    def take(self, rows: Tensor) -> "OnlineCandidates":
        """Only these."""
        right = None if self.right is None else self.right[rows]
        return OnlineCandidates(self.images[rows], self.labels[rows], self.clean[rows], right)


@dataclass(frozen=True)
class OnlineChoice:
    """What is trained on: samples, their attacked images, their strengths.

    And which of the candidates were easy, and which share of them was left out for that.
    """

    samples: OnlineCandidates
    attacked: Tensor
    strength: Tensor
    easy: Tensor
    pruned_share: float

    @property
    def easy_share(self) -> float:
        """Share of the candidates that were easy."""
        return _mean_share(self.easy)


def compute_online_loss(
    model: nn.Module,
    state: OnlineState,
    processes: ProcessGroup,
    images: Tensor,
    labels: Tensor,
    piece: TrainBatch,
    config: TrainConfig,
    *,
    average: nn.Module | None = None,
) -> tuple[LossResult, Tensor, OnlineChoice]:
    """Return the loss, the labels it was taken of, and what was chosen; ``state`` moves on by one step.

    ``average`` is the averaged model, which finds margins if the configuration says so.
    """
    online, eps = config.online, config.attack.eps
    wanted = config.batch_size // processes.count
    pruning = online.mode == "paper" or piece.step >= online.warmup * config.steps
    order = np.random.default_rng((config.seed, piece.step, _ORDER_STREAM, processes.rank)).permutation(len(labels))
    order = order if pruning else order[:wanted]
    rows = torch.from_numpy(order).to(images.device)
    bare = unwrap_ddp(model)
    with frozen(bare, config.attack.batchnorm), torch.no_grad():
        candidates = OnlineCandidates(images[rows], labels[rows], to_full_precision(bare(images[rows])))
    judge = average if online.margins_by == "average" else None
    if judge is not None:
        with frozen(judge), torch.no_grad():
            right = judge(candidates.images).argmax(dim=1) == candidates.labels
        candidates = replace(candidates, right=right)
    strength = images.new_full((len(rows),), eps)
    attack = make_inner_attack(candidates.images, strength, replace(piece, rows=piece.rows[order]), config)
    choose = choose_early if online.replaces else choose_late
    classes = candidates.clean.shape[1]
    if online.per_class and state.by_class is None:
        state.by_class = torch.full((classes,), state.threshold, dtype=torch.float64)
    threshold: float | Tensor = state.threshold
    if state.by_class is not None:
        threshold = state.by_class.to(images)[candidates.labels]
    chosen = choose(bare, candidates, attack, config, threshold, wanted, pruning=pruning, judge=judge)
    if state.by_class is not None:
        easy = processes.add_up(torch.bincount(candidates.labels[chosen.easy], minlength=classes)).cpu()
        drawn = processes.add_up(torch.bincount(candidates.labels, minlength=classes)).cpu()
        state.by_class = update_class_thresholds(state.by_class, easy, drawn, eps, online)
    else:
        state.threshold = update_threshold(state.threshold, processes.mean(chosen.easy_share), eps, online)
    trained = chosen.samples
    if not len(trained.labels):  # everything was pruned; the passes happen all the same, other processes wait for them
        nothing = 0 * (model(candidates.images).sum() + model(candidates.images).sum())
        return LossResult(nothing, None, None), trained.labels, chosen
    points = segment_point(trained.images, chosen.attacked, chosen.strength, eps)
    outcome = combine_trades_terms(
        to_full_precision(model(trained.images)),
        to_full_precision(model(points)),
        trained.labels,
        beta=config.beta,
        label_smoothing=config.label_smoothing,
    )
    return outcome, trained.labels, chosen


def choose_early(
    model: nn.Module,
    candidates: OnlineCandidates,
    attack: InnerAttack,
    config: TrainConfig,
    threshold: float | Tensor,
    wanted: int,
    *,
    pruning: bool,
    judge: nn.Module | None = None,
) -> OnlineChoice:
    """Attack all candidates for a few steps, prune, and go on with a full batch of the others."""
    eps, early = config.attack.eps, min(config.online.probe_steps, config.attack.steps)
    probe = replace(attack, steps=early).perturb(model, candidates.images, candidates.labels, eps, candidates.clean)
    easy = _find_easy(model, judge, candidates, probe, config, threshold)
    pruned = easy if pruning else torch.zeros_like(easy)
    rows = pick_rows(pruned, wanted, fill=True)
    samples = candidates.take(rows)
    later = replace(attack, steps=config.attack.steps - early, start=probe[rows])
    attacked = later.perturb(model, samples.images, samples.labels, eps, samples.clean)
    strength = _measure_strength(model, judge, samples, attacked, config)
    left_out = pruned.index_fill(0, rows, False)
    return OnlineChoice(samples, attacked, strength, easy, _mean_share(left_out))


def choose_late(
    model: nn.Module,
    candidates: OnlineCandidates,
    attack: InnerAttack,
    config: TrainConfig,
    threshold: float | Tensor,
    wanted: int,
    *,
    pruning: bool,
    judge: nn.Module | None = None,
) -> OnlineChoice:
    """Attack all candidates, then leave out those that are still right at the threshold; nothing replaces them."""
    eps = config.attack.eps
    attacked = attack.perturb(model, candidates.images, candidates.labels, eps, candidates.clean)
    easy = torch.zeros(len(candidates.labels), dtype=torch.bool, device=attacked.device)
    if pruning and config.online.mode == "paper" and config.online.prune_at > 0:
        easy = _find_easy(model, judge, candidates, attacked, config, threshold)
    rows = pick_rows(easy, wanted, fill=False)
    rows = rows if len(rows) > 1 else rows[:0]  # BN cannot normalise a single sample
    samples, attacked = candidates.take(rows), attacked[rows]
    strength = _measure_strength(model, judge, samples, attacked, config)
    return OnlineChoice(samples, attacked, strength, easy, _mean_share(easy))


def _find_easy(
    model: nn.Module,
    judge: nn.Module | None,
    candidates: OnlineCandidates,
    attacked: Tensor,
    config: TrainConfig,
    threshold: float | Tensor,
) -> Tensor:
    """Tell which candidates are still right at the threshold."""
    judge, batchnorm = _choose_judge(model, judge, config)
    with frozen(judge, batchnorm), torch.no_grad():
        return is_right_at(judge, candidates.images, candidates.labels, attacked, config.attack.eps, threshold)


def _choose_judge(model: nn.Module, judge: nn.Module | None, config: TrainConfig) -> tuple[nn.Module, BatchNormMode]:
    """Return the model that finds margins; the averaged one normalises as it does when it is evaluated."""
    return (model, config.attack.batchnorm) if judge is None else (judge, "eval")


def _measure_strength(
    model: nn.Module, judge: nn.Module | None, samples: OnlineCandidates, attacked: Tensor, config: TrainConfig
) -> Tensor:
    if not len(attacked):
        return attacked.new_zeros(0)
    judge, batchnorm = _choose_judge(model, judge, config)
    right = samples.clean.argmax(dim=1) == samples.labels if samples.right is None else samples.right
    with frozen(judge, batchnorm), torch.no_grad():
        return segment_strength(
            judge,
            samples.images,
            samples.labels,
            attacked,
            right,
            config.attack.eps,
            steps=config.online.search_steps,
            compact=batchnorm == "eval",
        )


def _mean_share(mask: Tensor) -> float:
    return float(mask.double().mean())
