"""PreActResNet-18 with SiLU: for 32 px images, and for 224 px with the usual strided stem."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from puma.models.normalize import Normalize


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
    """Four stages of two pre-activation blocks."""

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
