"""ResNet-18 for 32 px images (ReLU), at any width: 64 is the usual one, 16 the slim one for CPU work."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from puma.models.normalize import Normalize


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
    """Four stages of two basic blocks; the first convolution keeps the resolution."""

    def __init__(
        self, num_classes: int, mean: Sequence[float], std: Sequence[float], *, channels: int, width: int = 64
    ) -> None:
        super().__init__()
        self.normalize = Normalize(mean, std)
        self.conv1 = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = stage(width, width, stride=1)
        self.layer2 = stage(width, 2 * width, stride=2)
        self.layer3 = stage(2 * width, 4 * width, stride=2)
        self.layer4 = stage(4 * width, 8 * width, stride=2)
        self.linear = nn.Linear(8 * width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits for images in [0, 1]."""
        features = F.relu(self.bn1(self.conv1(self.normalize(images))))
        features = self.layer4(self.layer3(self.layer2(self.layer1(features))))
        logits: Tensor = self.linear(features.mean(dim=(2, 3)))
        return logits


def stage(channels_in: int, channels: int, stride: int) -> nn.Sequential:
    """Two basic blocks, the first with the stride."""
    return nn.Sequential(BasicBlock(channels_in, channels, stride), BasicBlock(channels, channels, 1))
