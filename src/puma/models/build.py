"""Built-in models by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import nn

from puma.errors import PumaError, unknown_name
from puma.models.normalize import CIFAR10_MEAN, CIFAR10_STD, IMAGENET_MEAN, IMAGENET_STD
from puma.models.preact_resnet import PreActResNet
from puma.models.resnet import ResNet
from puma.models.resnet4b import ResNet4b
from puma.models.small import SmallNet
from puma.models.wide_resnet import WideResNet

_GREY = ((0.5,), (0.5,))
_CIFAR = (CIFAR10_MEAN, CIFAR10_STD)
_IMAGENET = (IMAGENET_MEAN, IMAGENET_STD)
_SMALL_8PX = partial(SmallNet, strides=(1, 2, 1, 1))
_SMALL_14PX = partial(SmallNet, strides=(2, 2, 1, 1))
_SMALL_32PX = partial(SmallNet, strides=(2, 2, 2, 1), widths=(16, 32, 64, 64))


@dataclass(frozen=True)
class Architecture:
    """How to make a model, which images it is made for, and what one line says about it."""

    make: Callable[..., nn.Module]
    image_size: int
    statistics: tuple[Sequence[float], Sequence[float]]
    summary: str


ARCHITECTURES: dict[str, Architecture] = {
    "small-8px": Architecture(_SMALL_8PX, 8, _GREY, "4 convolutions, SiLU: CPU work"),
    "small-14px": Architecture(_SMALL_14PX, 14, _GREY, "4 convolutions, SiLU: CPU work"),
    "small-14px-narrow": Architecture(
        partial(_SMALL_14PX, widths=(8, 16, 32, 32)), 14, _GREY, "small-14px at two thirds of the width"
    ),
    "small-14px-wide": Architecture(
        partial(_SMALL_14PX, widths=(18, 36, 72, 72)), 14, _GREY, "small-14px at one and a half times the width"
    ),
    "small-32px": Architecture(_SMALL_32PX, 32, _CIFAR, "4 convolutions, SiLU, colour: CPU work"),
    "resnet18-slim": Architecture(partial(ResNet, width=16), 32, _CIFAR, "ResNet-18 at a quarter of the width"),
    "resnet4b": Architecture(ResNet4b, 32, _CIFAR, "small residual net without BN"),
    "resnet18": Architecture(ResNet, 32, _CIFAR, "ResNet-18, ReLU"),
    "preactresnet18": Architecture(PreActResNet, 32, _CIFAR, "PreActResNet-18, SiLU"),
    "preactresnet18-224px": Architecture(
        partial(PreActResNet, strided_stem=True), 224, _IMAGENET, "PreActResNet-18, SiLU, strided stem"
    ),
    "wrn28-10": Architecture(partial(WideResNet, depth=28, widen=10), 32, _CIFAR, "WideResNet-28-10, SiLU"),
    "wrn70-16": Architecture(partial(WideResNet, depth=70, widen=16), 32, _CIFAR, "WideResNet-70-16, SiLU"),
}


def build(
    name: str,
    num_classes: int,
    *,
    channels: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> nn.Module:
    """Make a built-in model; it takes pixels in [0, 1] and gives logits.

    ``mean`` and ``std`` are the per-channel statistics it normalises with; by default those of CIFAR-10,
    ImageNet or plain 0.5, whichever the architecture is usually trained on, spread over ``channels``.
    """
    if name not in ARCHITECTURES:
        raise unknown_name("model", name, list(ARCHITECTURES))
    if num_classes < 2:
        raise PumaError(f"a classifier needs at least 2 classes, got num_classes={num_classes}.")
    architecture = ARCHITECTURES[name]
    usual_mean, usual_std = architecture.statistics
    channels = channels or len(mean or std or usual_mean)
    mean = mean or _spread(usual_mean, channels)
    std = std or _spread(usual_std, channels)
    if len(mean) != channels:
        raise PumaError(f"mean must be {channels} numbers, one per channel, got {list(mean)}.")
    if len(std) != channels or min(std) <= 0:
        raise PumaError(f"std must be {channels} positive numbers, one per channel, got {list(std)}.")
    return architecture.make(num_classes, mean, std, channels=channels)


def _spread(values: Sequence[float], channels: int) -> Sequence[float]:
    """Use the mean over channels where the number of channels is another one."""
    return values if len(values) == channels else [sum(values) / len(values)] * channels


def count_parameters(model: nn.Module) -> int:
    """Number of trainable and frozen parameters; buffers such as BN statistics do not count."""
    return sum(parameter.numel() for parameter in model.parameters())
