"""Superclasses of WordNet ids, against trees whose answer is known and the published hundred."""

import tarfile
from collections.abc import Mapping
from importlib.resources import files
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import Run
from puma.errors import PumaError
from puma.pools import Pool
from puma.pools.superclasses import (
    SHIPPED_MAP,
    ClassTree,
    choose_superclasses,
    draw_superclasses,
    extend_tree,
    find_wnid,
    read_class_map,
    read_published_tree,
    read_tree,
    write_class_map,
)

TREE = ClassTree(
    {"a": None, "b": None, "a1": "a", "a2": "a", "a11": "a1", "a12": "a1", "b1": "b"},
    {"a": "animal", "b": "boat", "a1": "bird"},
)
COUNTS = {"a11": 30, "a12": 20, "a2": 40, "b1": 25, "b": 5}


def sizes(tree: ClassTree, counts: Mapping[str, int], classes: int, ratio: float = 5) -> dict[str, int]:
    chosen = choose_superclasses(tree, counts, classes, ratio=ratio)
    return {part.wnid: part.images for part in chosen.classes}


def test_the_most_populous_is_split_first() -> None:
    assert sizes(TREE, COUNTS, 2) == {"a": 90, "b": 30}
    assert sizes(TREE, COUNTS, 3) == {"a1": 50, "a2": 40, "b": 30}
    assert sizes(TREE, COUNTS, 4, ratio=2) == {"a2": 40, "a11": 30, "b": 30, "a12": 20}


def test_a_smaller_ratio_splits_further_and_drops_the_rest() -> None:
    chosen = choose_superclasses(TREE, COUNTS, 2, ratio=1.3)
    assert [(part.wnid, part.images) for part in chosen.classes] == [("a1", 50), ("a2", 40)]
    assert chosen.dropped == 30
    assert chosen.splits == 1


def test_images_of_a_category_that_is_split_stay_together() -> None:
    counts = {**COUNTS, "a": 35}
    chosen = choose_superclasses(TREE, counts, 4)
    own = next(part for part in chosen.classes if part.wnid == "a")
    assert (own.images, own.members, own.name) == (35, ("a",), "animal (other)")


def test_every_image_is_counted_once() -> None:
    chosen = choose_superclasses(TREE, {**COUNTS, "a": 35}, 3)
    for one, other in combinations(chosen.classes, 2):
        assert not set(one.members) & set(other.members)
    assert chosen.images + chosen.dropped == sum(COUNTS.values()) + 35


def test_the_published_tree_gives_the_hundred_classes_of_the_paper(tmp_path: Path) -> None:
    tree, counts = read_published_tree()
    assert (len(counts), sum(counts.values())) == (10_450, 11_060_267)
    chosen = choose_superclasses(tree, counts, 100)
    assert (chosen.splits, chosen.images) == (50, 5_334_310)  # the paper: approximately 5.3 million
    assert chosen.classes[0].images <= 5 * chosen.classes[-1].images
    written = write_class_map(chosen, counts, tmp_path / "map.csv").read_bytes()
    assert written == files("puma.pools").joinpath("imagenet21k_100.csv").read_bytes()


def test_the_shipped_map_names_a_hundred_classes() -> None:
    shipped = read_class_map(SHIPPED_MAP)
    assert (len(set(shipped.class_names)), len(shipped.labels)) == (100, 4_948)
    assert shipped.class_names[shipped.labels["n02088364"]] == "hunting dog"  # beagle


def test_ids_outside_the_processed_release_hang_below_their_nearest_ancestor() -> None:
    tree, homeless = extend_tree(["n00006024", "n02084071", "n04399382", "n01314663"])
    assert tree.list_ancestors("n02084071")[-1] == "n00015388"
    assert homeless == ["n00006024", "n04399382"]
    assert tree.parents["n04399382"] is None


