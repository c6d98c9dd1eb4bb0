import copy
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import MakePool
from puma.errors import PumaError
from puma.pools import Origin, Pool, to_unit
from puma.pools.writer import PoolPart, new_folder, write_pool


def test_a_pool_gives_back_what_was_written(make_pool: MakePool) -> None:
    pool = make_pool(count=50, seed=3)
    images = np.random.default_rng(3).integers(256, size=(50, 6, 5, 3)).astype(np.uint8)
    batch = pool.batch([7, 0, 49, 7])
    assert batch.images.shape == (4, 3, 6, 5)
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(batch.images.permute(0, 2, 3, 1).numpy(), images[[7, 0, 49, 7]])
    assert batch.labels.tolist() == [3, 0, 1, 3]
    assert batch.sample_id.tolist() == [7, 0, 49, 7]
    assert (len(pool), pool.image_shape, pool.num_classes) == (50, (6, 5, 3), 4)
    assert isinstance(pool.stores[0].images, np.ndarray)
    assert not pool.stores[0].images.flags.writeable
    assert isinstance(pool.stores[0].images.base, np.memmap)


def test_to_unit_maps_0_to_255_on_0_to_1() -> None:
    assert to_unit(torch.tensor([0, 51, 255], dtype=torch.uint8)).tolist() == pytest.approx([0, 0.2, 1])


def test_subset_and_sum_keep_ids_and_images(make_pool: MakePool) -> None:
    real, generated = make_pool("real", 20), make_pool("generated", 30, origin=1, seed=1)
    both = real + generated
    assert len(both) == 50
    assert both.sample_id.tolist() == list(range(50))
    assert both.origin.tolist() == [0] * 20 + [1] * 30
    keep = np.zeros(50, dtype=bool)
    keep[[3, 19, 20, 45]] = True
    kept = both.subset(torch.from_numpy(keep))
    assert kept.sample_id.tolist() == [3, 19, 20, 45]
    assert kept.labels.tolist() == both.labels[keep].tolist()
    assert kept.positions_of(Origin.GENERATED).tolist() == [2, 3]
    for position, sample_id in enumerate(kept.sample_id):
        assert torch.equal(kept.batch([position]).images, both.batch([sample_id]).images)
    assert torch.equal(kept.batch([2]).images, generated.batch([0]).images)
    again = kept.subset(np.array([False, True, False, True]))
    assert again.sample_id.tolist() == [19, 45]


def test_sum_of_subsets_leaves_room_for_pruned_ids(make_pool: MakePool) -> None:
    real, generated = make_pool("real", 4), make_pool("generated", 4, seed=1)
    first_two = np.array([True, True, False, False])
    both = real.subset(first_two) + generated.subset(~first_two)
    assert both.sample_id.tolist() == [0, 1, 6, 7]
    assert torch.equal(both.batch([3]).images, generated.batch([3]).images)


def test_batches_cover_the_pool_once_in_order(make_pool: MakePool) -> None:
    pool = make_pool(count=23)
    ids = [batch.sample_id for batch in pool.batches(10)]
    assert [len(part) for part in ids] == [10, 10, 3]
    assert torch.cat(ids).tolist() == list(range(23))


def test_fingerprint_follows_content_not_place(make_pool: MakePool) -> None:
    pool, copy, other = make_pool("a"), make_pool("b"), make_pool("c", seed=1)
    assert pool.fingerprint == copy.fingerprint
    assert pool.fingerprint != other.fingerprint
    assert (pool + other).fingerprint != (other + pool).fingerprint
    keep = np.ones(50, dtype=bool)
    keep[4] = False
    assert pool.subset(keep).fingerprint == copy.subset(keep).fingerprint
    assert pool.subset(keep).fingerprint != pool.fingerprint
    assert pool.subset(keep).fingerprint != pool.subset(np.roll(keep, 1)).fingerprint


