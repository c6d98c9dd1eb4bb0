"""The built-in nets and how they are made by name; each takes pixels in [0, 1] and normalises inside."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from puma.errors import PumaError, unknown_name

CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)  # of the training images
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # as everywhere


class Normalize(nn.Module):
    """``(pixels - mean) / std`` per channel; mean and std are saved with the weights."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Normalise a batch (n, channels, height, width)."""
        return (images - self.mean) / self.std


class BasicBlock(nn.Module):
    """conv - BN - ReLU - conv - BN, plus the shortcut, then ReLU."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, features: Tensor) -> Tensor:
        """Apply the block."""
        hidden = F.relu(self.bn1(self.conv1(features)))
        hidden = self.bn2(self.conv2(hidden))
        return F.relu(hidden + self.shortcut(features))


class ResNet(nn.Module):
    """ResNet-18 for 32 px images: four stages of two basic blocks; 64 is the usual width, 16 the slim one."""

    def __init__(
        self, num_classes: int, mean: Sequence[float], std: Sequence[float], *, channels: int, width: int = 64
    ) -> None:
        super().__init__()
        self.normalize = Normalize(mean, std)
        self.conv1 = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = _make_stage(width, width, stride=1)
        self.layer2 = _make_stage(width, 2 * width, stride=2)
        self.layer3 = _make_stage(2 * width, 4 * width, stride=2)
        self.layer4 = _make_stage(4 * width, 8 * width, stride=2)
        self.linear = nn.Linear(8 * width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits for images in [0, 1]."""
        features = F.relu(self.bn1(self.conv1(self.normalize(images))))
        features = self.layer4(self.layer3(self.layer2(self.layer1(features))))
        logits: Tensor = self.linear(features.mean(dim=(2, 3)))
        return logits


def _make_stage(channels_in: int, channels: int, stride: int) -> nn.Sequential:
    """Two basic blocks, the first with the stride."""
    return nn.Sequential(BasicBlock(channels_in, channels, stride), BasicBlock(channels, channels, 1))


class PreActBlock(nn.Module):
    """BN - SiLU - conv, twice; the shortcut convolution branches off after the first activation."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.shortcut: nn.Conv2d | None = None
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        """Apply the block."""
        active = F.silu(self.bn1(features))
        carried = features if self.shortcut is None else self.shortcut(active)
        hidden = self.conv1(active)
        residual: Tensor = self.conv2(F.silu(self.bn2(hidden)))
        return residual + carried


class PreActResNet(nn.Module):
    """PreActResNet-18 with SiLU: for 32 px images, and for 224 px with the usual strided stem."""

    def __init__(
        self,
        num_classes: int,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        channels: int,
        strided_stem: bool = False,
    ) -> None:
        super().__init__()
        self.normalize = Normalize(mean, std)
        self.stem: nn.Module
        if strided_stem:
            conv = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
            self.stem = nn.Sequential(conv, nn.MaxPool2d(3, 2, 1))
        else:
            self.stem = nn.Conv2d(channels, 64, 3, 1, 1, bias=False)
        widths = [64, 64, 128, 256, 512]
        self.stages = nn.Sequential(
            *(
                nn.Sequential(PreActBlock(before, after, 1 if after == before else 2), PreActBlock(after, after, 1))
                for before, after in pairwise(widths)
            )
        )
        self.bn = nn.BatchNorm2d(widths[-1])
        self.linear = nn.Linear(widths[-1], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits for images in [0, 1]."""
        features = self.stages(self.stem(self.normalize(images)))
        logits: Tensor = self.linear(F.silu(self.bn(features)).mean(dim=(2, 3)))
        return logits


