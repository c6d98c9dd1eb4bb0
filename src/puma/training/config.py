"""The whole configuration of a training run: its groups of settings, read from JSON, checked, compared."""

import dataclasses
import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from puma.errors import PumaError, unknown_name
from puma.models import BatchNormMode, EmaConfig

Decay = Literal["weights", "all-but-norms", "all"]
_LOW_LOSS = 0.75  # losses are skewed: more than half of them, rarely more than this share, lie below their mean
LossName = Literal["trades", "pgd-at", "standard"]


@dataclass(frozen=True)
class AttackConfig:
    """The inner attack.

    Attributes:
        eps: strength of every sample, unless a plan gives each its own.
        step_size: length of a step; a sample's own is min(step_size, step_ratio * |strength|).
        steps: how many.
        step_ratio: see step_size.
        norm: linf or l2.
        loss: what it raises: kl to the clean prediction, ce to the label or cw; usual is kl for
            TRADES and ce for PGD-AT.
        negative_loss: what it lowers where the strength is negative. KL to the clean prediction is smallest where the
            sample is, so the label's ce is lowered instead.
        batchnorm: statistics that BN uses in the attack: eval the running ones, batch those of the batch; the
            running ones are not touched by either.
        budget: give a sample only ceil(steps * |strength| / eps) steps and leave it out of the later ones.
    """

    eps: float = 8 / 255
    step_size: float = 2 / 255
    steps: int = 10
    step_ratio: float = 1.0
    norm: Literal["linf", "l2"] = "linf"
    loss: Literal["usual", "kl", "ce", "cw"] = "usual"
    negative_loss: Literal["kl", "ce", "cw"] = "ce"
    batchnorm: BatchNormMode = "eval"
    budget: bool = False


@dataclass(frozen=True)
class OnlineConfig:
    """Strengths and pruning decided batch by batch; needs the loss trades.

    Attributes:
        mode: off; paper prunes at a fixed distance from the first step on; ours prunes a fixed share after
            a warm-up and replaces what it prunes, so that batches stay full.
        prune_at: paper: a sample that is still right this far out is pruned; 0 prunes nothing.
        prune_fraction: ours: share of samples to prune.
        warmup: ours: share of the training before pruning begins.
        search_steps: halvings of the segment.
        probe_steps: ours: after so many steps of the attack it is decided what is pruned; the rest go on alone.
        margins_by: what strengths and easy samples are found with: the model that is trained, or its average.
        per_class: ours: every class has a threshold of its own, so that the same share of each is pruned.
    """

    mode: Literal["off", "paper", "ours"] = "off"
    prune_at: float = 26 / 255
    prune_fraction: float = 0.2
    warmup: float = 0.2
    search_steps: int = 6
    probe_steps: int = 3
    margins_by: Literal["model", "average"] = "model"
    per_class: bool = False

    @property
    def replaces(self) -> bool:
        """Whether batches need candidates to replace pruned samples."""
        return self.mode == "ours" and self.prune_fraction > 0

    def candidates(self, batch_size: int, ranks: int) -> int:
        """Return how many samples to draw so that about ``batch_size`` are left; a multiple of the ranks."""
        if not self.replaces:
            return batch_size
        return math.ceil(batch_size / (1 - self.prune_fraction) / ranks) * ranks


@dataclass(frozen=True)
class SoftPruningConfig:
    """InfoBatch (Qin et al., 2024): samples of low loss are visited less often, and count for more when they are.

    Attributes:
        ratio: a sample whose last loss was below the mean is left out with this probability, and weighs
            1 / (1 - ratio) otherwise; 0 leaves nothing out, 0.5 is the authors'.
        until: share of the training after which nothing is left out any more.
    """

    ratio: float = 0.0
    until: float = 0.875

    def candidates(self, batch_size: int, ranks: int) -> int:
        """Return how many samples to draw so that enough are left; a multiple of the ranks."""
        return math.ceil(batch_size / (1 - _LOW_LOSS * self.ratio) / ranks) * ranks


@dataclass(frozen=True)
class OptimizerConfig:
    """SGD.

    Attributes:
        lr: the highest learning rate.
        momentum: Nesterov momentum.
        weight_decay: L2 penalty.
        decay: what it falls on: weights spares norm layers and biases, all-but-norms spares norm layers only,
            all spares nothing.
        clip_norm: gradients longer than this are shortened to it; 0 never does.
    """

    lr: float = 0.2
    momentum: float = 0.9
    weight_decay: float = 5e-4
    decay: Decay = "weights"
    clip_norm: float = 0.0


