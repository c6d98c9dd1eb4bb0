"""Nets small enough for a CPU: by default 35 thousand parameters and half a million multiply-adds."""

from collections.abc import Sequence

from torch import Tensor, nn

from puma.models.normalize import Normalize


class SmallNet(nn.Module):
    """A 3x3 convolution for every width, each with BN and SiLU, then global pooling.

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
        self.features = nn.Sequential(*(module for layer in layers for module in conv(*layer)))
        self.linear = nn.Linear(widths[-1], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits for images in [0, 1]."""
        logits: Tensor = self.linear(self.features(self.normalize(images)).mean(dim=(2, 3)))
        return logits


def conv(channels_in: int, channels: int, stride: int) -> list[nn.Module]:
    """One 3x3 convolution with its BN and SiLU."""
    bias = False  # BN has its own
    return [nn.Conv2d(channels_in, channels, 3, stride, 1, bias=bias), nn.BatchNorm2d(channels), nn.SiLU()]
