"""A part of a pool: the same ids, images and labels as the rows it points at."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from puma.errors import PumaError
from puma.files import read_json, write_json
from puma.planning import make_plan
from puma.pools import (
    DecodePolicy,
    Pool,
    PoolPart,
    ShardOptions,
    index_tars,
    index_webdataset,
    save_subset,
    write_parts,
)
from puma.pools.subsets import read_ids


@pytest.fixture(params=["in place", "packed"])
def pool(request: pytest.FixtureRequest, tmp_path: Path) -> Pool:
    images = np.random.default_rng(0).integers(256, size=(20, 16, 16, 3)).astype(np.uint8)
    if request.param == "packed":
        part = PoolPart([(images, np.arange(20) // 10)], ["cat", "dog"], 20)
        return Pool.open(write_parts({"": part}, tmp_path / "pool"))
    for label, name in enumerate(("cat", "dog")):
        (tmp_path / "tars").mkdir(exist_ok=True)
        with tarfile.open(tmp_path / f"tars/{name}.tar", "w") as tar:
            for index in range(10):
                file = io.BytesIO()
                Image.fromarray(images[10 * label + index]).save(file, "PNG")
                member = tarfile.TarInfo(f"{index}.png")
                member.size = file.tell()
                tar.addfile(member, io.BytesIO(file.getvalue()))
    index_tars(tmp_path / "tars", tmp_path / "pool", ShardOptions(DecodePolicy(16)))
    return Pool.open(tmp_path / "pool")


def same(part: Pool, pool: Pool, positions: list[int]) -> bool:
    one, two = part.batch(np.arange(len(part))), pool.batch(positions)
    return (
        len(part) == len(positions)
        and bool((one.images == two.images).all())
        and one.labels.tolist() == two.labels.tolist()
        and one.sample_id.tolist() == two.sample_id.tolist()
        and part.fingerprint == pool.subset(positions).fingerprint
    )


def test_every_way_to_choose(tmp_path: Path, pool: Pool) -> None:
    place = tmp_path / "part"
    assert same(Pool.open(save_subset(pool, place, first=3)), pool, [0, 1, 2])
    dogs = Pool.open(save_subset(pool, place, classes=["dog"], first=2, force=True))
    assert same(dogs, pool, [10, 11])
    assert dogs.class_names == ("cat", "dog")
    (tmp_path / "ids.txt").write_text("".join(f"{pool.sample_id[row]}\n" for row in (15, 4)))
    assert same(Pool.open(save_subset(pool, place, ids=tmp_path / "ids.txt", force=True)), pool, [4, 15])
    np.save(tmp_path / "ids.npy", pool.sample_id[[7, 3]])
    assert same(Pool.open(save_subset(pool, place, ids=tmp_path / "ids.npy", force=True)), pool, [3, 7])
    plan = make_plan(pool, prune_random=0.5, eps=8 / 255)
    kept = np.flatnonzero(plan.keep.numpy()).tolist()
    assert same(Pool.open(save_subset(pool, place, keep=plan.keep.numpy(), force=True)), pool, kept)
    located = pool.locate(0)
    if located is not None:
        (tmp_path / "keys.txt").write_text("dog/4.png\ncat/2.png\n")
        assert same(Pool.open(save_subset(pool, place, ids=tmp_path / "keys.txt", force=True)), pool, [2, 14])
    Pool.open(place).stores[0].verify()


def test_keys_of_digits_are_told_from_ids(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "PNG")
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for index in range(6):
            for name, content in ((f"{index:06d}.png", file.getvalue()), (f"{index:06d}.cls", b"0")):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    index_webdataset([tmp_path / "x.tar"], tmp_path / "pool", ShardOptions(DecodePolicy(16)))
    pool = Pool.open(tmp_path / "pool")
    (tmp_path / "ids.txt").write_text(f"{pool.sample_id[4]}\n{pool.sample_id[1]}\n")
    (tmp_path / "keys.txt").write_text("000004\n000001\n")
    for name in ("ids.txt", "keys.txt"):
        part = Pool.open(save_subset(pool, tmp_path / "part", ids=tmp_path / name, force=True))
        assert same(part, pool, [1, 4])


def test_a_part_of_a_part_points_at_the_whole_and_moves_along(tmp_path: Path, pool: Pool) -> None:
    (tmp_path / "all").mkdir()
    save_subset(pool, tmp_path / "all/dogs", classes=["dog"])
    save_subset(Pool.open(tmp_path / "all/dogs"), tmp_path / "all/two", first=2)
    two = Pool.open(tmp_path / "all/two")
    assert same(two, pool, [10, 11])
    assert two.fingerprint == pool.subset([10, 11]).fingerprint
    (tmp_path / "all/dogs/pool.json").unlink()
    assert same(Pool.open(tmp_path / "all/two"), pool, [10, 11])


def test_parts_that_cannot_be(tmp_path: Path, pool: Pool) -> None:
    with pytest.raises(PumaError, match="unknown class 'dgo'; did you mean 'dog'"):
        save_subset(pool, tmp_path / "part", classes=["dgo"])
    with pytest.raises(PumaError, match="no sample is left"):
        save_subset(pool, tmp_path / "part", keep=np.zeros(20, dtype=bool))
    with pytest.raises(PumaError, match="--first must be at least 1"):
        save_subset(pool, tmp_path / "part", first=0)
    with pytest.raises(PumaError, match="would replace the pool"):
        save_subset(pool, tmp_path / "pool", first=1, force=True)
    (tmp_path / "ids.txt").write_text("12345\n")
    with pytest.raises(PumaError, match=r"ids.txt names 1 samples that the pool lacks, the first is .12345.\."):
        save_subset(pool, tmp_path / "part", ids=tmp_path / "ids.txt")
    for name, content, sentence in (
        ("empty.txt", b"", "is empty"),
        ("bad.npy", b"x", "is not an .npy file"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(PumaError, match=sentence):
            read_ids(tmp_path / name)
    np.save(tmp_path / "floats.npy", np.zeros(3))
    with pytest.raises(PumaError, match="must hold whole numbers"):
        read_ids(tmp_path / "floats.npy")
    assert not (tmp_path / "part").exists()


def test_a_part_whose_pool_has_changed_is_told(tmp_path: Path, pool: Pool) -> None:
    save_subset(pool, tmp_path / "part", first=3)
    description = tmp_path / "pool/pool.json"
    described = {**read_json(description, "a pool"), "fingerprint": "0" * 64}
    write_json(description, described)
    with pytest.raises(PumaError, match=r"is a part of .* which is another pool by now"):
        Pool.open(tmp_path / "part")
    (tmp_path / "pool").rename(tmp_path / "moved")
    with pytest.raises(PumaError, match=r"part is a part of .*pool, which is gone; bring it back"):
        Pool.open(tmp_path / "part")
