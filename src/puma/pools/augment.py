"""Random crop and flip on whole batches, each sample its own."""

import torch
from torch import Generator, Tensor


def crop_and_flip(images: Tensor, *, padding: int = 4, flip: bool = True, generator: Generator | None = None) -> Tensor:
    """Shift each image by up to ``padding`` pixels in each direction, black coming in, and mirror half of them.

    Takes (n, channels, height, width) of any dtype and returns the same; stays in channels_last memory if it was.
    """
    count, _, height, width = images.shape
    device = images.device

    def draw(choices: int) -> Tensor:
        return torch.randint(choices, (count, 1), generator=generator, device=device)

    shift_down = draw(2 * padding + 1) - padding
    shift_right = draw(2 * padding + 1) - padding
    rows = torch.arange(height, device=device) + shift_down
    columns = torch.arange(width, device=device) + shift_right
    if flip:
        mirrored = draw(2).bool()
        columns = torch.where(mirrored, columns.flip(1), columns)
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    sample = torch.arange(count, device=device)[:, None, None]
    source = images.permute(0, 2, 3, 1)
    picked = source[sample, rows.clamp(0, height - 1)[:, :, None], columns.clamp(0, width - 1)[:, None, :]]
    return (picked * inside[..., None].to(images.dtype)).permute(0, 3, 1, 2)
