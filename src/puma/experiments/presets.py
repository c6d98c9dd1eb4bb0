"""How large an experiment is: data, nets, lengths, for each preset and data set."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from puma.errors import PumaError, unknown_name
from puma.evaluation import EvaluationConfig
from puma.experiments.spec import GeneratedAmount, ImageKind, NetRole
from puma.files import hash_json
from puma.margins import find_method
from puma.pools import Pool
from puma.training import (
    AttackConfig,
    AugmentConfig,
    ComputeConfig,
    OptimizerConfig,
    TrainConfig,
    check_train_config,
    find_init,
    find_recipe,
)

ALL = 0  # as a number of images
OWN_GENERATOR = ""  # as a pool: there is none, the images are made


@dataclass(frozen=True)
class GeneratedImages:
    """Where the generated images of an amount come from: so many of a pool; ALL takes what it holds.

    ``OWN_GENERATOR`` in place of a pool has the setting's generator make them.
    """

    pool: str
    count: int = ALL


@dataclass(frozen=True)
class GeneratorSetting:
    """A generator of a setting's own: its recipe and length, and how many images of any margin there are.

    Ways that reach for a band get as many as cost the same in network passes, a backward pass counting as two.

    Attributes:
        recipe: a name of ``puma generate train --recipe``.
        samples_seen: length of its training.
        images: how many of any margin.
        judged_by: what the net that judges its images learns from beside the real ones; None takes the usual images.
        minutes: what its training took on one core.
        per_minute: images that one core sampled in a minute.
        tells_margins: whether it is told the margins of a model that is trained on the real images first, which asking
            for a band needs.
    """

    recipe: str
    samples_seen: int
    images: int
    judged_by: GeneratedImages | None = None
    minutes: float = 0.0
    per_minute: float = 0.0
    tells_margins: bool = True


@dataclass(frozen=True)
class OwnImages:
    """Pools of the user's instead of a data set: real images, test images, and generated ones if there are any."""

    real: Path
    test: Path
    generated: Path | None = None


@dataclass(frozen=True)
class ExperimentSetting:
    """What the rows of an experiment are run on.

    Attributes:
        preset: a name of ``list_presets``.
        dataset: a name of ``images.DATASETS``.
        real: so many of the real training images are used; ALL takes every one.
        generated: where the generated images come from, by amount. If that pool is not there, the real images that
            are not used play their part, as far as ``stands_in`` allows it. Empty trains on real images alone.
            ``OWN_GENERATOR`` has the setting's generator make them.
        stands_in: see ``generated``.
        nets: the configuration of training, by the net's role; a row whose net is not here is left out.
        evaluation: the attacks on test images.
        method: how margins are measured.
        changed: what the user changed, in words.
        before: the setting as it was before, but for the device; None if nothing was changed. Images of our own are
            made by it, so that they are the same at any length of training.
        own: the user's pools, in place of a data set's.
        weights: file in the data folder with the weights of a robust net, which margins are measured with; "" trains
            the margin model first.
        begins_with_weights: whether trainings begin with ``weights`` too, instead of from scratch.
        autoattack_samples: evaluate AutoAttack on so many test images, 0 on none.
        generator: how images of our own are made, None if no row may ask for them.
        images: which kind of images it has, for experiments that need another than the usual.
        minutes: what a training took on one core, with margins and evaluation, by net; empty if not measured.
    """

    preset: str
    dataset: str
    real: int
    generated: Mapping[GeneratedAmount, GeneratedImages]
    nets: Mapping[NetRole, TrainConfig]
    evaluation: EvaluationConfig
    stands_in: bool = True
    method: str = "deepfool"
    changed: str = ""
    before: "ExperimentSetting | None" = None
    own: OwnImages | None = None
    weights: str = ""
    begins_with_weights: bool = False
    autoattack_samples: int = 0
    generator: GeneratorSetting | None = None
    images: ImageKind = "usual"
    minutes: Mapping[NetRole, float] = field(default_factory=dict)

    @property
    def eps(self) -> float:
        """Radius of the attack that is trained for and evaluated with."""
        return self.nets["main"].attack.eps

    @property
    def amounts(self) -> Collection[GeneratedAmount]:
        """The amounts of generated images that rows may ask for; where there are none, the usual amount is none."""
        return self.generated.keys() or {"usual"}

    @property
    def shortage(self) -> str:
        """Why a row may have to be left out."""
        one = self.own is not None or not self.generated
        if one:
            return "there is one net and one number of images"
        return "this preset has no such net" + (", or no generator" if self.generator is None else "")