@pytest.mark.parametrize(
    ("parents", "words"),
    [({"a": "b", "b": "c", "c": "a"}, "runs in a circle"), ({"a": "x"}, "does not hold")],
)
def test_a_tree_that_is_none_is_refused(parents: dict[str, str | None], words: str) -> None:
    with pytest.raises(PumaError, match=words):
        ClassTree(parents, {})


@pytest.mark.parametrize(
    ("counts", "classes", "ratio", "words"),
    [
        (COUNTS, 6, 5, "5 ids with images"),
        ({"a11": 100, "b1": 1}, 2, 5, "cannot be split"),
        (COUNTS, 1, 5, "at least 2 classes"),
        (COUNTS, 2, 0.5, "ratio of at least 1"),
        ({"zebra": 3}, 2, 5, "does not hold zebra"),
    ],
)
def test_what_cannot_be_reached_is_said(counts: dict[str, int], classes: int, ratio: float, words: str) -> None:
    with pytest.raises(PumaError, match=words):
        choose_superclasses(TREE, counts, classes, ratio=ratio)


def test_maps_and_trees_survive_the_way_through_a_file(tmp_path: Path) -> None:
    table = tmp_path / "tree.csv"
    table.write_text(
        "wnid,parent,name\n" + "".join(f"{k},{v or ''},{TREE.name_of(k)}\n" for k, v in TREE.parents.items())
    )
    assert read_tree(table).parents == TREE.parents
    chosen = choose_superclasses(TREE, COUNTS, 3)
    back = read_class_map(write_class_map(chosen, COUNTS, tmp_path / "map.csv"))
    assert back.class_names == tuple(part.name for part in chosen.classes)
    assert {wnid: chosen.classes[label].wnid for wnid, label in back.labels.items()} == {
        wnid: part.wnid for wnid, part in chosen.to_mapping().items()
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"wnid,parent\na,\na,\n", "holds a twice"),
        (b"id,parent\na,\n", "no 'wnid' there"),
        (b"wnid,parent\na\n", "line 2 has another number of cells"),
        (b"wnid,parent\n\xff,\n", "UTF-8"),
        (b'wnid,parent\n"a,\n', "is not a class tree"),
    ],
)
def test_a_damaged_tree_is_one_sentence(tmp_path: Path, text: bytes, words: str) -> None:
    (tmp_path / "tree.csv").write_bytes(text)
    with pytest.raises(PumaError, match=words):
        read_tree(tmp_path / "tree.csv")


def test_an_id_in_two_classes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "map.csv").write_text("wnid,class,class_name\nn1,c1,one\nn1,c2,two\n")
    with pytest.raises(PumaError, match="into two classes"):
        read_class_map(tmp_path / "map.csv")


@pytest.mark.parametrize(
    ("name", "wnid"),
    [("n01440764.tar", "n01440764"), ("n01440764", "n01440764"), ("n0144076", None), ("n01440764x", None), ("a", None)],
)
def test_files_are_known_by_their_id(name: str, wnid: str | None) -> None:
    assert find_wnid(name) == wnid


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    draw_superclasses(choose_superclasses(TREE, COUNTS, 3), TREE, tmp_path / "tree.png")
    assert (tmp_path / "tree.png").read_bytes().startswith(b"\x89PNG")
    with Image.open(tmp_path / "tree.png") as picture:
        assert (np.asarray(picture.convert("L"))[:, :2] == 255).all()  # no name is cut at the left


def test_the_command_makes_the_shipped_table_again(puma: Run, tmp_path: Path) -> None:
    out = tmp_path / "map.csv"
    code, said, _ = puma("data", "superclasses", "--out", str(out))
    assert code == 0
    assert "5,334,310 images after 50 splits" in said
    assert out.read_bytes() == files("puma.pools").joinpath("imagenet21k_100.csv").read_bytes()


