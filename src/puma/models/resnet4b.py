"""The small BN-free residual net that verification benchmarks call "resnet4b": 124 thousand parameters.

Two sets of adversarially trained CIFAR-10 weights for it are public (alpha-beta-CROWN, NNV), which makes it a
convenient real robust model for tests and benchmarks.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from puma.models.normalize import Normalize


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
    """Strided convolution, two stages of two blocks, two linear layers; for 32 px images."""

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