_SMOKE = TrainConfig(
    model="small-8px",
    samples_seen=1280,
    batch_size=64,
    generated_fraction=0.7,
    held_out=100,
    evaluate_every=320,
    checkpoint_every=640,
    log_every=5,
    attack=AttackConfig(eps=0.1, step_size=0.05, steps=2),
    augment=AugmentConfig(padding=1, flip=False),
)
_FASHION = replace(
    find_recipe("small-fashion-14px"),
    samples_seen=100_000,
    generated_fraction=0.7,
    held_out=1000,
    evaluate_every=10_000,
)
_CIFAR = replace(
    find_recipe("small-cifar10"),
    model="small-32px",
    samples_seen=100_000,
    generated_fraction=0.5,
    held_out=1000,
    evaluate_every=10_000,
    checkpoint_every=10_000,
)


def _on_nets(config: TrainConfig, **names: str) -> dict[NetRole, TrainConfig]:
    roles: tuple[NetRole, ...] = get_args(NetRole)
    return {role: replace(config, model=names[role]) for role in roles if role in names}


_BUNDLED = "digits-distorted"
_PAPER_RECIPES: Mapping[NetRole, str] = {
    "main": "wang2023-resnet18",
    "second": "wang2023-preactresnet18",
    "third": "wang2023-wrn28-10",
    "wide": "wang2023-wrn28-10",
    "widest": "wang2023-wrn70-16",
}
# the paper reports the last epoch, not the checkpoint that was best on held-out images
_PAPER_NETS = {role: replace(find_recipe(name), select="last") for role, name in _PAPER_RECIPES.items()}

# CIFAR-10 with a net of 124 thousand parameters: the settings of a pilot that docs/reproduce.md reports
_RESNET4B = replace(
    find_recipe("small-cifar10"),
    model="resnet4b",
    samples_seen=200_000,
    generated_fraction=0.0,
    checkpoint_every=50_000,
    attack=AttackConfig(eps=2 / 255, step_size=0.5 / 255),
    optimizer=OptimizerConfig(lr=0.02),
    compute=ComputeConfig(precision="bf16"),
)
_SCRATCH = replace(
    _RESNET4B, samples_seen=1_000_000, checkpoint_every=100_000, optimizer=replace(_RESNET4B.optimizer, lr=0.1)
)


def _set_cifar10(
    preset: str, net: TrainConfig, *, weights: str, minutes: float, begins: bool = True
) -> ExperimentSetting:
    """Return a setting of all of CIFAR-10's training and test images, without generated ones."""
    return ExperimentSetting(
        preset=preset,
        dataset="cifar10",
        real=ALL,
        generated={},
        nets={"main": net},
        evaluation=EvaluationConfig(masking_samples=0),
        weights=weights,
        begins_with_weights=begins,
        autoattack_samples=1000,
        minutes={"main": minutes},
    )


def _set_fashion(
    preset: str, generated: Mapping[GeneratedAmount, GeneratedImages], generator: GeneratorSetting | None = None
) -> ExperimentSetting:
    """Return a setting of 7,000 real images of Fashion-MNIST and of generated ones."""
    return ExperimentSetting(
        preset=preset,
        dataset="fashion-mnist-14px",
        real=7000,
        generated=generated,
        nets=_on_nets(
            _FASHION, main="small-14px", second="small-14px-narrow", third="small-14px-wide", wide="small-14px-wide"
        ),
        evaluation=EvaluationConfig(max_samples=5000, masking_samples=0),
        generator=generator,
        minutes={"main": 1.5, "second": 1.1, "third": 3.0, "wide": 3.0},
    )


