import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from puma.pools import crop_and_flip


def candidates(image: Tensor, padding: int, flip: bool) -> list[Tensor]:
    """Every picture that one image can become."""
    _, height, width = image.shape
    padded = F.pad(image, [padding] * 4)
    crops = [
        padded[:, top : top + height, left : left + width]
        for top in range(2 * padding + 1)
        for left in range(2 * padding + 1)
    ]
    return crops + [crop.flip(2) for crop in crops if flip]


@pytest.mark.parametrize(("padding", "flip"), [(1, True), (2, False), (0, True), (0, False)])
def test_every_result_is_a_padded_crop_and_all_occur_equally_often(padding: int, flip: bool) -> None:
    image = torch.randint(1, 256, (2, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected = torch.stack(candidates(image, padding, flip))
    draws = 400 * len(expected)
    found = crop_and_flip(
        image.expand(draws, -1, -1, -1), padding=padding, flip=flip, generator=torch.Generator().manual_seed(1)
    )
    which = (found[:, None] == expected[None]).flatten(2).all(2)
    assert (which.sum(1) == 1).all()
    counts = which.sum(0)
    assert ((counts - 400).abs() < 5 * 400**0.5).all()


def test_the_usual_shift_is_up_to_four_pixels() -> None:
    image = torch.zeros(1, 9, 9, dtype=torch.uint8)
    image[0, 4, 4] = 1
    found = crop_and_flip(image.expand(3000, -1, -1, -1), generator=torch.Generator().manual_seed(0))
    rows, columns = found.sum(0)[0].nonzero().unbind(1)
    assert [int(v) for v in (rows.min(), rows.max(), columns.min(), columns.max())] == [0, 8, 0, 8]


def test_samples_move_independently_and_reproducibly() -> None:
    images = torch.rand(64, 3, 8, 8)
    one, two, other = (crop_and_flip(images, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_dtype_and_memory_layout_stay() -> None:
    images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    found = crop_and_flip(images)
    assert found.dtype == torch.uint8
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert crop_and_flip(images[:0]).shape == (0, 3, 8, 8)