@dataclass(frozen=True)
class ScheduleConfig:
    """How the learning rate moves over training.

    Attributes:
        warmup: share of training during which the rate rises.
        start_divisor: the first rate is the highest one divided by this.
        final_divisor: the last rate is the first one divided by this.
        every: samples between two changes of the rate; 0 changes it at every step.
        low_momentum: momentum moves against the rate, from high_momentum down to this and back, if both are given.
        high_momentum: see low_momentum.
    """

    warmup: float = 0.025
    start_divisor: float = 25.0
    final_divisor: float = 1e4
    every: int = 0
    low_momentum: float | None = None
    high_momentum: float | None = None


@dataclass(frozen=True)
class AugmentConfig:
    """Random changes to training images.

    Attributes:
        padding: shift by up to so many pixels in each direction.
        flip: mirror half of the images.
    """

    padding: int = 4
    flip: bool = True


@dataclass(frozen=True)
class ComputeConfig:
    """How the arithmetic is done.

    Attributes:
        device: such as cpu or cuda; under torchrun each process takes its own GPU.
        precision: of the passes through the model; bf16 and fp16 use autocast. auto takes bf16 where the device
            computes in it and a short trial is faster, else fp32, and writes down which.
        channels_last: keep images and weights in channels-last memory.
        compile: run the model through torch.compile.
        accumulate: split each batch into so many parts and add up their gradients.
        sync_batchnorm: share BN statistics between processes; on GPUs only.
        fold_batchnorm: attack a copy of the model whose BN layers are folded into the convolutions before them; needs
            attack.batchnorm eval. Faster, and other numbers by rounding.
    """

    device: str = "cpu"
    precision: Literal["fp32", "bf16", "fp16", "auto"] = "fp32"
    channels_last: bool = True
    compile: bool = False
    accumulate: int = 1
    sync_batchnorm: bool = False
    fold_batchnorm: bool = False


