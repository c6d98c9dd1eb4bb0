import gzip
import io
import pickle
import shutil
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from puma.errors import PumaError
from puma.pools import Pool
from puma.pools.datasets import (
    CIFAR10,
    CIFAR100,
    MNIST_CLASSES,
    CifarLayout,
    average_pixels,
    read_cifar,
    read_digits,
    read_mnist,
)
from puma.pools.npz import read_npz
from puma.pools.pictures import list_pictures, write_picture_folder
from puma.pools.writer import write_parts

RNG = np.random.default_rng(0)


def images_of(pool: Pool) -> NDArray[np.uint8]:
    found: NDArray[np.uint8] = pool.batch(range(len(pool))).images.permute(0, 2, 3, 1).numpy()
    return found


# ---- digits


def test_digits_are_all_there_and_split_within_classes(tmp_path: Path) -> None:
    write_parts(read_digits(), tmp_path / "digits")
    train, test = Pool.open(tmp_path / "digits/train"), Pool.open(tmp_path / "digits/test")
    assert len(train) + len(test) == 1797
    assert train.image_shape == (8, 8, 1)
    share = np.bincount(test.labels) / (np.bincount(test.labels) + np.bincount(train.labels))
    assert ((share > 0.19) & (share < 0.22)).all()
    from sklearn.datasets import load_digits

    pixels = np.concatenate([images_of(train), images_of(test)]).squeeze(-1)
    expected = np.rint(load_digits().images * 255 / 16)
    assert sorted(image.tobytes() for image in pixels) == sorted(image.tobytes() for image in expected.astype(np.uint8))
    assert pixels.max() == 255


# ---- CIFAR


def cifar_content(layout: CifarLayout, per_file: int = 200) -> dict[str, tuple[NDArray[np.uint8], list[int]]]:
    """Random pixels (n, 3, 32, 32) and labels for every file of a layout."""
    classes = len(layout.class_names)
    return {
        name: (RNG.integers(256, size=(per_file, 3, 32, 32)).astype(np.uint8), [i % classes for i in range(per_file)])
        for name in (*layout.train, *layout.test)
    }


def write_binary(folder: Path, layout: CifarLayout) -> dict[str, Any]:
    content = cifar_content(layout)
    folder.mkdir(parents=True)
    for name, (pixels, labels) in content.items():
        fine = np.array(labels, dtype=np.uint8)[:, None]
        before = [fine] if layout.label_bytes == 1 else [fine // 5, fine]
        np.concatenate([*before, pixels.reshape(len(labels), -1)], axis=1).tofile(folder / f"{name}.bin")
    return content


def python2_pickle(pixels: NDArray[np.uint8], labels: list[int], key: str) -> bytes:
    """The official files were pickled by Python 2 with the numpy of its day; protocol 2 by hand looks the same."""
    content = pixels.reshape(len(labels), -1)
    dumped = pickle.dumps({b"batch_label": b"x", key.encode(): labels, b"data": content}, protocol=2)
    return dumped.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def write_python(folder: Path, layout: CifarLayout) -> dict[str, Any]:
    content = cifar_content(layout)
    folder.mkdir(parents=True)
    for name, (pixels, labels) in content.items():
        (folder / name).write_bytes(python2_pickle(pixels, labels, layout.label_key))
    return content


@pytest.mark.parametrize("layout", [CIFAR10, CIFAR100], ids=["cifar10", "cifar100"])
@pytest.mark.parametrize("write", [write_binary, write_python])
@pytest.mark.parametrize("archive", [False, True])
def test_cifar_layouts(tmp_path: Path, layout: CifarLayout, write: Any, archive: bool) -> None:
    content = write(tmp_path / "source" / "inner", layout)
    source = tmp_path / "source"
    if archive:
        with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as tar:
            tar.add(source / "inner", "cifar-batches")
        source = tmp_path / "cifar.tar.gz"
    write_parts(read_cifar(source, layout), tmp_path / "out")
    for part, files in (("train", layout.train), ("test", layout.test)):
        pool = Pool.open(tmp_path / "out" / part)
        pixels = np.concatenate([content[name][0] for name in files]).transpose(0, 2, 3, 1)
        assert np.array_equal(images_of(pool), pixels)
        assert pool.labels.tolist() == [label for name in files for label in content[name][1]]
        assert pool.class_names == layout.class_names


def test_cifar_class_names() -> None:
    assert len(set(CIFAR10.class_names)) == 10
    assert len(set(CIFAR100.class_names)) == 100
    assert list(CIFAR100.class_names) == sorted(CIFAR100.class_names)


class Spy:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.touch, (self.trace,)


def test_a_hostile_pickle_is_refused_and_never_run(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    write_python(folder, CIFAR10)
    trace = tmp_path / "trace"
    ragged = {b"data": np.zeros((2, 3072), dtype=np.uint8), b"labels": [1, [2]]}
    for evil in (ragged, Spy(trace), {b"data": Spy(trace)}, np.array([Spy(trace)], dtype=object), 3):
        (folder / "data_batch_1").write_bytes(pickle.dumps(evil, protocol=2))
        with pytest.raises(PumaError, match=r"data_batch_1 is not a CIFAR batch"):
            write_parts(read_cifar(folder, CIFAR10), tmp_path / "out")
    assert not trace.exists()
    assert not (tmp_path / "out").exists()


def test_cifar_sources_that_are_not_whole(tmp_path: Path) -> None:
    with pytest.raises(PumaError, match="no such folder or archive"):
        read_cifar(tmp_path / "absent", CIFAR10)
    folder = tmp_path / "source"
    write_binary(folder, CIFAR10)
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as tar:
        tar.add(folder, "cifar")
    whole = (tmp_path / "cifar.tar.gz").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PumaError, match="is not a whole tar archive"):
        read_cifar(tmp_path / "cut.tar.gz", CIFAR10)
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(PumaError, match="is not a whole tar archive"):
        read_cifar(tmp_path / "text", CIFAR10)
    (folder / "data_batch_3.bin").write_bytes((folder / "data_batch_3.bin").read_bytes()[:-1])
    with pytest.raises(PumaError, match=r"data_batch_3.bin is cut short"):
        write_parts(read_cifar(folder, CIFAR10), tmp_path / "out")
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(PumaError, match=r"lacks data_batch_3.bin of the official"):
        read_cifar(folder, CIFAR10)


# ---- idx


def write_idx(folder: Path) -> dict[str, NDArray[np.uint8]]:
    folder.mkdir()
    arrays = {}
    for name, count in (("train", 40), ("t10k", 20)):
        arrays[name] = RNG.integers(256, size=(count, 28, 28)).astype(np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        header = struct.pack(">4I", 0x803, count, 28, 28)
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + arrays[name].tobytes()))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, count) + labels.tobytes())
    return arrays


