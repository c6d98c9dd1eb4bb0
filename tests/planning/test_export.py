"""Exports: other programs find in them exactly what the plan keeps, and a killed one goes on where it ended."""

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from puma.errors import PumaError
from puma.planning import (
    KeptSamples,
    Plan,
    export_bitmap,
    export_keys,
    export_npz,
    export_parquet,
    export_webdataset,
    make_plan,
)
from puma.pools import DecodePolicy, Pool, ShardOptions, index_parquet, index_tars, index_webdataset, read_ids
from puma.scores import Scores

RNG = np.random.default_rng(0)


def encode(index: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(index).integers(256, size=(20, 20, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(file, "PNG" if index % 3 else "JPEG")
    return file.getvalue()


@pytest.fixture(params=["in place", "packed", "in memory"])
def pool(request: pytest.FixtureRequest, tmp_path: Path) -> Pool:
    (tmp_path / "tars").mkdir()
    for label in range(2):
        with tarfile.open(tmp_path / f"tars/n0{label}.tar", "w") as tar:
            for index in range(15):
                content = encode(15 * label + index)
                member = tarfile.TarInfo(f"n0{label}_{index}.{'png' if (15 * label + index) % 3 else 'JPEG'}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    index_tars(tmp_path / "tars", tmp_path / "pool", ShardOptions(DecodePolicy(16), pack=request.param == "packed"))
    opened = Pool.open(tmp_path / "pool")
    if request.param != "in memory":
        return opened
    batch = opened.batch(np.arange(30))
    return Pool.from_tensors(batch.images, batch.labels, class_names=("n00", "n01"))


@pytest.fixture
def plan(pool: Pool) -> Plan:
    return make_plan(pool, prune_random=0.3, eps=8 / 255)


def margins_of(pool: Pool) -> Scores:
    return Scores("margin", pool.sample_id, np.linspace(-1, 1, len(pool), dtype=np.float32), pool.fingerprint)


def pixels_of(pool: Pool, positions: Any) -> Any:
    return pool.batch(positions).images.permute(0, 2, 3, 1).numpy()


def test_keys_and_bitmap(tmp_path: Path, pool: Pool, plan: Plan) -> None:
    kept = KeptSamples.choose(plan, pool)
    positions = np.flatnonzero(plan.keep.numpy())
    lines = export_keys(kept, tmp_path / "kept.txt").read_text().splitlines()
    assert len(lines) == len(positions) == 21
    if pool.locate(0) is None:
        assert [int(line) for line in lines] == pool.sample_id[positions].tolist()
    else:
        assert lines[0].startswith("n00/n00_")
    bits = np.fromfile(export_bitmap(plan, tmp_path / "kept.bitmap"), dtype=np.uint8)
    assert np.flatnonzero(np.unpackbits(bits, bitorder="little", count=30)).tolist() == positions.tolist()


def test_a_webdataset_comes_back_by_our_import(tmp_path: Path, pool: Pool, plan: Plan) -> None:
    kept = KeptSamples.choose(plan, pool, margins_of(pool), shuffle=1)
    export_webdataset(kept, tmp_path / "wds", shard_size=8, force=False)
    assert sorted(path.name for path in (tmp_path / "wds").glob("*.tar")) == [f"kept-{n:06d}.tar" for n in range(3)]
    with tarfile.open(tmp_path / "wds/kept-000001.tar") as tar:
        names = tar.getnames()
        file = tar.extractfile(next(name for name in names if name.endswith(".json")))
        assert file is not None
        told = json.loads(file.read())
    assert len(names) == 24
    assert told["sample_id"] == int(pool.sample_id[kept.positions[8]])
    assert told["margin"] == pytest.approx(np.linspace(-1, 1, 30)[kept.positions[8]])
    assert told["strength"] == pytest.approx(8 / 255)
    named = ShardOptions(DecodePolicy(16), class_names=pool.class_names)
    index_webdataset([tmp_path / "wds"], tmp_path / "again", named)
    again = Pool.open(tmp_path / "again")
    assert again.labels.tolist() == pool.labels[kept.positions].tolist()
    assert np.array_equal(pixels_of(again, np.arange(21)), pixels_of(pool, kept.positions))


def test_a_parquet_is_read_by_pyarrow_alone_and_comes_back(tmp_path: Path, pool: Pool, plan: Plan) -> None:
    kept = KeptSamples.choose(plan, pool, margins_of(pool))
    export_parquet(kept, tmp_path / "parts", shard_size=8, force=False)
    table = pq.read_table(tmp_path / "parts")
    assert table.column_names == ["image", "label", "sample_id", "strength", "margin"]
    assert table["sample_id"].to_pylist() == pool.sample_id[kept.positions].tolist()
    assert table["label"].to_pylist() == pool.labels[kept.positions].tolist()
    first = table["image"][0].as_py()
    with Image.open(io.BytesIO(first["bytes"])) as picture:
        assert picture.size == ((20, 20) if pool.locate(0) else (16, 16))
    index_parquet([tmp_path / "parts"], tmp_path / "again", ShardOptions(DecodePolicy(16)))
    again = Pool.open(tmp_path / "again")
    assert again.class_names == pool.class_names
    assert np.array_equal(pixels_of(again, np.arange(21)), pixels_of(pool, kept.positions))
    if pool.locate(0) is not None:
        assert again.sample_id.tolist() == pool.sample_id[kept.positions].tolist()  # paths are keys, so ids come back


def test_an_npz_holds_pixels_and_columns(tmp_path: Path, pool: Pool, plan: Plan) -> None:
    kept = KeptSamples.choose(plan, pool, margins_of(pool))
    export_npz(kept, tmp_path / "kept.npz")
    with np.load(tmp_path / "kept.npz") as arrays:
        assert sorted(arrays) == ["image", "label", "margin", "sample_id", "strength"]
        assert np.array_equal(arrays["image"], pixels_of(pool, kept.positions))
        assert arrays["sample_id"].tolist() == pool.sample_id[kept.positions].tolist()
    assert not list(tmp_path.glob(".kept*"))


@pytest.mark.parametrize("export", [export_webdataset, export_parquet])
def test_a_killed_export_goes_on_and_another_is_refused(tmp_path: Path, pool: Pool, plan: Plan, export: Any) -> None:
    kept = KeptSamples.choose(plan, pool)
    export(kept, tmp_path / "out", shard_size=8, force=False)
    whole = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    first, second, _ = sorted(path for path in (tmp_path / "out").iterdir() if not path.name.startswith("_"))
    second.unlink()
    stamp = first.stat().st_mtime_ns
    export(kept, tmp_path / "out", shard_size=8, force=False)
    assert first.stat().st_mtime_ns == stamp
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == whole
    other = KeptSamples.choose(make_plan(pool, prune_random=0.5, eps=8 / 255), pool)
    with pytest.raises(PumaError, match="holds another export"):
        export(other, tmp_path / "out", shard_size=8, force=False)
    export(other, tmp_path / "out", shard_size=8, force=True)
    assert len(list((tmp_path / "out").glob("[kp]*"))) == 2
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    with pytest.raises(PumaError, match="is no export of a plan"):
        export(other, tmp_path / "mine", shard_size=8, force=True)
    with pytest.raises(PumaError, match="--shard-size must be at least 1"):
        export(other, tmp_path / "new", shard_size=0, force=False)


def index_keys(folder: Path, *names: str, encoding: str = "utf-8") -> Pool:
    """Index a tar of pictures with these names."""
    with tarfile.open(folder / "n01.tar", "w", format=tarfile.GNU_FORMAT, encoding=encoding) as tar:
        for name in names:
            content = encode(0)
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    index_tars(folder / "n01.tar", folder / "pool", ShardOptions(DecodePolicy(16)))
    return Pool.open(folder / "pool")


def test_keys_that_differ_in_their_ending_alone_stay_apart(tmp_path: Path) -> None:
    pool = index_keys(tmp_path, "a.jpg", "a.png", "a.b.png")
    kept = KeptSamples.choose(make_plan(pool, eps=8 / 255), pool)
    export_webdataset(kept, tmp_path / "wds", shard_size=8, force=False)
    with tarfile.open(tmp_path / "wds/kept-000000.tar") as tar:
        stems = {name.partition(".")[0] for name in tar.getnames()}
    assert stems == {"n01/a_jpg", "n01/a_png", "n01/a_b_png"}


def test_a_key_with_a_line_break_is_in_no_list_of_lines(tmp_path: Path) -> None:
    pool = index_keys(tmp_path, "a\nb.png")
    kept = KeptSamples.choose(make_plan(pool, eps=8 / 255), pool)
    with pytest.raises(PumaError, match=r"the key 'n01/a\\nb.png' has a line break"):
        export_keys(kept, tmp_path / "kept.txt")
    assert not (tmp_path / "kept.txt").exists()


def test_keys_that_are_not_utf8_are_written(tmp_path: Path) -> None:
    pool = index_keys(tmp_path, "é.png", "è.png", encoding="latin-1")
    plan = make_plan(pool, eps=8 / 255)
    kept = KeptSamples.choose(plan, pool)
    keys = export_keys(kept, tmp_path / "kept.txt")
    assert keys.read_bytes() == b"n01/\xe9.png\nn01/\xe8.png\n"
    assert read_ids(keys).tolist() == pool.sample_id.tolist()
    export_parquet(kept, tmp_path / "parts", shard_size=8, force=False)
    paths = pq.read_table(tmp_path / "parts").flatten()["image.path"].to_pylist()
    assert paths == ["n01/\\xe9.png", "n01/\\xe8.png"]
    with pytest.raises(PumaError, match="--shuffle must be at least 0, got -1"):
        KeptSamples.choose(plan, pool, shuffle=-1)


def test_a_plan_that_keeps_nothing_or_is_of_another_pool(pool: Pool, plan: Plan) -> None:
    nothing = Plan(plan.sample_id, torch.zeros_like(plan.keep), plan.strength, plan.pool_fingerprint)
    with pytest.raises(PumaError, match="keeps no sample"):
        KeptSamples.choose(nothing, pool)
    with pytest.raises(PumaError, match="made for another pool"):
        KeptSamples.choose(plan, pool.subset(np.arange(30) < 9))


def test_the_webdataset_package_reads_it(tmp_path: Path, pool: Pool, plan: Plan) -> None:
    if subprocess.run([sys.executable, "-c", "import webdataset"], capture_output=True, check=False).returncode:
        pytest.skip("the webdataset package is not installed")
    kept = KeptSamples.choose(plan, pool)
    export_webdataset(kept, tmp_path / "wds", shard_size=8, force=False)
    code = """
import sys, webdataset as wds
shards = sys.argv[1] + "/kept-{000000..000002}.tar"
found = wds.WebDataset(shards, shardshuffle=False).decode("rgb8").to_tuple("jpg;png", "cls", "json")
print([(image.shape[2], label, more["sample_id"]) for image, label, more in found])
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "wds")], capture_output=True, text=True, check=True
    )
    labels, ids = pool.labels[kept.positions].tolist(), pool.sample_id[kept.positions].tolist()
    assert done.stdout.strip() == str([(3, label, number) for label, number in zip(labels, ids, strict=True)])