@dataclass(frozen=True)
class TrainConfig:
    """A training run, but for where the images come from; lengths are samples seen.

    Attributes:
        model: a built-in architecture (puma list), or path/to/file.py:Net or module:function of your own.
        init: begin with these weights, a file or a run, not random ones; average, optimizer, schedule are new.
        init_head: keep the last layer of those weights, or replace it by a new one, for other classes.
        loss: trades, pgd-at (CE of attacked images) or standard (CE of clean images).
        samples_seen: length of training.
        batch_size: over all processes together.
        generated_fraction: share of generated images in each batch; None takes 0.7, as Wang et al. (2023), where the
            pools have both real and generated images, and otherwise what they have.
        beta: weight of TRADES' KL term.
        label_smoothing: of the cross-entropy.
        bn_momentum: momentum of BN's running statistics from the second step on, the first step's being taken whole;
            None leaves the layers as they are.
        held_out: so many real images are not trained on but evaluated on; which ones depends on their sample_id alone.
        evaluate_every: samples between two evaluations on the held-out images; 0 evaluates at the end only.
        select: which averaged model becomes model.safetensors: the last one, or the best on held-out images.
        plan_from: share of the training after which the plan takes effect; before it every sample is kept, at eps.
        checkpoint_every: samples between two checkpoints.
        snapshot_every: samples between two averaged models that are kept in RUN/snapshots; 0 keeps none. puma scores
            dynamics reads them.
        checkpoint_minutes: write one as well when so many minutes have passed since the last; 0 never does. Several
            processes with BN leave it out: each has statistics of its own between the regular checkpoints.
        log_every: steps between two lines of metrics.jsonl.
        record_outcomes: write down which samples each batch got right; puma scores cd counts them.
        seed: of weights, batches, augmentation and attacks.
    """

    model: str = "resnet18"
    init: str = ""
    init_head: Literal["keep", "replace"] = "keep"
    loss: LossName = "trades"
    samples_seen: int = 400 * 50_000
    batch_size: int = 512
    generated_fraction: float | None = None
    beta: float = 5.0
    label_smoothing: float = 0.1
    bn_momentum: float | None = None
    held_out: int = 0
    evaluate_every: int = 0
    select: Literal["last", "best"] = "last"
    plan_from: float = 0.0
    checkpoint_every: int = 500_000
    snapshot_every: int = 0
    checkpoint_minutes: float = 10.0
    log_every: int = 20
    record_outcomes: bool = True
    seed: int = 0
    attack: AttackConfig = field(default_factory=AttackConfig)
    online: OnlineConfig = field(default_factory=OnlineConfig)
    soft_pruning: SoftPruningConfig = field(default_factory=SoftPruningConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    average: EmaConfig = field(default_factory=EmaConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)

    @property
    def steps(self) -> int:
        """Number of optimizer steps; the last batch is always full."""
        return -(-self.samples_seen // self.batch_size)

    def candidates(self, ranks: int) -> int:
        """Return how many samples are drawn for a batch, of which some may be pruned before it is trained on."""
        chooser = self.soft_pruning if self.soft_pruning.ratio else self.online
        return chooser.candidates(self.batch_size, ranks)

    @property
    def plan_step(self) -> int:
        """The first step that follows the plan."""
        return math.ceil(self.plan_from * self.steps - 1e-9)


def check_train_config(config: TrainConfig) -> None:
    """Raise one error that lists everything wrong with a configuration."""
    attack, optimizer, schedule, compute = config.attack, config.optimizer, config.schedule, config.compute
    online, soft = config.online, config.soft_pruning
    rules = {
        "samples_seen must be positive": config.samples_seen > 0,
        "batch_size must be positive": config.batch_size > 0,
        "generated_fraction must lie in [0, 1]": config.generated_fraction is None
        or 0 <= config.generated_fraction <= 1,
        "beta must not be negative": config.beta >= 0,
        "label_smoothing must lie in [0, 1]": 0 <= config.label_smoothing <= 1,
        "bn_momentum must lie in (0, 1]": config.bn_momentum is None or 0 < config.bn_momentum <= 1,
        "held_out and evaluate_every must not be negative": config.held_out >= 0 and config.evaluate_every >= 0,
        "evaluate_every and select best need held_out images": config.held_out > 0
        or not (config.evaluate_every or config.select == "best"),
        f"plan_from must lie in [0, 1), a share of the training, got {config.plan_from:g}": 0 <= config.plan_from < 1,
        "checkpoint_minutes and snapshot_every must not be negative": min(
            config.checkpoint_minutes, config.snapshot_every
        )
        >= 0,
        "checkpoint_every and log_every must be positive": config.checkpoint_every > 0 and config.log_every > 0,
        "seed must not be negative": config.seed >= 0,
        "attack.eps, attack.step_size and attack.step_ratio must be positive": min(
            attack.eps, attack.step_size, attack.step_ratio
        )
        > 0,
        "attack.steps must not be negative": attack.steps >= 0,
        "attack.budget needs attack.batchnorm eval": not attack.budget or attack.batchnorm == "eval",
        "online needs loss trades, compute.accumulate 1 and no attack.budget": online.mode == "off"
        or (config.loss == "trades" and compute.accumulate == 1 and not attack.budget),
        "online.prune_fraction and online.warmup must lie in [0, 1)": 0 <= online.prune_fraction < 1
        and 0 <= online.warmup < 1,
        "online.prune_at must not be negative, online.search_steps and probe_steps must be positive": online.prune_at
        >= 0
        and min(online.search_steps, online.probe_steps) > 0,
        "online.per_class needs online.mode ours": not online.per_class or online.mode == "ours",
        f"soft_pruning.ratio and until must lie in [0, 1), (0, 1], got {soft.ratio:g}, {soft.until:g}": 0
        <= soft.ratio
        < 1
        and 0 < soft.until <= 1,
        "soft_pruning needs online.mode off, compute.accumulate 1 and plan_from 0": not soft.ratio
        or (online.mode == "off" and compute.accumulate == 1 and not config.plan_from),
        "optimizer.lr must be positive": optimizer.lr > 0,
        "optimizer.momentum must lie in [0, 1)": 0 <= optimizer.momentum < 1,
        "optimizer.weight_decay and optimizer.clip_norm must not be negative": min(
            optimizer.weight_decay, optimizer.clip_norm
        )
        >= 0,
        "schedule.warmup must lie in [0, 1]": 0 <= schedule.warmup <= 1,
        "schedule divisors must be positive": min(schedule.start_divisor, schedule.final_divisor) > 0,
        "schedule.every must not be negative": schedule.every >= 0,
        "schedule.low_momentum and high_momentum go together": (schedule.low_momentum is None)
        == (schedule.high_momentum is None),
        "average.decay must lie in [0, 1]": 0 <= config.average.decay <= 1,
        "augment.padding must not be negative": config.augment.padding >= 0,
        "compute.accumulate must be positive and divide batch_size": compute.accumulate > 0
        and config.batch_size % compute.accumulate == 0,
        "compute.fold_batchnorm needs attack.batchnorm eval and no compute.compile": not compute.fold_batchnorm
        or (attack.batchnorm == "eval" and not compute.compile),
        "compute.sync_batchnorm needs a GPU": not compute.sync_batchnorm or compute.device.startswith("cuda"),
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    for name, radius in (
        ("attack.eps", attack.eps),
        ("attack.step_size", attack.step_size),
        ("online.prune_at", online.prune_at),
    ):
        if attack.norm == "linf" and radius > 1:
            guess = f"did you mean {radius:g}/255 = {radius / 255:.4g}?"
            broken.append(f"{name} {radius:g} is larger than the range of the pixels, [0, 1]; {guess}")
    if broken:
        told = "; ".join(broken).rstrip(".")
        raise PumaError(f"the configuration cannot be run: {told}{'' if told.endswith('?') else '.'}")


def config_to_dict(config: TrainConfig) -> dict[str, Any]:
    """Return the configuration as plain values, for JSON."""
    return dataclasses.asdict(config)


def config_from_dict(values: Mapping[str, Any]) -> TrainConfig:
    """Read what ``config_to_dict`` gave; unknown names and values of the wrong kind raise."""
    config: TrainConfig = _read_group(TrainConfig, values, "")
    return config


def override_config(config: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration with some settings changed.

    A setting goes by its own name (``samples_seen``), a whole group by the group's (``attack={"eps": 0.1}``), and one
    of a group by its own name or the dotted one where that is the only setting of this name (``eps``, ``attack.eps``).
    """
    values = config_to_dict(config)
    dotted = [name for name, _ in _iterate_leaves(values, "")]
    places = {name: name for name in [*values, *dotted]}
    for name in dotted:
        own = name.rpartition(".")[2]
        if own not in values:
            places[own] = "" if places.get(own, name) != name else name
    for name, value in settings.items():
        if not places.get(name):
            raise unknown_name("setting", name, sorted(place for place in places if places[place]))
        group, _, own = places[name].rpartition(".")
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = dataclasses.asdict(value)
        target = values[group] if group else values
        if isinstance(value, Mapping) and isinstance(target[own], dict):
            target[own] = {**target[own], **value}
        else:
            whole = isinstance(value, float) and value.is_integer() and isinstance(target[own], int)
            target[own] = int(value) if whole and not isinstance(target[own], bool) else value
    return config_from_dict(values)


def list_differences(saved: TrainConfig, asked: TrainConfig) -> list[str]:
    """Say, one setting per line, where two configurations differ."""
    before, after = dict(_iterate_leaves(config_to_dict(saved), "")), dict(_iterate_leaves(config_to_dict(asked), ""))
    return [f"{name}: {before[name]} in the run, {after[name]} asked" for name in before if before[name] != after[name]]


def _iterate_leaves(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _iterate_leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _read_group(kind: type, values: Mapping[str, Any], prefix: str) -> Any:
    hints = typing.get_type_hints(kind)
    known = [spec.name for spec in dataclasses.fields(kind)]
    for name in values:
        if name not in known:
            raise unknown_name("setting", f"{prefix}{name}", [f"{prefix}{entry}" for entry in known])
    return kind(**{name: _check_value(hints[name], value, f"{prefix}{name}") for name, value in values.items()})


def _check_value(hint: Any, value: Any, name: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, Mapping):
            raise PumaError(f"setting {name} must be a group of settings, got {value!r}.")
        return _read_group(hint, value, f"{name}.")
    if typing.get_origin(hint) is Literal:
        fits = value in typing.get_args(hint)
    elif typing.get_origin(hint) is types.UnionType:
        fits = any(_is_of_kind(option, value) for option in typing.get_args(hint))
    else:
        fits = _is_of_kind(hint, value)
    if not fits:
        raise PumaError(f"setting {name} must be {getattr(hint, '__name__', hint)}, got {value!r}.")
    return value


def _is_of_kind(kind: Any, value: Any) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)