def test_the_command_counts_a_folder_of_tars_or_folders(puma: Run, tmp_path: Path) -> None:
    for wnid, images in {"n02085620": 3, "n02123045": 2, "n04399382": 4}.items():  # Chihuahua, tabby, one unknown
        (tmp_path / "data" / wnid).mkdir(parents=True)
        for number in range(images):
            (tmp_path / "data" / wnid / f"{number}.JPEG").write_bytes(b"not looked at")
    with tarfile.open(tmp_path / "data" / "n02085620.tar", "w") as tar:
        tar.add(tmp_path / "data" / "n02085620", "n02085620")
    for file in (tmp_path / "data" / "n02085620").iterdir():
        file.unlink()
    (tmp_path / "data" / "n02085620").rmdir()
    code, said, _ = puma("data", "superclasses", "--source", str(tmp_path / "data"), "--classes", "2")
    assert code == 0
    assert "2 classes of 3 ids and 9 images" in said
    assert "n04399382" in said


def write_tars(folder: Path, counts: Mapping[str, int]) -> Path:
    folder.mkdir()
    for wnid, images in counts.items():
        with tarfile.open(folder / f"{wnid}.tar", "w") as tar:
            for number in range(images):
                picture = folder / f"{wnid}_{number}.JPEG"
                Image.new("RGB", (12, 10), (int(wnid[-3:]) % 256, number, 7)).save(picture, "JPEG")
                tar.add(picture, picture.name)
                picture.unlink()
    return folder


DOGS_AND_CATS = {"n02085620": 9, "n02085782": 6, "n02123045": 8, "n02123159": 7, "n04399382": 2}


def test_pools_of_superclasses_are_made_in_place(puma: Run, tmp_path: Path) -> None:
    source = write_tars(tmp_path / "tars", DOGS_AND_CATS)
    words = ["--classes", "2", "--size", "8", "--test-per-id", "2", "--out", str(tmp_path / "pool")]
    code, said, err = puma("data", "import", "imagenet21k", str(source), *words)
    assert code == 0, err
    assert "classes by the 32 pictures of 5 ids here; 1 not in the tree stand alone: n04399382" in said
    train, test = (Pool.open(tmp_path / "pool" / part) for part in ("train", "test"))
    assert train.class_names == test.class_names == ("dog", "domestic cat")
    assert np.bincount(train.labels).tolist() == [9 + 6 - 4, 8 + 7 - 4]
    assert np.bincount(test.labels).tolist() == [4, 4]
    assert not set(train.sample_id.tolist()) & set(test.sample_id.tolist())
    again = ["--classes", "2", "--size", "8", "--test-per-id", "2", "--out", str(tmp_path / "again")]
    (source / "n02085620.tar").rename(source / "n02085620.tmp")  # another order of the files on the disk
    (source / "n02085620.tmp").rename(source / "n02085620.tar")
    assert puma("data", "import", "imagenet21k", str(source), *again)[0] == 0
    assert Pool.open(tmp_path / "again" / "test").fingerprint == test.fingerprint
    code, _, err = puma("data", "import", "imagenet21k", str(source), *words)
    assert (code, "exists already" in err) == (2, True)


def test_published_counts_give_the_hundred_classes(puma: Run, tmp_path: Path) -> None:
    source = write_tars(tmp_path / "tars", {"n02088364": 4, "n02119022": 3, "n07747607": 5})  # beagle, red fox, orange
    words = ["--counts", "published", "--size", "8", "--test-per-id", "0", "--out", str(tmp_path / "pool")]
    code, said, err = puma("data", "import", "imagenet21k", str(source), *words)
    assert (code, "no image of class" in err) == (2, True)
    assert "5,334,310 images" in said
    assert not (tmp_path / "pool" / "train").exists()
    assert puma("data", "import", "imagenet21k", str(source), *words, "--allow-empty-class")[0] == 0
    pool = Pool.open(tmp_path / "pool" / "train")
    assert pool.num_classes == 100
    assert sorted(pool.class_names[label] for label in set(pool.labels.tolist())) == [
        "carnivore",
        "edible fruit",
        "hunting dog",
    ]