def _set_small_cifar10(preset: str, *, stands_in: bool) -> ExperimentSetting:
    """Return a setting of 11,000 real images of CIFAR-10 and generated ones from elsewhere."""
    return ExperimentSetting(
        preset=preset,
        dataset="cifar10",
        real=11_000,
        generated={
            "few": GeneratedImages("cifar10-generated", 2500),
            "usual": GeneratedImages("cifar10-generated", 10_000),
            "many": GeneratedImages("cifar10-generated", 39_000),
            "most": GeneratedImages("cifar10-generated", 39_000),
        },
        nets=_on_nets(_CIFAR, main="small-32px", second="resnet4b", third="resnet18-slim", wide="resnet18-slim"),
        evaluation=EvaluationConfig(max_samples=2000, masking_samples=0),
        stands_in=stands_in,
    )


_OTHER_FASHION = GeneratedImages("fashion-mnist-14px-generated", 20_000)
PRESETS = ("smoke", "small", "paper")  # those of every experiment; the others are of one data set
SETTINGS: tuple[ExperimentSetting, ...] = (
    ExperimentSetting(
        preset="smoke",
        dataset="digits",
        real=ALL,
        generated={
            "few": GeneratedImages(_BUNDLED, 300),
            "usual": GeneratedImages(_BUNDLED, 600),
            "many": GeneratedImages(_BUNDLED, 1200),
            "most": GeneratedImages(_BUNDLED, 2400),
        },
        nets=_on_nets(
            _SMOKE,
            main="small-8px",
            second="small-14px",
            third="small-14px-wide",
            wide="small-14px-wide",
            widest="small-14px-narrow",
        ),
        evaluation=EvaluationConfig(max_samples=64, masking_samples=0),
        stands_in=False,
        generator=GeneratorSetting("digits-8px", 6_400, 640),
        minutes={"main": 0.04, "second": 0.04, "third": 0.04, "wide": 0.04, "widest": 0.04},
    ),
    _set_fashion(
        "small",
        {
            "few": GeneratedImages(OWN_GENERATOR, 3000),
            "usual": GeneratedImages(OWN_GENERATOR, 12_000),
            "many": GeneratedImages(OWN_GENERATOR, 30_000),
            "most": GeneratedImages(OWN_GENERATOR, 30_000),
        },
        GeneratorSetting("fashion-14px", 560_000, 12_000, _OTHER_FASHION, minutes=12, per_minute=4000),
    ),
    _set_small_cifar10("small", stands_in=False),
    ExperimentSetting(
        preset="paper",
        dataset="cifar10",
        real=ALL,
        generated={
            "few": GeneratedImages("cifar10-generated-1m", 200_000),
            "usual": GeneratedImages("cifar10-generated-1m", 1_000_000),
            "many": GeneratedImages("cifar10-generated-10m", 10_000_000),
            "most": GeneratedImages("cifar10-generated-50m"),
        },
        nets=_PAPER_NETS,
        evaluation=EvaluationConfig(attacks=("clean", "cw", "autoattack")),
        stands_in=False,
    ),
    ExperimentSetting(
        preset="small",
        dataset="tiny-imagenet-20",
        real=ALL,
        generated={},
        nets={"main": replace(_RESNET4B, samples_seen=300_000, batch_size=128, optimizer=OptimizerConfig(lr=0.1))},
        evaluation=EvaluationConfig(masking_samples=0),
        images="imagenet",
        minutes={"main": 7},
    ),
    ExperimentSetting(
        preset="paper",
        dataset="imagenet21k-100",
        real=ALL,
        generated={},
        nets={"main": replace(find_recipe("imagenet21k-100"), select="last")},
        evaluation=EvaluationConfig(masking_samples=0),
        method="fast",
        images="imagenet",
    ),
    _set_fashion(  # other real images play the generated ones
        "small-real",
        {
            "few": GeneratedImages("fashion-mnist-14px-generated", 5000),
            "usual": _OTHER_FASHION,
            "many": GeneratedImages("fashion-mnist-14px-generated", 53_000),
            "most": GeneratedImages("fashion-mnist-14px-generated", 53_000),
        },
    ),
    _set_small_cifar10("small-real", stands_in=True),
    _set_cifar10("cifar10-eps2", _RESNET4B, weights="robust_cifar10_eps2.safetensors", minutes=14),
    _set_cifar10(
        "cifar10-eps8",
        replace(_RESNET4B, attack=AttackConfig(eps=8 / 255, step_size=2 / 255)),
        weights="robust_cifar10_eps8.safetensors",
        minutes=14,
    ),
    _set_cifar10("cifar10-eps2-scratch", _SCRATCH, weights="robust_cifar10_eps2.safetensors", minutes=32, begins=False),
)


