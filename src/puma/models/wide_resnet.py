"""WideResNet with SiLU for 32 px images: 28-10 and 70-16."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from puma.models.normalize import Normalize
from puma.models.preact_resnet import PreActBlock


class WideResNet(nn.Module):
    """Three groups of ``(depth - 4) / 6`` blocks, widths 16, 32, 64 times ``widen``."""

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
        self.group1 = group(16, 16 * widen, blocks, stride=1)
        self.group2 = group(16 * widen, 32 * widen, blocks, stride=2)
        self.group3 = group(32 * widen, 64 * widen, blocks, stride=2)
        self.bn = nn.BatchNorm2d(64 * widen)
        self.linear = nn.Linear(64 * widen, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits for images in [0, 1]."""
        features = self.group3(self.group2(self.group1(self.conv(self.normalize(images)))))
        logits: Tensor = self.linear(F.silu(self.bn(features)).mean(dim=(2, 3)))
        return logits


def group(channels_in: int, channels: int, blocks: int, stride: int) -> nn.Sequential:
    """``blocks`` blocks of one width, the first with the stride."""
    first = PreActBlock(channels_in, channels, stride)
    return nn.Sequential(first, *(PreActBlock(channels, channels, 1) for _ in range(blocks - 1)))
