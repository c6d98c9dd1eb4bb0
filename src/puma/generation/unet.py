"""A small U-Net that denoises images of a class, and, if it was trained so, of a margin."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from puma.errors import PumaError

# side of the image -> levels of the net, each at half the side of the one before; the coarsest has 4 to 8 px a side
LEVELS = {8: 2, 14: 2, 28: 3, 32: 3, 64: 4}
_FREQUENCIES = 16  # of the noise level's embedding: small nets need no more
_GROUP = 8  # channels normalised together
AUGMENTS = 3  # numbers that tell how an image was augmented: mirrored, moved down, moved right


@dataclass(frozen=True)
class UNetConfig:
    """The size of the net.

    Attributes:
        width: channels at full resolution; a multiple of 8.
        growth: the coarser levels have so many times as many.
        blocks: residual blocks of each level, on the way down and on the way up.
    """

    width: int = 32
    growth: int = 2
    blocks: int = 1


@dataclass(frozen=True)
class Condition:
    """What the net is told of each image: labels (n,); margin (n,) in multiples of eps, NaN where it is not told.

    ``augment`` (n, 3) is how training images were mirrored and moved; None says not at all.
    """

    labels: Tensor
    margin: Tensor | None = None
    augment: Tensor | None = None


def count_levels(image_shape: tuple[int, int, int]) -> int:
    """Return how many levels images of this shape need; unknown sizes raise."""
    height, width, channels = image_shape
    if height != width or height not in LEVELS or channels not in (1, 3):
        raise PumaError(
            f"a generator makes square images of {', '.join(map(str, LEVELS))} px in grey or colour, the pool has "
            f"{height} x {width} x {channels}; import it at another size."
        )
    return LEVELS[height]


class ResidualBlock(nn.Module):
    """norm - SiLU - conv, twice; the embedding scales and shifts the second norm (ADM's block)."""

    def __init__(self, channels_in: int, channels: int, embedding: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(channels_in // _GROUP, channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels, 3, padding=1)
        self.affine = nn.Linear(embedding, 2 * channels)
        self.norm2 = nn.GroupNorm(channels // _GROUP, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.shortcut = nn.Conv2d(channels_in, channels, 1) if channels_in != channels else nn.Identity()
        nn.init.zeros_(self.conv2.weight)  # a new block passes its input on
        nn.init.zeros_(self.conv2.bias)  # type: ignore[arg-type]

    def forward(self, features: Tensor, embedding: Tensor) -> Tensor:
        """Apply the block."""
        hidden = self.conv1(F.silu(self.norm1(features)))
        scale, shift = self.affine(embedding)[:, :, None, None].chunk(2, dim=1)
        hidden = self.conv2(F.silu(torch.addcmul(shift, self.norm2(hidden), scale + 1)))
        total: Tensor = hidden + self.shortcut(features)
        return total * math.sqrt(0.5)  # a sum of two would double the variance


class SelfAttention(nn.Module):
    """Every place of the coarsest level looks at all others."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.heads = max(1, channels // 64)
        self.norm = nn.GroupNorm(channels // _GROUP, channels)
        self.inward = nn.Conv2d(channels, 3 * channels, 1)
        self.outward = nn.Conv2d(channels, channels, 1)
        nn.init.zeros_(self.outward.weight)
        nn.init.zeros_(self.outward.bias)  # type: ignore[arg-type]

    def forward(self, features: Tensor) -> Tensor:
        """Apply the layer."""
        count, channels, height, width = features.shape
        parts = self.inward(self.norm(features)).reshape(count, 3, self.heads, channels // self.heads, height * width)
        query, key, value = parts.transpose(-1, -2).unbind(1)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(-1, -2).reshape(features.shape)
        total: Tensor = features + self.outward(mixed)
        return total * math.sqrt(0.5)


class UNet(nn.Module):
    """Takes scaled noisy images, c_noise (n,) and a condition; gives what ``edm.denoise`` calls the residual."""

    frequencies: Tensor

    def __init__(
        self, config: UNetConfig, image_shape: tuple[int, int, int], num_classes: int, *, margins: bool = False
    ) -> None:
        super().__init__()
        widths = [config.width * (1 if level == 0 else config.growth) for level in range(count_levels(image_shape))]
        channels, embedding = image_shape[2], 4 * config.width
        frequencies = 0.25 * 2 ** torch.linspace(0, 6, _FREQUENCIES)  # c_noise spans about 2.7: 0.1 to 7 periods of it
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.classes = nn.Embedding(num_classes, embedding)
        self.noise = nn.Linear(2 * _FREQUENCIES, embedding)
        self.augment = nn.Linear(AUGMENTS, embedding, bias=False)
        self.margin: nn.Sequential | None = None
        if margins:
            first, second = nn.Linear(2 * _FREQUENCIES, embedding), nn.Linear(embedding, embedding)
            self.margin = nn.Sequential(first, nn.SiLU(), second)
        self.mix = nn.Linear(embedding, embedding)
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1)
        self.down, self.reduce, self.up = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for level, width in enumerate(widths):
            self.down.append(nn.ModuleList(ResidualBlock(width, width, embedding) for _ in range(config.blocks)))
            if level + 1 < len(widths):
                self.reduce.append(nn.Conv2d(width, widths[level + 1], 3, stride=2, padding=1))
        self.middle1 = ResidualBlock(widths[-1], widths[-1], embedding)
        self.attention = SelfAttention(widths[-1])
        self.middle2 = ResidualBlock(widths[-1], widths[-1], embedding)
        below = widths[-1]
        for width in reversed(widths):
            inputs = [below + width] + (config.blocks - 1) * [2 * width]
            self.up.append(nn.ModuleList(ResidualBlock(channels_in, width, embedding) for channels_in in inputs))
            below = width
        self.last_norm = nn.GroupNorm(widths[0] // _GROUP, widths[0])
        self.last = nn.Conv2d(widths[0], channels, 3, padding=1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]

    def embed(self, c_noise: Tensor, condition: Condition) -> Tensor:
        """Return what the blocks are told (n, embedding)."""
        total = self.noise(self._spread(c_noise)) + self.classes(condition.labels)
        if condition.augment is not None:
            total = total + self.augment(condition.augment)
        if condition.margin is not None and self.margin is not None:
            known = condition.margin.isfinite()
            told = self.margin(self._spread(condition.margin.where(known, 0) / 8))  # 16 eps span what c_noise spans
            total = total + told * known[:, None]
        return F.silu(self.mix(F.silu(total)))

    def _spread(self, values: Tensor) -> Tensor:
        angles = values[:, None] * self.frequencies
        return torch.cat([angles.cos(), angles.sin()], dim=1)

    def forward(self, images: Tensor, c_noise: Tensor, condition: Condition) -> Tensor:
        """Return the residual, in the images' shape."""
        embedding = self.embed(c_noise, condition)
        features = self.stem(images)
        passed: list[Tensor] = []
        for level, blocks in enumerate(self.down):
            for block in blocks:  # type: ignore[attr-defined]
                features = block(features, embedding)
                passed.append(features)
            if level < len(self.reduce):
                features = self.reduce[level](features)
        features = self.middle2(self.attention(self.middle1(features, embedding)), embedding)
        for blocks in self.up:
            if features.shape[-1] != passed[-1].shape[-1]:
                features = F.interpolate(features, scale_factor=2.0, mode="nearest")
            for block in blocks:  # type: ignore[attr-defined]
                features = block(torch.cat([features, passed.pop()], dim=1), embedding)
        residual: Tensor = self.last(F.silu(self.last_norm(features)))
        return residual