@dataclass(frozen=True)
class SettingChanges:
    """What a user wants otherwise than the preset has it; None leaves it.

    Attributes:
        samples_seen: length of every training.
        batch_size: images in a batch.
        eps: radius of training and evaluation; steps of the attack scale along.
        test_samples: evaluate on so many test images, 0 on all.
        method: how margins are measured.
        device: such as cpu or cuda.
        attacks: what is evaluated: clean, cw, pgd20, autoattack.
        own: pools of the user's instead of the data set.
        model: a net of the user's, or a built-in one, for every row; rows that compare nets are left out.
        margin_model: what margins are measured with instead of a model that is trained here: source and weights.
        init: weights that every training begins with: a file or a run.
        autoattack_samples: evaluate AutoAttack on so many test images, 0 on none.
        precision: of the passes in training.
    """

    samples_seen: int | None = None
    batch_size: int | None = None
    eps: float | None = None
    test_samples: int | None = None
    method: str | None = None
    device: str | None = None
    attacks: tuple[str, ...] = field(default=())
    own: OwnImages | None = None
    model: str | None = None
    margin_model: str | None = None
    init: str | None = None
    autoattack_samples: int | None = None
    precision: Literal["fp32", "bf16", "fp16", "auto"] | None = None


def list_presets() -> list[str]:
    """Return the names of all presets."""
    return list(dict.fromkeys(setting.preset for setting in SETTINGS))


def find_setting(preset: str, dataset: str | None = None, images: ImageKind = "usual") -> ExperimentSetting:
    """Look a setting up; without a data set the preset's first of that kind of images, or its first at all."""
    if preset not in list_presets():
        raise unknown_name("preset", preset, list_presets())
    there = [setting for setting in SETTINGS if setting.preset == preset]
    if dataset is None:
        return next((setting for setting in there if setting.images == images), there[0])
    names = [setting.dataset for setting in there]
    if dataset not in names:
        raise unknown_name(f"data set of preset {preset}", dataset, names)
    return there[names.index(dataset)]


