"""Pools in place: pixels, ids and labels are those of the pictures, however they are kept; every damage is told."""

import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from PIL import Image

from puma.errors import PumaError
from puma.files import read_json, write_json, write_text
from puma.pools import Pool
from puma.pools.decoding import DecodePolicy, check_picture, decode_bytes
from puma.pools.shard_import import ImportedPool, ShardOptions, index_parquet, index_tars, index_webdataset
from puma.pools.shards import KEYED, hash_key
from puma.pools.superclasses import ClassMap

RNG = np.random.default_rng(0)
POLICY = DecodePolicy(16)
OPTIONS = ShardOptions(POLICY)


def encode(width: int = 20, height: int = 16, kind: str = "JPEG", mode: str = "RGB", seed: int | None = None) -> bytes:
    rng = RNG if seed is None else np.random.default_rng(seed)
    pixels = rng.integers(256, size=(height, width, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind)
    return file.getvalue()


def write_tar(path: Path, contents: Mapping[str, bytes] | Sequence[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in contents.items() if isinstance(contents, Mapping) else contents:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """Three classes of ten pictures, of sizes, formats and modes that occur."""
    for label, wnid in enumerate(("n01", "n02", "n03")):
        kinds = [("JPEG", "RGB"), ("PNG", "RGB"), ("JPEG", "L"), ("JPEG", "CMYK"), ("PNG", "RGBA"), ("WEBP", "RGB"),
                 ("GIF", "P"), ("BMP", "RGB"), ("PNG", "L"), ("JPEG", "RGB")]  # fmt: skip
        pictures = {
            f"{wnid}_{index}.{kind}": encode(17 + index, 16 + 3 * index, kind, mode, seed=10 * label + index)
            for index, (kind, mode) in enumerate(kinds)
        }
        write_tar(tmp_path / "tars" / f"{wnid}.tar", {**pictures, "notes.txt": b"no picture"})
    return tmp_path / "tars"


def read_all(tars: Path, policy: DecodePolicy = POLICY) -> dict[str, NDArray[np.uint8]]:
    """Every picture by its key, read by Python's tarfile and decoded alone."""
    found = {}
    for path in tars.glob("*.tar"):
        with tarfile.open(path) as tar:
            for member in tar:
                if not member.name.endswith(".txt"):
                    file = tar.extractfile(member)
                    assert file is not None
                    found[f"{path.stem}/{member.name}"] = decode_bytes(file.read(), policy)
    return found


def pixels_of(pool: Pool) -> NDArray[np.uint8]:
    return pool.batch(np.arange(len(pool))).images.permute(0, 2, 3, 1).numpy()


def keys_of(pool: Pool) -> list[str]:
    images: Any = pool.stores[0].images
    return [images.key(row) for row in range(len(pool))]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_pool_of_tars_holds_what_the_tars_hold(
    tmp_path: Path, tars: Path, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    monkeypatch.setenv("PUMA_DECODE_WORKERS", workers)
    done = index_tars(tars, tmp_path / "pool", OPTIONS)
    assert (done.broken, done.left_out) == ([], 0)
    pool = Pool.open(tmp_path / "pool")
    assert pool.class_names == ("n01", "n02", "n03")
    assert pool.labels.tolist() == [0] * 10 + [1] * 10 + [2] * 10
    expected = read_all(tars)
    assert sorted(keys_of(pool)) == sorted(expected)
    for key, image in zip(keys_of(pool), pixels_of(pool), strict=True):
        np.testing.assert_array_equal(image, expected[key])
    assert pool.sample_id.tolist() == [hash_key(key.encode()) for key in keys_of(pool)]
    assert int(pool.sample_id.min()) >= KEYED
    pool.stores[0].verify()


def test_packed_or_in_place_the_pixels_are_the_same(tmp_path: Path, tars: Path) -> None:
    index_tars(tars, tmp_path / "place", OPTIONS)
    index_tars(tars, tmp_path / "packed", ShardOptions(POLICY, pack=True))
    packed, place = Pool.open(tmp_path / "packed"), Pool.open(tmp_path / "place")
    assert np.array_equal(pixels_of(packed), pixels_of(place))
    assert packed.labels.tolist() == place.labels.tolist()
    assert packed.sample_id.tolist() == list(range(30))
    assert sorted(path.name for path in (tmp_path / "packed").iterdir()) == [
        "images.npy", "labels.npy", "origin.npy", "pool.json",
    ]  # fmt: skip
    place.save(tmp_path / "saved")
    assert Pool.open(tmp_path / "saved").fingerprint == packed.fingerprint


def test_ids_and_fingerprint_do_not_depend_on_the_order_of_shards(tmp_path: Path) -> None:
    """The same shards under other names, so in another order, are the same pool; a plan for one fits the other."""
    for folder, names in (("a", ("s0", "s1")), ("b", ("s1", "s0"))):
        for shard, name in enumerate(names):
            samples = [(f"{shard}{index}", encode(seed=10 * shard + index)) for index in range(5)]
            contents = [part for key, jpg in samples for part in ((f"{key}.jpg", jpg), (f"{key}.cls", b"%d" % shard))]
            write_tar(tmp_path / folder / f"{name}.tar", contents)
        index_webdataset([tmp_path / folder], tmp_path / f"{folder}-pool", OPTIONS)
    one, two = Pool.open(tmp_path / "a-pool"), Pool.open(tmp_path / "b-pool")
    assert one.fingerprint == two.fingerprint
    assert one.sample_id.tolist() == two.sample_id[[5, 6, 7, 8, 9, 0, 1, 2, 3, 4]].tolist()
    keep = one.labels == 0
    assert one.subset(keep).fingerprint == two.subset(two.labels == 0).fingerprint
    assert one.subset(keep).fingerprint != one.subset(~keep).fingerprint
    from puma.planning import make_plan

    plan = make_plan(one, prune_random=0.5, eps=8 / 255)
    kept, _ = plan.of(two)
    assert set(two.sample_id[kept.numpy()].tolist()) == set(plan.sample_id[plan.keep].tolist())


@pytest.mark.parametrize("change", ["label", "bytes", "policy", "origin"])
def test_the_fingerprint_covers_labels_sizes_and_policy(tmp_path: Path, change: str) -> None:
    contents = {"a.jpg": encode(seed=0), "a.cls": b"0", "b.jpg": encode(seed=1), "b.cls": b"1"}
    write_tar(tmp_path / "one" / "x.tar", contents)
    index_webdataset([tmp_path / "one"], tmp_path / "p1", OPTIONS)
    if change == "label":
        contents |= {"a.cls": b"1", "b.cls": b"0"}
    elif change == "bytes":
        contents |= {"b.jpg": encode(40, 40, seed=2)}
    write_tar(tmp_path / "two" / "x.tar", contents)
    policy = DecodePolicy(16, "squash") if change == "policy" else POLICY
    index_webdataset([tmp_path / "two"], tmp_path / "p2", ShardOptions(policy, origin=int(change == "origin")))
    assert Pool.open(tmp_path / "p1").fingerprint != Pool.open(tmp_path / "p2").fingerprint


def test_a_tar_of_tars_and_a_class_map(tmp_path: Path, tars: Path) -> None:
    write_tar(tmp_path / "all.tar", {path.name: path.read_bytes() for path in sorted(tars.glob("*.tar"))})
    index_tars(tmp_path / "all.tar", tmp_path / "nested", OPTIONS)
    index_tars(tars, tmp_path / "plain", OPTIONS)
    nested, plain = Pool.open(tmp_path / "nested"), Pool.open(tmp_path / "plain")
    assert nested.sample_id.tolist() == plain.sample_id.tolist()
    assert np.array_equal(pixels_of(nested), pixels_of(plain))
    classes = ClassMap({"n03": 0, "n01": 1, "n99": 1}, ("fish", "bird"))
    done = index_tars(tars, tmp_path / "mapped", ShardOptions(POLICY, class_map=classes))
    mapped = Pool.open(tmp_path / "mapped")
    assert (done.left_out, mapped.class_names) == (10, ("fish", "bird"))
    assert mapped.labels.tolist() == [1] * 10 + [0] * 10
    assert keys_of(mapped) == keys_of(plain)[:10] + keys_of(plain)[20:]
    with pytest.raises(PumaError, match="the class map has none of the labels"):
        index_tars(tars, tmp_path / "none", ShardOptions(POLICY, class_map=ClassMap({"n7": 0}, ("a",))))


def test_tars_joined_by_cat_are_refused(tmp_path: Path, tars: Path) -> None:
    joined = tmp_path / "joined"
    joined.mkdir()
    one, two = sorted(tars.glob("*.tar"))[:2]
    (joined / one.name).write_bytes(one.read_bytes() + two.read_bytes())
    place = one.stat().st_size
    with pytest.raises(PumaError, match=rf"goes on behind its end mark, with another archive at byte {place:,}; .*"):
        index_tars(joined, tmp_path / "out", OPTIONS)
    (joined / one.name).write_bytes(one.read_bytes() + bytes(70_000) + b"padding of a tape".ljust(512, b"9"))
    index_tars(joined, tmp_path / "out", OPTIONS)


def test_a_tar_without_pictures_is_an_empty_class(tmp_path: Path, tars: Path) -> None:
    write_tar(tars / "n02b.tar", {"cut.jpg": encode(seed=0)[:50]})
    write_tar(tmp_path / "all.tar", {path.name: path.read_bytes() for path in sorted(tars.glob("*.tar"))})
    for source in (tars, tmp_path / "all.tar"):
        with pytest.raises(PumaError, match=r"n02b \(left out as broken: 1, .*cut\.jpg.*\); .* --allow-empty-class"):
            index_tars(source, tmp_path / "pool", OPTIONS)
        index_tars(source, tmp_path / "pool", ShardOptions(POLICY, allow_empty_class=True, force=True))
        pool = Pool.open(tmp_path / "pool")
        assert pool.class_names == ("n01", "n02", "n02b", "n03")
        assert np.bincount(pool.labels).tolist() == [10, 10, 0, 10]
        (tmp_path / "pool").rename(tmp_path / f"{source.stem}-done")


def test_labels_of_a_webdataset_in_both_forms(tmp_path: Path) -> None:
    contents: list[tuple[str, bytes]] = []
    for index in range(6):
        label = {"label": ["cat", "dog"][index % 2], "kind": index % 3}
        contents += [(f"d/{index:03d}.json", json.dumps(label).encode()), (f"d/{index:03d}.jpg", encode(seed=index))]
        contents += [(f"d/{index:03d}.txt", b"a caption")]
    write_tar(tmp_path / "x.tar", contents)
    index_webdataset([tmp_path / "x.tar"], tmp_path / "names", OPTIONS)
    pool = Pool.open(tmp_path / "names")
    assert (pool.class_names, pool.labels.tolist()) == (("cat", "dog"), [0, 1] * 3)
    assert keys_of(pool)[0] == "d/000"
    index_webdataset([tmp_path / "x.tar"], tmp_path / "kinds", OPTIONS, label_key="kind")
    assert Pool.open(tmp_path / "kinds").class_names == ("0", "1", "2")
    named = ShardOptions(POLICY, class_names=("x", "y", "z"))
    index_webdataset([tmp_path / "x.tar"], tmp_path / "xyz", named, label_key="kind")
    assert Pool.open(tmp_path / "xyz").class_names == ("x", "y", "z")
    with pytest.raises(PumaError, match="'cat' is not among the 3 classes"):
        index_webdataset([tmp_path / "x.tar"], tmp_path / "bad", named)


# ---- Parquet


def write_parquet(path: Path, pictures: Sequence[bytes | None], labels: Sequence[Any], **options: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    images = [None if content is None else {"bytes": content, "path": f"{path.stem}-{row}.jpg"}
              for row, content in enumerate(pictures)]  # fmt: skip
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(pa.table({"image": pa.array(images, kind), "label": pa.array(labels)}), path, **options)


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip", "brotli", "lz4"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_parquet_in_place_in_every_usual_form(tmp_path: Path, compression: str, version: str, dictionary: bool) -> None:
    """Pages are small here, so that each file has many; some pictures are missing, and some appear twice."""
    expected: dict[str, bytes] = {}
    for shard in range(2):
        pictures: list[bytes | None] = [encode(seed=100 * shard + index % 37) for index in range(60)]
        pictures[7] = None
        expected |= {f"s{shard}-{row}.jpg": content for row, content in enumerate(pictures) if content is not None}
        write_parquet(
            tmp_path / "data" / f"s{shard}.parquet", pictures, [index % 3 for index in range(60)],
            compression=compression, data_page_version=version, use_dictionary=dictionary, data_page_size=4000,
            row_group_size=25, dictionary_pagesize_limit=6000,
        )  # fmt: skip
    done = index_parquet([tmp_path / "data"], tmp_path / "pool", OPTIONS)
    assert [text.partition(" (")[0] for text in done.broken] == ["s0.parquet: row 7", "s1.parquet: row 7"]
    pool = Pool.open(tmp_path / "pool")
    images: Any = pool.stores[0].images
    assert {images.key(row): images.read_bytes(row) for row in range(len(pool))} == expected
    assert pool.labels.tolist()[:9] == [0, 1, 2, 0, 1, 2, 0, 2, 0]
    np.testing.assert_array_equal(pixels_of(pool)[0], decode_bytes(expected[images.key(0)], POLICY))
    pool.stores[0].verify()


def test_parquet_of_plain_bytes_with_names_of_classes(tmp_path: Path) -> None:
    features = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    table = pa.table({"img": pa.array([encode(seed=index) for index in range(4)]), "label": pa.array([0, 1, 1, 0])})
    table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    pq.write_table(table, tmp_path / "x.parquet")
    index_parquet([tmp_path / "x.parquet"], tmp_path / "pool", OPTIONS)
    pool = Pool.open(tmp_path / "pool")
    assert (pool.class_names, pool.labels.tolist()) == (("cat", "dog"), [0, 1, 1, 0])
    assert keys_of(pool) == ["x:0", "x:1", "x:2", "x:3"]


def test_parquet_that_cannot_be_used(tmp_path: Path) -> None:
    picture = encode(seed=0)

    def refuse(columns: dict[str, Any], sentence: str, **named: str) -> None:
        pq.write_table(pa.table(columns), tmp_path / "x.parquet")
        with pytest.raises(PumaError, match=sentence):
            index_parquet([tmp_path / "x.parquet"], tmp_path / "pool", OPTIONS, **named)
        assert not (tmp_path / "pool").exists()

    refuse({"image": [picture], "label": [0.5]}, "label must be whole numbers or names, it is double")
    refuse({"image": [picture], "label": [[1]]}, "label must be whole numbers or names")
    refuse({"image": [picture]}, "has no column 'label', only image")
    refuse({"label": [1]}, "has no column 'image', only label")
    refuse({"image": ["text"], "label": [1]}, "image must be bytes of pictures")
    refuse({"image": [picture], "label": [-1]}, "holds no picture with a label")
    refuse({"image": [picture], "label": [1 << 40]}, "labels must lie in")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no table")
    with pytest.raises(PumaError, match="damaged or not a parquet file"):
        index_parquet([tmp_path / "x.parquet"], tmp_path / "pool", OPTIONS)


def test_no_flipped_bit_of_a_parquet_file_is_a_traceback(tmp_path: Path) -> None:
    write_parquet(tmp_path / "x.parquet", [encode(seed=index) for index in range(6)], [0, 1] * 3)
    whole = (tmp_path / "x.parquet").read_bytes()
    rng = np.random.default_rng(3)
    for _ in range(60):
        flipped = bytearray(whole)
        flipped[int(rng.integers(len(whole)))] ^= 1 << int(rng.integers(8))
        (tmp_path / "x.parquet").write_bytes(flipped)
        try:
            index_parquet([tmp_path / "x.parquet"], tmp_path / "pool", ShardOptions(POLICY, check=True, force=True))
        except PumaError:
            continue
        assert len(Pool.open(tmp_path / "pool")) <= 6


# ---- what is broken


def make_huge() -> bytes:
    """A JPEG whose header tells 60,000 x 60,000 px."""
    content = bytearray(encode(seed=0))
    place = content.index(b"\xff\xc0")
    content[place + 5 : place + 9] = (60_000).to_bytes(2, "big") * 2
    return bytes(content)


def make_animated() -> bytes:
    frames = [Image.fromarray(np.full((20, 20, 3), shade, dtype=np.uint8)) for shade in (10, 200)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    return file.getvalue()


@pytest.mark.parametrize("how", ["glance", "check", "pack"])
def test_broken_pictures_are_named_counted_and_left_out(tmp_path: Path, tars: Path, how: str) -> None:
    jpeg = encode(300, 300, seed=1)
    broken = {
        "cut.jpg": jpeg[: len(jpeg) // 2],
        "text.png": b"not a picture",
        "empty.jpg": b"",
        "huge.jpg": make_huge(),
        "ghost.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\nshowpage\n",
    }
    write_tar(tars / "n04.tar", {"good.jpg": jpeg, "moving.gif": make_animated(), **broken})
    done = index_tars(tars, tmp_path / "pool", ShardOptions(POLICY, check=how == "check", pack=how == "pack"))
    assert {text.partition(": ")[2].partition(" ")[0] for text in done.broken} == set(broken)
    assert len((tmp_path / "pool/broken.txt").read_text().splitlines()) == 5
    assert "n04.tar: text.png (not a picture of a known format)" in done.broken
    pool = Pool.open(tmp_path / "pool")
    assert len(pool) == 32
    assert pixels_of(pool)[-1].max() <= 12  # the first frame
    with pytest.raises(PumaError, match=r"broken picture n04.tar: .*leave out --strict"):
        index_tars(tars, tmp_path / "strict", ShardOptions(POLICY, strict=True))


def test_what_only_decoding_shows_is_left_out_by_check_and_told_later_without(tmp_path: Path, tars: Path) -> None:
    """A PNG with sound beginning and end and nothing sound in between."""
    content = bytearray(encode(64, 64, "PNG", seed=5))
    content[60:-60] = bytes(len(content) - 120)
    write_tar(tars / "n04.tar", {"a.png": bytes(content), "b.png": encode(kind="PNG", seed=6)})
    index_tars(tars, tmp_path / "glance", OPTIONS)
    with pytest.raises(PumaError, match=r"picture 'n04/a.png' in .*n04.tar cannot be read .*--check"):
        pixels_of(Pool.open(tmp_path / "glance"))
    for pack in (False, True):
        done = index_tars(tars, tmp_path / "checked", ShardOptions(POLICY, check=True, pack=pack, force=True))
        assert len(done.broken) == 1
        assert "n04/a.png" in done.broken[0]
        pool = Pool.open(tmp_path / "checked")
        assert len(pixels_of(pool)) == len(pool) == 31
    with pytest.raises(PumaError, match=r"broken picture 'n04/a.png'.*--strict"):
        index_tars(tars, tmp_path / "strict", ShardOptions(POLICY, check=True, strict=True))


def test_shards_that_cannot_be_used(tmp_path: Path, tars: Path) -> None:
    def refuse(contents: Any, sentence: str, importer: Callable[..., ImportedPool] = index_webdataset) -> None:
        path = write_tar(tmp_path / "bad" / "x.tar", contents)
        with pytest.raises(PumaError, match=sentence):
            importer([path] if importer is index_webdataset else path, tmp_path / "pool", OPTIONS)
        assert not (tmp_path / "pool").exists()

    jpg = encode(seed=0)
    refuse([("a.jpg", jpg), ("a.cls", b"0"), ("b.jpg", jpg), ("b.cls", b"0"), ("a.png", jpg), ("a.cls", b"1")],
           "1 keys appear twice, the first is 'a' in .*make them differ")  # fmt: skip
    refuse({"a.jpg": jpg}, "holds no picture with a label .* the first of 1 that were left out: x.tar: a")
    refuse({"a.jpg": jpg, "a.cls": b"1.5e3x", "b.jpg": jpg, "b.cls": b"3"}, "all numbers or all names")
    refuse({"a.jpg": jpg, "a.cls": b"99999999"}, "must lie in 0..1048575")
    refuse({"a.jpg": jpg, "a.cls": b"-1"}, "must lie in 0..1048575, got -1")
    refuse({"a.jpg": jpg, "a.json": b"{"}, "is not JSON")
    refuse({"a.jpg": jpg, "a.json": b'{"label": 1.5}'}, "must be a whole number or a name, got 1.5")
    refuse({"a.jpg": jpg, "a.json": b'{"label": null}'}, "must be a whole number or a name, got None")
    refuse({"a.jpg": jpg, "a.json": b"[" * 100_000}, "is not JSON")
    refuse({"a.jpg": jpg, "a.png": jpg, "a.cls": b"1"}, "has 2 pictures")
    refuse({"a.jpg": jpg, "a.cls": b"7"}, "no image of class 0, 1, 2, 3, 4, ...")
    refuse({"../a.jpg": jpg}, "names a file outside of it", index_tars)
    refuse({"notes.txt": b"text"}, "holds no picture", index_tars)
    with pytest.raises(PumaError, match="no such file or folder"):
        index_tars(tmp_path / "absent", tmp_path / "pool", OPTIONS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(PumaError, match=r"holds no \.tar files"):
        index_tars(tmp_path / "empty", tmp_path / "pool", OPTIONS)
    import gzip

    (tmp_path / "packed.tar").write_bytes(gzip.compress((tars / "n01.tar").read_bytes()))
    with pytest.raises(PumaError, match="is packed by gzip, so pictures cannot be read in place"):
        index_tars(tmp_path / "packed.tar", tmp_path / "pool", OPTIONS)
    cut = tars / "n02.tar"
    cut.write_bytes(cut.read_bytes()[:5000])
    with pytest.raises(PumaError, match=r"n02.tar is (cut short|not a whole tar)"):
        index_tars(tars, tmp_path / "pool", OPTIONS)
    with pytest.raises(PumaError, match="--size must lie in"):
        DecodePolicy(0)


def test_links_are_named_and_never_followed(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "n01.tar", "w") as tar:
        link = tarfile.TarInfo("link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        member = tarfile.TarInfo("a.jpg")
        content = encode(seed=0)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    done = index_tars(tmp_path / "n01.tar", tmp_path / "pool", OPTIONS)
    assert done.broken == ["n01.tar: link.jpg (a link, not a file)"]


def test_keys_that_repeat_from_shard_to_shard(tmp_path: Path) -> None:
    for shard in ("a", "b"):
        write_tar(tmp_path / "wds" / f"{shard}.tar", {"0.jpg": encode(seed=0), "0.cls": b"0"})
    with pytest.raises(PumaError, match=r"'0' in .*a.tar and .*b.tar; give --shard-keys"):
        index_webdataset([tmp_path / "wds"], tmp_path / "pool", OPTIONS)
    index_webdataset([tmp_path / "wds"], tmp_path / "pool", ShardOptions(POLICY, shard_keys=True))
    assert keys_of(Pool.open(tmp_path / "pool")) == ["a/0", "b/0"]


def test_a_shard_that_changes_after_the_import_is_told_by_name(tmp_path: Path, tars: Path) -> None:
    index_tars(tars, tmp_path / "pool", OPTIONS)
    pool = Pool.open(tmp_path / "pool")
    path, before = tars / "n02.tar", (tars / "n02.tar").stat()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    for use in (lambda: Pool.open(tmp_path / "pool"), lambda: pixels_of(pool)):
        with pytest.raises(PumaError, match=r"shard .*n02.tar has changed since the import \(it was written to"):
            use()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert len(Pool.open(tmp_path / "pool")) == 30
    path.write_bytes(path.read_bytes() + bytes(512))
    with pytest.raises(PumaError, match=r"n02.tar has changed since the import \([\d,]+ bytes instead of"):
        Pool.open(tmp_path / "pool")
    path.unlink()
    with pytest.raises(PumaError, match=r"n02.tar is gone"):
        Pool.open(tmp_path / "pool")


def test_damaged_files_of_a_pool_are_one_sentence(tmp_path: Path, tars: Path) -> None:
    index_tars(tars, tmp_path / "pool", OPTIONS)
    for name in ("shards.json", "index.npy", "sample_id.npy", "labels.npy", "pool.json"):
        path = tmp_path / "pool" / name
        whole = path.read_bytes()
        for content in (b"", whole[: len(whole) // 2], b"{}" if name.endswith("json") else b"\x93NUMPY" + whole[8:]):
            path.write_bytes(content)
            with pytest.raises(PumaError):
                Pool.open(tmp_path / "pool")
        path.write_bytes(whole)
    shards = tmp_path / "pool/shards.json"
    described = read_json(shards, "shards")
    write_text(shards, '{"root": "/", "shards": [["n01.tar", 1e999, 0, ""]]}')
    with pytest.raises(PumaError, match=r"shards.json is damaged \(cannot convert float infinity"):
        Pool.open(tmp_path / "pool")
    write_json(shards, {**described, "shards": [["../n01.tar", *described["shards"][0][1:]]]})
    with pytest.raises(PumaError, match="names a shard outside its root"):
        Pool.open(tmp_path / "pool")


@pytest.mark.parametrize("name", ["index.npy", "pages.npy", "keys_end.npy", "keys.txt", "sample_id.npy", "shards.json"])
def test_no_damage_to_an_index_is_a_traceback(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUMA_DECODE_WORKERS", "0")
    write_parquet(tmp_path / "x.parquet", [encode(seed=index) for index in range(9)], [0, 1, 2] * 3)
    index_parquet([tmp_path / "x.parquet"], tmp_path / "pool", OPTIONS)
    path = tmp_path / "pool" / name
    whole, rng = path.read_bytes(), np.random.default_rng(7)
    for _ in range(150):
        flipped = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            flipped[int(rng.integers(len(whole)))] = int(rng.integers(256))
        path.write_bytes(flipped)
        try:
            pool = Pool.open(tmp_path / "pool")
            keys_of(pool)
            assert pixels_of(pool).shape == (9, 16, 16, 3)
        except PumaError:
            continue


# ---- decoding


@pytest.mark.parametrize("resize", ["cover", "squash"])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_policy_of_a_pool(resize: Any, channels: int) -> None:
    """Left third red, middle third green, right third blue: cover sees the middle, squash all three."""
    pixels = np.zeros((30, 90, 3), dtype=np.uint8)
    for third in range(3):
        pixels[:, 30 * third : 30 * third + 30, third] = 255
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    image = decode_bytes(file.getvalue(), DecodePolicy(15, resize, channels))
    assert image.shape == (15, 15, channels)
    if channels == 3:
        middle = np.zeros((15, 15, 3), dtype=np.uint8)
        if resize == "cover":
            middle[..., 1] = 255
        else:
            for third in range(3):
                middle[:, 5 * third : 5 * third + 5, third] = 255
        np.testing.assert_array_equal(image, middle)


def test_a_large_jpeg_is_decoded_at_a_fraction_and_looks_the_same() -> None:
    ramp = np.linspace(0, 255, 1024).astype(np.uint8)
    pixels = np.stack([np.tile(ramp, (1024, 1)), np.tile(ramp[:, None], (1, 1024)), np.full((1024, 1024), 77)], -1)
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG", quality=95)
    image = decode_bytes(file.getvalue(), DecodePolicy(128)).astype(int)
    whole = np.asarray(Image.fromarray(pixels.astype(np.uint8)).resize((128, 128), Image.Resampling.BOX)).astype(int)
    assert np.abs(image - whole).max() <= 4


def test_a_glance_is_enough_for_whole_pictures_and_never_for_cut_ones() -> None:
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP"):
        content = encode(50, 40, kind, seed=0)

        def read(offset: int, size: int, content: bytes = content) -> bytes:
            assert size >= 0  # a file would refuse it
            return content[offset : offset + size]

        assert check_picture(read, 0, len(content), POLICY) is None
        if kind != "BMP":
            for length in (3, 10, 30, 50, 100, 170, len(content) // 3):  # within a header, too
                assert check_picture(read, 0, length, POLICY) is not None


# ---- workers


def test_a_worker_that_dies_is_told_and_the_next_batch_comes(
    tmp_path: Path, tars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from puma.pools import decode_workers

    monkeypatch.setenv("PUMA_DECODE_WORKERS", "1")
    index_tars(tars, tmp_path / "pool", OPTIONS)
    pool = Pool.open(tmp_path / "pool")
    before = pixels_of(pool)
    workers = decode_workers._workers
    assert workers is not None
    workers.processes[-1].kill()
    workers.processes[-1].wait()
    with pytest.raises(PumaError, match=r"a process that decodes pictures of .* has ended"):
        pixels_of(pool)
    assert np.array_equal(pixels_of(pool), before)


def test_workers_are_small_and_end_with_the_process_that_started_them(tmp_path: Path, tars: Path) -> None:
    index_tars(tars, tmp_path / "pool", OPTIONS)
    code = """
import os, sys, puma
from puma.pools import decode_workers
puma.Pool.open(sys.argv[1]).batch(range(30))
process = decode_workers._workers.processes[0]
modules = open(f"/proc/{process.pid}/maps").read()
print(process.pid, "libtorch" in modules, flush=True)
os.kill(os.getpid(), 9)
"""
    environment = os.environ | {"PUMA_DECODE_WORKERS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "pool")],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    process, torch_is_there = done.stdout.split()
    assert torch_is_there == "False"
    for _ in range(100):
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            return
        if "zombie" in Path(f"/proc/{process}/status").read_text():
            return
        import time

        time.sleep(0.05)
    pytest.fail("the worker is still there")


def test_a_number_of_workers_that_is_none(tmp_path: Path, tars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index_tars(tars, tmp_path / "pool", OPTIONS)
    monkeypatch.setenv("PUMA_DECODE_WORKERS", "many")
    with pytest.raises(PumaError, match="PUMA_DECODE_WORKERS must be a number"):
        pixels_of(Pool.open(tmp_path / "pool"))


def test_a_pool_in_place_goes_through_pickle_and_a_data_loader(tmp_path: Path, tars: Path) -> None:
    from torch.utils.data import DataLoader

    index_tars(tars, tmp_path / "pool", OPTIONS)
    pool = Pool.open(tmp_path / "pool")
    again = pickle.loads(pickle.dumps(pool.subset(pool.labels == 1)))
    assert again.sample_id.tolist() == pool.sample_id[10:20].tolist()
    assert np.array_equal(pixels_of(again), pixels_of(pool)[10:20])
    loader: DataLoader[Any] = DataLoader(pool, batch_size=10, num_workers=2)  # type: ignore[arg-type]
    assert [labels.tolist() for _, labels in loader] == [[0] * 10, [1] * 10, [2] * 10]


def test_sums_of_pools_in_place_and_packed(tmp_path: Path, tars: Path) -> None:
    index_tars(tars, tmp_path / "place", OPTIONS)
    index_tars(tars, tmp_path / "packed", ShardOptions(POLICY, pack=True, origin=1))
    place, packed = Pool.open(tmp_path / "place"), Pool.open(tmp_path / "packed")
    both = place + packed
    assert both.sample_id.tolist() == place.sample_id.tolist() + list(range(30, 60))
    batch = both.batch([0, 30, 59])
    assert batch.sample_id.tolist() == [int(place.sample_id[0]), 30, 59]
    assert np.array_equal(batch.images[0].numpy(), batch.images[1].numpy())
    with pytest.raises(PumaError, match="samples of the same key"):
        _ = (place + place).sample_id