def test_idx_files_gzipped_or_not(tmp_path: Path) -> None:
    arrays = write_idx(tmp_path / "mnist")
    write_parts(read_mnist(tmp_path / "mnist", MNIST_CLASSES), tmp_path / "out")
    assert np.array_equal(images_of(Pool.open(tmp_path / "out/test")).squeeze(-1), arrays["t10k"])
    write_parts(read_mnist(tmp_path / "mnist", MNIST_CLASSES, pool=2), tmp_path / "half")
    half = images_of(Pool.open(tmp_path / "half/train")).squeeze(-1)
    assert half.shape == (40, 14, 14)
    assert half[3, 1, 2] == np.rint(arrays["train"][3, 2:4, 4:6].astype(np.float32).mean())


def test_idx_files_that_are_not_whole(tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    write_idx(folder)
    path = folder / "t10k-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    for content, sentence in (
        (whole[:-20], "is damaged or cut short"),
        (gzip.compress(gzip.decompress(whole)[:-5]), "should hold 15680 bytes"),
        (gzip.compress(gzip.decompress(whole) + b"x"), "it holds more"),
        (gzip.compress(struct.pack(">4I", 0x803, 2**31, 2**31, 4)), "should hold"),
        (gzip.compress(struct.pack(">4I", 0x801, 20, 28, 28)), "is not an idx file of bytes in 3 dimensions"),
        (b"no gzip", "is damaged or cut short"),
        (b"", "is damaged or cut short"),
    ):
        path.write_bytes(content)
        with pytest.raises(PumaError, match=sentence):
            write_parts(read_mnist(folder, MNIST_CLASSES), tmp_path / "out")
        assert not (tmp_path / "out").exists()
    path.unlink()
    with pytest.raises(PumaError, match=r"lacks t10k-images-idx3-ubyte.gz"):
        read_mnist(folder, MNIST_CLASSES)
    with pytest.raises(PumaError, match="--pool must divide the image size 28 x 28, got 3"):
        average_pixels(np.zeros((1, 28, 28), dtype=np.uint8), 3)


# ---- npz


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_is_streamed_whole(tmp_path: Path, save: Any) -> None:
    images = RNG.integers(256, size=(7000, 32, 32, 3)).astype(np.uint8)  # more than one chunk
    labels = RNG.integers(10, size=7000)
    save(tmp_path / "x.npz", image=images, label=labels)
    write_parts({"": read_npz(tmp_path / "x.npz", origin=1, class_names=None)}, tmp_path / "out")
    pool = Pool.open(tmp_path / "out")
    assert np.array_equal(images_of(pool), images)
    assert np.array_equal(pool.labels, labels)
    assert pool.origin.tolist() == [1] * 7000
    assert pool.class_names == tuple("0123456789")


