"""Pools out of tensors and datasets are the pools that they are once saved."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from puma.errors import PumaError
from puma.pools import DecodePolicy, Pool
from puma.pools.decoding import fit_picture

LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def images() -> torch.Tensor:
    return torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_tensors_arrays_and_layouts_give_the_same_pool_as_the_saved_one(tmp_path: Path) -> None:
    pool = Pool.from_tensors(images(), LABELS)
    last = images().permute(0, 2, 3, 1).numpy()
    for other in (
        Pool.from_tensors(last, LABELS.numpy()),
        Pool.from_tensors(np.rint(last * 255).astype(np.uint8), LABELS.tolist()),
        Pool.from_tensors(images(), LABELS, layout="NCHW"),
        Pool.open(pool.save(tmp_path / "mine")),
        pickle.loads(pickle.dumps(pool)),
    ):
        assert other.fingerprint == pool.fingerprint
        assert np.array_equal(other.sample_id, pool.sample_id)
        assert torch.equal(other.batch([5, 0]).images, pool.batch([5, 0]).images)
    assert repr(pool).startswith("Pool(6 images of 8 x 8 x 3, 3 classes")


def test_the_same_content_is_found_again_and_other_content_is_told(tmp_path: Path) -> None:
    pool = Pool.from_tensors(images(), LABELS)
    assert pool.save(tmp_path / "mine") == pool.save(tmp_path / "mine")
    part = pool.subset(torch.tensor([4, 1]))
    assert part.save(tmp_path / "part") == part.save(tmp_path / "part")
    saved = Pool.open(tmp_path / "part")
    assert saved.labels.tolist() == [1, 1]
    assert torch.equal(saved[0][0], pool[4][0])
    with pytest.raises(PumaError, match="holds another pool of 6 images"):
        part.save(tmp_path / "mine")
    mixed = pool + Pool.from_tensors(images(), LABELS, origin="generated")
    assert Pool.open(mixed.save(tmp_path / "mixed")).origin.tolist() == [0] * 6 + [1] * 6


def test_a_dataset_is_a_pool(tmp_path: Path) -> None:
    dataset = TensorDataset(images(), LABELS)
    pool = Pool.from_dataset(dataset)
    assert torch.equal(pool[-1][0], Pool.from_tensors(images(), LABELS)[5][0])
    assert Pool.open(pool.save(tmp_path / "saved")).fingerprint == pool.fingerprint
    pictures = [(Image.new("L", (5, 4), 10 * row), row % 2) for row in range(4)]
    assert Pool.from_dataset(pictures).image_shape == (4, 5, 1)
    with pytest.raises(PumaError, match="without random augmentation"):
        Pool.from_dataset(_Noise())
    with pytest.raises(PumaError, match=r"must have __len__ and __getitem__.*got DataLoader; give its .dataset"):
        Pool.from_dataset(DataLoader(dataset))


class _Noise:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return torch.rand(3, 8, 8), row


def test_torchs_loader_takes_a_pool() -> None:
    batches = list(DataLoader(Pool.from_tensors(images(), LABELS), batch_size=4))  # type: ignore[arg-type]  # it is one in all but its base class
    assert [tuple(batch[0].shape) for batch in batches] == [(4, 3, 8, 8), (2, 3, 8, 8)]
    assert batches[1][1].tolist() == [1, 2]
    with pytest.raises(IndexError):
        Pool.from_tensors(images(), LABELS)[6]


def test_mistakes_are_told_and_the_advice_works() -> None:
    good = Pool.from_tensors(images(), LABELS).fingerprint
    with pytest.raises(PumaError, match=r"made by Pool\.from_tensors"):
        Pool(images(), LABELS)  # type: ignore[arg-type]
    with pytest.raises(PumaError, match=r"images \* std \+ mean"):
        Pool.from_tensors((images() - 0.5) / 0.25, LABELS)
    assert Pool.from_tensors((images() - 0.5) / 0.25 * 0.25 + 0.5, LABELS).fingerprint == good
    with pytest.raises(PumaError, match="images / 255"):
        Pool.from_tensors(images() * 255, LABELS)
    assert Pool.from_tensors(images() * 255 / 255, LABELS).fingerprint == good
    with pytest.raises(PumaError, match="give labels - 1"):
        Pool.from_tensors(images(), LABELS + 1)
    one_hot = torch.eye(3)[LABELS]
    with pytest.raises(PumaError, match=r"give labels.argmax\(1\)"):
        Pool.from_tensors(images(), one_hot)
    assert Pool.from_tensors(images(), one_hot.argmax(1)).fingerprint == good
    with pytest.raises(PumaError, match="say layout='NCHW' or layout='NHWC'"):
        Pool.from_tensors(torch.rand(6, 3, 8, 3), LABELS)
    with pytest.raises(PumaError, match="1 or 3 channels, first or last"):
        Pool.from_tensors(torch.rand(6, 4, 8, 8), LABELS)
    with pytest.raises(PumaError, match="as many labels as images"):
        Pool.from_tensors(images(), LABELS[:5])


def test_a_dataset_of_pictures_of_any_size_is_kept_in_place_and_scaled() -> None:
    """The same pixels as the decoder of pools in place gives; nothing is read before it is asked for."""
    rng = np.random.default_rng(0)
    pixels = [rng.integers(256, size=(20 + row, 40 - row, 3)).astype(np.uint8) for row in range(8)]
    read: list[int] = []

    class Pictures:
        targets = [0, 1] * 4

        def __len__(self) -> int:
            return 8

        def __getitem__(self, row: int) -> tuple[Image.Image, int]:
            read.append(row)
            return Image.fromarray(pixels[row]), row % 2

    pool = Pool.from_dataset(Pictures(), size=16)
    read.clear()
    batch = pool.batch([5, 2])
    assert read == [5, 2]
    assert batch.sample_id.tolist() == [5, 2]
    for image, row in zip(batch.images, (5, 2), strict=True):
        expected = fit_picture(Image.fromarray(pixels[row]), DecodePolicy(16))
        np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), expected)
    squashed = Pool.from_dataset(Pictures(), size=16, resize="squash")
    assert squashed.fingerprint != pool.fingerprint
    tensors = [(torch.from_numpy(image).permute(2, 0, 1), row % 2) for row, image in enumerate(pixels)]
    assert Pool.from_dataset(tensors, size=16).fingerprint == pool.fingerprint
    with pytest.raises(PumaError, match="images of a dataset must be of one size"):
        Pool.from_dataset(Pictures())