class WideResNet(nn.Module):
    """WideResNet with SiLU for 32 px: three groups of ``(depth - 4) / 6`` blocks, widths 16, 32, 64 times ``widen``."""

    def __init__(
        self,
        num_classes: int,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        channels: int,
        depth: int,
        widen: int,
    ) -> None:
        super().__init__()
        blocks = (depth - 4) // 6
        self.normalize = Normalize(mean, std)
        self.conv = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
        self.group1 = _make_group(16, 16 * widen, blocks, stride=1)
        self.group2 = _make_group(16 * widen, 32 * widen, blocks, stride=2)
        self.group3 = _make_group(32 * widen, 64 * widen, blocks, stride=2)
        self.bn = nn.BatchNorm2d(64 * widen)
        self.linear = nn.Linear(64 * widen, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits for images in [0, 1]."""
        features = self.group3(self.group2(self.group1(self.conv(self.normalize(images)))))
        logits: Tensor = self.linear(F.silu(self.bn(features)).mean(dim=(2, 3)))
        return logits


def _make_group(channels_in: int, channels: int, blocks: int, stride: int) -> nn.Sequential:
    """``blocks`` blocks of one width, the first with the stride."""
    first = PreActBlock(channels_in, channels, stride)
    return nn.Sequential(first, *(PreActBlock(channels, channels, 1) for _ in range(blocks - 1)))


class PlainBlock(nn.Module):
    """conv - ReLU - conv plus the shortcut, then ReLU; no BN, all convolutions with bias."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride))

    def forward(self, features: Tensor) -> Tensor:
        """Apply the block."""
        return F.relu(self.conv2(F.relu(self.conv1(features))) + self.shortcut(features))


class ResNet4b(nn.Module):
    """The small BN-free residual net that verification benchmarks call "resnet4b": 124 thousand parameters.

    Strided convolution, two stages of two blocks, two linear layers; for 32 px images. Two sets of adversarially
    trained CIFAR-10 weights for it are public (alpha-beta-CROWN, NNV), which makes it a convenient real robust model.
    """

    def __init__(self, num_classes: int, mean: Sequence[float], std: Sequence[float], *, channels: int) -> None:
        super().__init__()
        self.normalize = Normalize(mean, std)
        self.conv1 = nn.Conv2d(channels, 16, 3, 2, 1)
        self.layer1 = nn.Sequential(PlainBlock(16, 32, 2), PlainBlock(32, 32, 1))
        self.layer2 = nn.Sequential(PlainBlock(32, 32, 2), PlainBlock(32, 32, 1))
        self.linear1 = nn.Linear(512, 100)
        self.linear2 = nn.Linear(100, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits for images in [0, 1]."""
        features = self.layer2(self.layer1(F.relu(self.conv1(self.normalize(images)))))
        logits: Tensor = self.linear2(F.relu(self.linear1(features.flatten(1))))
        return logits


class SmallNet(nn.Module):
    """A 3x3 convolution for every width, each with BN and SiLU, then global pooling: 35 thousand parameters by default.

    ``strides`` belong to the image size: all the built-in nets end in 4x4 features.
    """

    def __init__(
        self,
        num_classes: int,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        channels: int,
        strides: Sequence[int],
        widths: Sequence[int] = (12, 24, 48, 48),
    ) -> None:
        super().__init__()
        self.normalize = Normalize(mean, std)
        layers = zip((channels, *widths[:-1]), widths, strides, strict=True)
        self.features = nn.Sequential(*(module for layer in layers for module in _make_layer(*layer)))
        self.linear = nn.Linear(widths[-1], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits for images in [0, 1]."""
        logits: Tensor = self.linear(self.features(self.normalize(images)).mean(dim=(2, 3)))
        return logits


def _make_layer(channels_in: int, channels: int, stride: int) -> list[nn.Module]:
    """One 3x3 convolution with its BN and SiLU."""
    bias = False  # BN has its own
    return [nn.Conv2d(channels_in, channels, 3, stride, 1, bias=bias), nn.BatchNorm2d(channels), nn.SiLU()]


_GREY = ((0.5,), (0.5,))  # pixels to [-1, 1], whatever the images
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


_WEIGHT_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")


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
    if name.endswith(".py"):
        raise PumaError(
            f"{name} is a file of code; say which class or function in it makes the net, such as {name}:Net."
        )
    if name.endswith(_WEIGHT_SUFFIXES):
        raise PumaError(f"{name} is a file of weights; name the net, and give the file with --weights {name}.")
    if name not in ARCHITECTURES:
        raise unknown_name("model", name, list(ARCHITECTURES))
    if num_classes < 2:
        raise PumaError(f"a classifier needs at least 2 classes, got num_classes={num_classes}.")
    architecture = ARCHITECTURES[name]
    usual_mean, usual_std = architecture.statistics
    channels = channels or len(mean or std or usual_mean)
    mean = mean or _spread_statistics(usual_mean, channels)
    std = std or _spread_statistics(usual_std, channels)
    if len(mean) != channels:
        raise PumaError(f"mean must be {channels} numbers, one per channel, got {list(mean)}.")
    if len(std) != channels or min(std) <= 0:
        raise PumaError(f"std must be {channels} positive numbers, one per channel, got {list(std)}.")
    return architecture.make(num_classes, mean, std, channels=channels)


def _spread_statistics(values: Sequence[float], channels: int) -> Sequence[float]:
    """Use the mean over channels where the number of channels is another one."""
    return values if len(values) == channels else [sum(values) / len(values)] * channels


def name_architecture(model: nn.Module) -> str | None:
    """Return the name of the built-in architecture that a net is; None for a net of one's own."""
    heads = [module.out_features for module in model.modules() if isinstance(module, nn.Linear)]
    normalize = getattr(model, "normalize", None)
    if not heads or not isinstance(normalize, Normalize):
        return None
    for name, architecture in ARCHITECTURES.items():
        make: Any = architecture.make
        if type(model) is getattr(make, "func", make):
            with torch.device("meta"):
                built = build(name, heads[-1], channels=normalize.mean.numel())
            if str(built) == str(model):
                return name
    return None


def count_parameters(model: nn.Module) -> int:
    """Number of trainable and frozen parameters; buffers such as BN statistics do not count."""
    return sum(parameter.numel() for parameter in model.parameters())
