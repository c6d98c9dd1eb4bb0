"""What an error tells the user to do is done here, as told, and succeeds."""

import io
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from conftest import Run
from puma import Pool, PumaError

IMAGES = np.random.default_rng(0).integers(256, size=(12, 6, 5, 3)).astype(np.uint8)
LABELS = np.arange(12) % 3
MEAN, STD = 0.5, 0.25


def follow(sentence: str, images: Any, labels: Any) -> tuple[Any, Any]:
    """Evaluate what stands behind ``convert with``, ``give`` or ``undo it with``, as a user would type it."""
    found = re.search(
        r"(?:convert with|give|undo it with|label=) ?(.+?)(?:, and normalise .*|, or give .*)?[.]\n*$", sentence
    )
    assert found, sentence
    values = {"images": images, "labels": labels, "np": np, "mean": MEAN, "std": STD}
    result = eval(found[1], {}, values)
    return (result, labels) if "images" in found[1] else (images, result)


@pytest.mark.parametrize(
    "images",
    [
        IMAGES / 255,
        IMAGES.astype(np.float32),
        ((IMAGES / 255 - MEAN) / STD).astype(np.float32),
        IMAGES.astype(np.int64),
        IMAGES.transpose(0, 3, 1, 2),
        IMAGES.transpose(0, 3, 1, 2) / 255,
        np.concatenate([IMAGES, IMAGES[..., :1]], axis=3),
    ],
    ids=["floats", "floats to 255", "normalised", "int64", "NCHW", "NCHW floats", "transparency"],
)
def test_images_as_people_have_them(images: Any, puma: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("mine.npz", image=images, label=LABELS)
    code, _, told = puma("data", "import", "npz", "mine.npz", "--out", "pool")
    assert (code, "fetch it again" in told) == (2, False)
    converted, _ = follow(told, images, LABELS)
    np.savez("mine.npz", image=converted, label=LABELS)
    assert puma("data", "import", "npz", "mine.npz", "--out", "pool")[0] == 0
    assert np.array_equal(Pool.open("pool").batch(np.arange(12)).images.permute(0, 2, 3, 1).numpy(), IMAGES)


@pytest.mark.parametrize(
    "labels",
    [LABELS + 1, LABELS.astype(np.float32), np.eye(3)[LABELS], LABELS[:, None]],
    ids=["from 1", "floats", "one-hot", "a column"],
)
@pytest.mark.parametrize("names", [[], ["--class-names", "a", "b", "c"]], ids=["numbers", "names"])
def test_labels_as_people_have_them(
    labels: Any, names: list[str], puma: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("mine.npz", image=IMAGES, label=labels)
    code, _, told = puma("data", "import", "npz", "mine.npz", "--out", "pool", *names)
    assert (code, "fetch it again" in told) == (2, False)
    _, converted = follow(told, IMAGES, labels)
    np.savez("mine.npz", image=IMAGES, label=converted)
    assert puma("data", "import", "npz", "mine.npz", "--out", "pool", *names)[0] == 0
    assert np.array_equal(Pool.open("pool").labels, LABELS)


def test_names_as_labels(puma: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    labels = np.array(["cat", "ape", "bee"])[LABELS]
    np.savez("mine.npz", image=IMAGES, label=labels)
    _, _, told = puma("data", "import", "npz", "mine.npz", "--out", "pool")
    assert "names, labels = np.unique(labels, return_inverse=True)" in told
    names, labels = np.unique(labels, return_inverse=True)
    np.savez("mine.npz", image=IMAGES, label=labels)
    assert puma("data", "import", "npz", "mine.npz", "--out", "pool", "--class-names", *names)[0] == 0
    assert Pool.open("pool").class_names == ("ape", "bee", "cat")


def test_arrays_of_other_names(puma: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("mine.npz", y=LABELS, x=IMAGES)
    _, _, told = puma("data", "import", "npz", "mine.npz", "--out", "pool")
    flags = shlex.split(told.strip().rstrip(".").rpartition(": ")[2])
    assert flags == ["--image-key", "x", "--label-key", "y"]
    assert puma("data", "import", "npz", "mine.npz", "--out", "pool", *flags)[0] == 0


def test_an_npy_given_as_npz(puma: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("mine.npy", IMAGES)
    _, _, told = puma("data", "import", "npz", "mine.npy", "--out", "pool")
    exec(told[told.index("np.savez") :].rstrip(".\n"), {"np": np, "labels": LABELS})
    assert puma("data", "import", "npz", "both.npz", "--out", "pool")[0] == 0
    assert len(Pool.open("pool")) == 12


def test_a_parquet_file_given_as_npz(puma: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = []
    for pixels in IMAGES:
        Image.fromarray(pixels).save(held := io.BytesIO(), format="png")
        files.append(held.getvalue())
    pq.write_table(pa.table({"image": files, "label": LABELS}), "mine.parquet")
    _, _, told = puma("data", "import", "npz", "mine.parquet", "--out", "pool")
    command = told[told.index("puma data import parquet") :].rstrip(".\n").replace("PIXELS", "5")
    assert puma(*shlex.split(command)[1:], "--out", "pool")[0] == 0
    assert len(Pool.open("pool")) == 12


def test_a_file_of_torch_given_as_npz(puma: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    images, labels = torch.from_numpy(IMAGES), torch.from_numpy(LABELS)
    torch.save({"images": images, "labels": labels}, "mine.pt")
    _, _, told = puma("data", "import", "npz", "mine.pt", "--out", "pool")
    assert 'puma.Pool.from_tensors(images, labels).save("pool")' in told
    Pool.from_tensors(images, labels).save("pool")
    assert puma("data", "show", "pool")[0] == 0


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        ((IMAGES / 255 - MEAN) / STD, LABELS),
        (IMAGES.astype(np.float32), LABELS),
        (IMAGES.astype(np.int64), LABELS),
        (torch.from_numpy(IMAGES.astype(np.float32)), torch.from_numpy(LABELS)),
        (IMAGES, LABELS + 1),
        (IMAGES, np.eye(3)[LABELS]),
        (IMAGES, LABELS.astype(float)),
        (torch.from_numpy(IMAGES), torch.from_numpy(LABELS).float()),
    ],
)
def test_tensors_as_people_have_them(images: Any, labels: Any) -> None:
    make: Callable[[Any, Any], Pool] = Pool.from_tensors
    with pytest.raises(PumaError) as told:
        make(images, labels)
    sentence = re.sub(r", or (uint8|images\.to\(torch\.uint8\))", "", str(told.value))
    pool = make(*follow(sentence, images, labels))
    assert np.array_equal(pool.batch(np.arange(12)).images.permute(0, 2, 3, 1).numpy(), IMAGES)
    assert np.array_equal(pool.labels, LABELS)


def test_names_as_labels_of_tensors() -> None:
    labels: Any = np.array(["cat", "ape", "bee"])[LABELS]
    with pytest.raises(
        PumaError, match=r"give np.unique\(labels, return_inverse=True\)\[1\], and class_names=np.unique"
    ):
        Pool.from_tensors(IMAGES, labels)
    pool = Pool.from_tensors(
        IMAGES, np.unique(labels, return_inverse=True)[1], class_names=[str(name) for name in np.unique(labels)]
    )
    assert pool.class_names == ("ape", "bee", "cat")