def test_npz_that_cannot_be_used(tmp_path: Path) -> None:
    images, labels = np.zeros((6, 4, 4, 3), dtype=np.uint8), np.array([0, 1, 2, 0, 1, 2])
    path = tmp_path / "x.npz"

    def expect(sentence: str, class_names: tuple[str, ...] | None = None, **arrays: Any) -> None:
        if arrays:
            np.savez(path, **arrays)
        with pytest.raises(PumaError, match=sentence):
            write_parts({"": read_npz(path, origin=1, class_names=class_names)}, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    expect("no such file")
    expect("has no array 'image', only images, label; see --image-key", images=images, label=labels)
    expect("has 5 labels for 6 images", image=images, label=labels[:5])
    expect("images must be uint8", image=images / 255, label=labels)
    expect("NaN among them", image=np.full((6, 4, 4, 3), np.nan), label=labels)
    expect("labels must be integers", image=images, label=labels.astype(float))
    expect(r"labels must be integers of shape \(n,\)", image=images, label=np.eye(3, dtype=int)[labels])
    expect(r"labels must lie in 0..1, got 0..2", ("a", "b"), image=images, label=labels)
    expect("no image of class 1", image=images, label=labels * 2)
    expect("1 or 3 channels", image=images.transpose(0, 3, 1, 2), label=labels)
    expect("holds Python objects", image=images, label=np.array([None] * 6))
    expect("Fortran order", image=np.asfortranarray(images), label=labels)
    expect("holds no images", image=images[:0], label=labels[:0])
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("image", b"x")
    expect("has no array 'image', only nothing")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("image.npy", bytes(5000))
        archive.writestr("label.npy", bytes(5000))
    path.write_bytes(path.read_bytes().replace(b"\x5d\x00\x00", b"\xff\xff\xff", 1))
    expect("is packed in a way numpy does not use")
    np.savez(path, image=images, label=labels)
    whole = path.read_bytes()
    path.write_bytes(whole[:-200])
    expect("is not a whole .npz file")
    broken = bytearray(whole)
    broken[whole.index(b"NUMPY") + 150] ^= 255  # a pixel: the checksum notices
    path.write_bytes(broken)
    expect("is not a whole .npz file")


# ---- folder


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    root = tmp_path / "pictures"
    for name, colour in (("ant", (250, 0, 0)), ("bee", (0, 0, 250))):
        (root / name / "deep").mkdir(parents=True)
        for index, (width, height) in enumerate([(40, 40), (60, 40), (40, 90)]):
            Image.new("RGB", (width, height), colour).save(root / name / f"{index}.png")
        Image.new("RGB", (64, 64), colour).save(root / name / "deep" / "x.JPG")
        (root / name / "notes.txt").write_text("not a picture")
    return root


@pytest.mark.parametrize("keep_files", [False, True])
def test_folder_packed_or_kept_as_files(tmp_path: Path, pictures: Path, keep_files: bool) -> None:
    write_picture_folder(list_pictures(pictures, 16, 3), tmp_path / "out", keep_files=keep_files)
    pool = Pool.open(tmp_path / "out")
    assert pool.class_names == ("ant", "bee")
    assert pool.labels.tolist() == [0] * 4 + [1] * 4
    assert pool.image_shape == (16, 16, 3)
    batch = pool.batch([0, 7, 3])
    assert batch.images.shape == (3, 3, 16, 16)
    assert batch.images[0].float().mean(dim=(1, 2)).tolist() == pytest.approx([250, 0, 0], abs=3)
    assert batch.images[1].float().mean(dim=(1, 2)).tolist() == pytest.approx([0, 0, 250], abs=3)
    assert (tmp_path / "out/images.npy").exists() != keep_files
    pool.stores[0].verify()


def test_both_kinds_of_folder_pools_hold_the_same_pixels(tmp_path: Path, pictures: Path) -> None:
    noise = RNG.integers(256, size=(50, 70, 3)).astype(np.uint8)
    Image.fromarray(noise).save(pictures / "ant" / "noise.png")
    pools = []
    for name, keep_files in (("packed", False), ("files", True)):
        write_picture_folder(list_pictures(pictures, 10, 3), tmp_path / name, keep_files=keep_files)
        pools.append(Pool.open(tmp_path / name))
    assert np.array_equal(images_of(pools[0]), images_of(pools[1]))
    assert pools[0].fingerprint == pools[1].fingerprint
    middle = noise[:, 10:60].reshape(10, 5, 10, 5, 3).mean(axis=(1, 3))  # the middle square, averaged 5 to 1
    assert np.abs(images_of(pools[0])[4] - middle).max() <= 1  # fifth in the order of names


@pytest.mark.parametrize("keep_files", [False, True])
def test_broken_pictures_are_named_counted_and_left_out(tmp_path: Path, pictures: Path, keep_files: bool) -> None:
    whole = (pictures / "ant/deep/x.JPG").read_bytes()
    (pictures / "ant/deep/x.JPG").write_bytes(whole[: len(whole) // 2])
    (pictures / "bee/0.png").write_text("not a picture")
    listed = list_pictures(pictures, 16, 3)
    write_picture_folder(listed, tmp_path / "out", keep_files=keep_files)
    assert [line.split(" ")[0] for line in listed.broken] == ["ant/deep/x.JPG", "bee/0.png"]
    assert (tmp_path / "out/broken.txt").read_text().count("\n") == 2
    assert Pool.open(tmp_path / "out").labels.tolist() == [0] * 3 + [1] * 3
    with pytest.raises(PumaError, match=r"broken picture ant/deep/x.JPG .*leave out --strict"):
        write_picture_folder(list_pictures(pictures, 16, 3), tmp_path / "two", keep_files=keep_files, strict=True)
    assert not (tmp_path / "two").exists()


def test_sixteen_bits_keep_the_upper_eight_and_unknown_ranges_are_refused(tmp_path: Path, pictures: Path) -> None:
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    Image.fromarray(ramp).save(pictures / "ant" / "3.png")
    Image.fromarray(np.full((16, 16), 0.5, dtype=np.float32)).save(pictures / "bee" / "float.tif")
    listed = list_pictures(pictures, 16, 1)
    write_picture_folder(listed, tmp_path / "out")
    assert np.array_equal(images_of(Pool.open(tmp_path / "out"))[3].squeeze(-1), ramp >> 8)
    assert len(listed.broken) == 1
    assert "bee/float.tif (32 bits a pixel" in listed.broken[0]


def test_folders_that_cannot_be_used(tmp_path: Path, pictures: Path) -> None:
    with pytest.raises(PumaError, match="no such folder"):
        list_pictures(tmp_path / "absent", 16, 3)
    with pytest.raises(PumaError, match="has no sub-folders"):
        list_pictures(pictures / "ant" / "deep", 16, 3)
    with pytest.raises(PumaError, match="--size must be positive"):
        list_pictures(pictures, 0, 3)
    (pictures / "cat").mkdir()
    with pytest.raises(PumaError, match="no image of class cat"):
        write_picture_folder(list_pictures(pictures, 16, 3), tmp_path / "out")
    write_picture_folder(list_pictures(pictures, 16, 1), tmp_path / "grey", allow_empty_class=True)
    assert Pool.open(tmp_path / "grey").num_classes == 3
    for path in pictures.rglob("*.*"):
        path.write_text("broken")
    with pytest.raises(PumaError, match=r"every picture in .* is broken"):
        write_picture_folder(list_pictures(pictures, 16, 3), tmp_path / "out")
    shutil.rmtree(pictures / "ant")
    shutil.rmtree(pictures / "bee")
    with pytest.raises(PumaError, match="holds no pictures"):
        list_pictures(pictures, 16, 3)


def test_a_picture_that_breaks_later_is_named(tmp_path: Path, pictures: Path) -> None:
    write_picture_folder(list_pictures(pictures, 16, 3), tmp_path / "out", keep_files=True)
    (pictures / "bee/1.png").unlink()
    with pytest.raises(PumaError, match=r"bee/1.png cannot be read"):
        Pool.open(tmp_path / "out").batch([5])


def test_a_pool_cannot_point_outside_its_folder(tmp_path: Path, pictures: Path) -> None:
    write_picture_folder(list_pictures(pictures, 16, 3), tmp_path / "out", keep_files=True)
    names = bytearray((tmp_path / "out/files.txt").read_bytes())
    names[:9] = b"../x//y/z"
    (tmp_path / "out/files.txt").write_bytes(names)
    with pytest.raises(PumaError, match="outside its folder"):
        Pool.open(tmp_path / "out").batch([0])


def test_python2_pickles_look_like_the_official_ones() -> None:
    dumped = python2_pickle(np.zeros((1, 3072), dtype=np.uint8), [1], "labels")
    assert b"numpy.core.multiarray" in dumped
    assert io.BytesIO(dumped).read(2) == b"\x80\x02"