def change_setting(setting: ExperimentSetting, changes: SettingChanges) -> ExperimentSetting:
    """Apply a user's changes; those that move numbers are written down in ``Setting.changed``."""
    if changes.method is not None:
        find_method(changes.method)
    before = replace(setting, nets={role: _change_config(config, SettingChanges(device=changes.device))
                                    for role, config in setting.nets.items()})  # fmt: skip
    if changes.own is not None:
        setting = _use_own_images(setting, changes.own)
    if changes.init is not None:
        setting = replace(setting, begins_with_weights=False)
    if changes.margin_model is not None:
        setting = replace(setting, weights="" if not setting.begins_with_weights else setting.weights)
    if changes.model is not None:
        net = replace(setting.nets["main"], model=changes.model)
        setting = replace(setting, nets={"main": net}, minutes={}, weights="", begins_with_weights=False)
    nets = {role: _change_config(config, changes) for role, config in setting.nets.items()}
    for config in nets.values():
        check_train_config(config)
    evaluation = setting.evaluation
    if changes.test_samples is not None:
        if changes.test_samples < 0:
            raise PumaError(f"--test-samples must not be negative, got {changes.test_samples}.")
        evaluation = replace(evaluation, max_samples=changes.test_samples)
    if changes.autoattack_samples is not None:
        if changes.autoattack_samples < 0:
            raise PumaError(f"--autoattack-samples must not be negative, got {changes.autoattack_samples}.")
        setting = replace(setting, autoattack_samples=changes.autoattack_samples)
    if changes.attacks:
        evaluation = replace(evaluation, attacks=tuple(dict.fromkeys(("clean", "cw", *changes.attacks))))
    told = {
        name: getattr(changes, name)
        for name in (
            "model",
            "margin_model",
            "init",
            "samples_seen",
            "batch_size",
            "eps",
            "test_samples",
            "method",
            "precision",
        )
    }
    for name in ("model", "margin_model", "init"):  # files of one name in two folders are told apart
        if told[name] is not None and "/" in told[name]:
            told[name] = f"{told[name].rpartition('/')[2]} {hash_json([told[name]])[:6]}"
    words = ", ".join(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
                      for name, value in told.items() if value is not None)  # fmt: skip
    method = changes.method or setting.method
    return replace(setting, nets=nets, evaluation=evaluation, method=method, changed=words, before=before)


def _use_own_images(setting: ExperimentSetting, own: OwnImages) -> ExperimentSetting:
    """Put the user's pools in place of a data set; results are marked with the name and fingerprint of the real one."""
    opened = {flag: Pool.open(path) for flag, path in (("--pool", own.real), ("--test", own.test),
              ("--generated", own.generated)) if path is not None}  # fmt: skip
    real = opened["--pool"]
    for flag, pool in opened.items():
        if (pool.image_shape, pool.num_classes) != (real.image_shape, real.num_classes):
            raise PumaError(
                f"{flag} has {pool.num_classes} classes of images of {pool.image_shape}, --pool has "
                f"{real.num_classes} of {real.image_shape}; give pools that belong together."
            )
    name = f"{own.real.resolve().name}-{real.fingerprint[:8]}"
    amounts: dict[GeneratedAmount, GeneratedImages] = {"usual": GeneratedImages(name)}
    return replace(setting, dataset=name, real=ALL, generated=amounts, stands_in=False, own=own, minutes={},
                   generator=None, weights="", begins_with_weights=False)  # fmt: skip


def _change_config(config: TrainConfig, changes: SettingChanges) -> TrainConfig:
    if changes.samples_seen is not None:
        share = changes.samples_seen / config.samples_seen
        every = max(1, round(config.evaluate_every * share)) if config.evaluate_every else 0
        schedule = replace(config.schedule, every=round(config.schedule.every * share))
        checkpoint = max(1, round(config.checkpoint_every * share))
        config = replace(
            config,
            samples_seen=changes.samples_seen,
            evaluate_every=every,
            checkpoint_every=checkpoint,
            schedule=schedule,
        )
    if changes.init is not None:
        config = replace(config, init=str(find_init(changes.init).resolve()))
    if changes.batch_size is not None:
        config = replace(config, batch_size=changes.batch_size)
    if changes.eps is not None:
        scale = changes.eps / config.attack.eps
        attack = replace(config.attack, eps=changes.eps, step_size=config.attack.step_size * scale)
        config = replace(config, attack=attack)
    if changes.precision is not None:
        config = replace(config, compute=replace(config.compute, precision=changes.precision))
    if changes.device is not None:
        config = replace(config, compute=replace(config.compute, device=changes.device))
    return config