def test_fingerprint_knows_the_order_and_the_names(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(256, size=(3000, 2, 2, 1)).astype(np.uint8)
    swapped = images.copy()
    swapped[[1, 4]] = images[[4, 1]]  # the same class, and not among the sampled images
    prints = set()
    for name, pixels, classes in (("a", images, "xyz"), ("b", swapped, "xyz"), ("c", images, "xyw")):
        with new_folder(tmp_path / name, force=False) as folder:
            write_pool(folder, PoolPart([(pixels, np.arange(3000) % 3)], list(classes), 3000))
        prints.add(Pool.open(tmp_path / name).fingerprint)
    assert len(prints) == 3


def test_a_pool_is_pickled_as_its_place(make_pool: MakePool) -> None:
    pool = make_pool(count=500)
    kept = pool.subset(np.arange(500) % 2 == 0)
    assert pool.labels.sum() > 0
    dumped = pickle.dumps(pool)
    assert len(dumped) < 2000
    assert torch.equal(copy.deepcopy(kept).batch([3]).images, kept.batch([3]).images)  # copied the way it is pickled


@pytest.mark.parametrize("file", ["labels.npy", "origin.npy", "images.npy"])
def test_a_changed_file_is_noticed(make_pool: MakePool, file: str) -> None:
    pool = make_pool()
    pool.stores[0].verify()
    path = pool.stores[0].path / file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(PumaError, match="has changed since it was imported"):
        Pool.open(pool.stores[0].path).stores[0].verify()


def test_a_damaged_pool_does_not_open(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool()
    path = pool.stores[0].path
    with pytest.raises(PumaError, match="is not a pool"):
        Pool.open(tmp_path / "nowhere")
    with pytest.raises(PumaError, match="it has pools inside: pool"):
        Pool.open(tmp_path)
    whole = (path / "images.npy").read_bytes()
    (path / "images.npy").write_bytes(whole[:-10])
    with pytest.raises(PumaError, match=r"images.npy is missing or cut short"):
        Pool.open(path)
    (path / "images.npy").write_bytes(whole[:60] + b"(" * 60 + whole[120:])
    with pytest.raises(PumaError, match=r"images.npy is missing or cut short"):
        Pool.open(path)
    (path / "images.npy").write_bytes(whole)
    np.save(path / "labels.npy", np.zeros(50))
    with pytest.raises(PumaError, match=r"should hold int32 \(50,\), it holds float64"):
        Pool.open(path)
    described = json.loads((path / "pool.json").read_text())
    (path / "pool.json").write_text(json.dumps(described | {"count": 49}))
    with pytest.raises(PumaError, match="has changed since it was written"):
        Pool.open(path)
    del described["sha256"]
    (path / "pool.json").write_text(json.dumps(described | {"format": "puma-pool-9"}))
    with pytest.raises(PumaError, match="has format 'puma-pool-9'"):
        Pool.open(path)
    (path / "pool.json").write_text(json.dumps(described | {"count": float("inf")}))
    with pytest.raises(PumaError, match="is damaged"):
        Pool.open(path)
    (path / "pool.json").write_text("{")
    with pytest.raises(PumaError, match="is damaged"):
        Pool.open(path)


def test_bad_input(make_pool: MakePool) -> None:
    pool = make_pool("pool", 10)
    with pytest.raises(PumaError, match="must have images of one shape"):
        pool + make_pool("other", 10, shape=(4, 4, 3))
    with pytest.raises(PumaError, match="must have the same classes"):
        pool + make_pool("another", 10, num_classes=5)
    with pytest.raises(PumaError, match=r"keep must be 10 booleans, or positions, got float64 of shape \(10,\)"):
        pool.subset(np.zeros(10))
    with pytest.raises(PumaError, match=r"positions must lie in 0..9, each once"):
        pool.subset([3, 3])
    with pytest.raises(PumaError, match=r"positions must lie in 0..9, got 3..10"):
        pool.batch([3, 10])
    with pytest.raises(PumaError, match="batch_size must be at least 1"):
        next(pool.batches(0))
