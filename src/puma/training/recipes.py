"""Ready configurations by name.

The ``wang2023-*`` recipes follow the public code of Wang et al. (2023), fine print included: docs/training.md lists it.
"""

from dataclasses import replace

from puma.errors import unknown_name
from puma.models import EmaConfig
from puma.training.config import AttackConfig, AugmentConfig, OptimizerConfig, ScheduleConfig, TrainConfig

EPOCH = 50_000  # samples, whatever the pool's size

_WANG2023 = TrainConfig(
    model="resnet18",
    samples_seen=400 * EPOCH,
    batch_size=512,
    beta=5.0,
    label_smoothing=0.1,
    bn_momentum=0.01,
    held_out=1024,
    evaluate_every=EPOCH,
    select="best",
    checkpoint_every=10 * EPOCH,
    attack=AttackConfig(eps=8 / 255, step_size=2 / 255, steps=10, batchnorm="batch"),
    optimizer=OptimizerConfig(lr=0.2, momentum=0.9, weight_decay=5e-4, decay="all"),
    schedule=ScheduleConfig(warmup=0.025, every=EPOCH, low_momentum=0.85, high_momentum=0.95),
    average=EmaConfig(decay=0.995, copy_steps=980, buffers="copy"),
    augment=AugmentConfig(padding=4, flip=True),
)

RECIPES: dict[str, tuple[str, TrainConfig]] = {
    "small-digits": (
        "8 px digits on a CPU: about a minute",
        TrainConfig(
            model="small-8px",
            samples_seen=40_000,
            batch_size=128,
            checkpoint_every=10_000,
            attack=AttackConfig(eps=0.1, step_size=0.025, steps=10),
            augment=AugmentConfig(padding=1, flip=False),
        ),
    ),
    "small-fashion-14px": (
        "Fashion-MNIST at 14 px on a CPU: a few minutes",
        TrainConfig(
            model="small-14px",
            samples_seen=200_000,
            batch_size=256,
            checkpoint_every=25_000,
            attack=AttackConfig(eps=0.06, step_size=0.015, steps=10),
            augment=AugmentConfig(padding=0, flip=False),
        ),
    ),
    "small-cifar10": (
        "a slim ResNet-18 on CIFAR-10: hours on a CPU, minutes on a GPU",
        TrainConfig(model="resnet18-slim", samples_seen=20 * EPOCH, batch_size=256),
    ),
    "wang2023-resnet18": ("CIFAR-10 with 1M generated images, ResNet-18: the baseline", _WANG2023),
    "wang2023-preactresnet18": (
        "the same, PreActResNet-18",
        replace(_WANG2023, model="preactresnet18", optimizer=replace(_WANG2023.optimizer, decay="all-but-norms")),
    ),
    "wang2023-wrn28-10": (
        "the same, WideResNet-28-10",
        replace(_WANG2023, model="wrn28-10", optimizer=replace(_WANG2023.optimizer, decay="all-but-norms")),
    ),
    "wang2023-wrn70-16": (
        "the same, WideResNet-70-16",
        replace(_WANG2023, model="wrn70-16", optimizer=replace(_WANG2023.optimizer, decay="all-but-norms")),
    ),
    "imagenet21k-100": (
        "100 classes of ImageNet-21K at 224 px, PreActResNet-18",
        TrainConfig(
            model="preactresnet18-224px",
            samples_seen=107 * EPOCH,
            batch_size=64,
            held_out=1024,
            evaluate_every=10 * EPOCH,
            attack=AttackConfig(eps=8 / 255, step_size=2 / 255, steps=10),
            schedule=ScheduleConfig(warmup=0.025),
            augment=AugmentConfig(padding=28, flip=True),
        ),
    ),
}


def find_recipe(name: str) -> TrainConfig:
    """Look a recipe up; an unknown name raises."""
    if name not in RECIPES:
        raise unknown_name("recipe", name, list(RECIPES))
    return RECIPES[name][1]
