"""A net of 35 thousand parameters and half a million multiply-adds, for grey images of 8 to 14 px on a CPU."""

from collections.abc import Sequence

from torch import Tensor, nn

from puma.models.normalize import Normalize


class SmallNet(nn.Module):
    """Four 3x3 convolutions (12, 24, 48, 48 channels), each with BN and SiLU, then global pooling.

    ``first_stride`` is 2 for 14 px and 1 for 8 px, so that both end in 4x4 features.
    """

    def __init__(
        self,
        num_classes: int,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        channels: int,
        first_stride: int,
    ) -> None:
        super().__init__()
        self.normalize = Normalize(mean, std)
        self.features = nn.Sequential(
            *conv(channels, 12, first_stride), *conv(12, 24, 2), *conv(24, 48, 1), *conv(48, 48, 1)
        )
        self.linear = nn.Linear(48, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits for images in [0, 1]."""
        logits: Tensor = self.linear(self.features(self.normalize(images)).mean(dim=(2, 3)))
        return logits


def conv(channels_in: int, channels: int, stride: int) -> list[nn.Module]:
    """One 3x3 convolution with its BN and SiLU."""
    bias = False  # BN has its own
    return [nn.Conv2d(channels_in, channels, 3, stride, 1, bias=bias), nn.BatchNorm2d(channels), nn.SiLU()]
