"""What people import first: the wrong door is named with the right one, and nothing is counted as what it is not."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import Run
from puma import Pool

GREYS = np.random.default_rng(0).integers(256, size=(6, 9, 9)).astype(np.uint8)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for part in ("train", "test"):
        for row, pixels in enumerate(GREYS):
            folder = Path("pictures", part, "ab"[row % 2])
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{row}.png")
    np.savez("mine.npz", image=GREYS, label=np.arange(6) % 2)
    return tmp_path


def test_grey_arrays_need_no_channel(place: Path, puma: Run) -> None:
    assert puma("data", "import", "npz", "mine.npz", "--out", "pool", "--origin", "real")[0] == 0
    assert np.array_equal(Pool.open("pool").batch(range(6)).images[:, 0].numpy(), GREYS)


def test_an_import_says_what_its_images_count_as(place: Path, puma: Run) -> None:
    _, said, _ = puma("data", "import", "npz", "mine.npz", "--out", "generated")
    assert "6 generated images" in said
    assert "--origin real" in said
    _, said, _ = puma("data", "import", "npz", "mine.npz", "--out", "real", "--origin", "real")
    assert "6 real images" in said
    assert "--origin" not in said


def test_grey_pictures_are_told(place: Path, puma: Run) -> None:
    folder = ("data", "import", "folder", "pictures/train", "--size", "9")
    assert "--channels 1" in puma(*folder, "--out", "colour")[1]
    assert "--channels" not in puma(*folder, "--channels", "1", "--out", "grey")[1]
    assert Pool.open("grey").image_shape == (9, 9, 1)


def test_parts_are_no_classes(place: Path, puma: Run) -> None:
    code, _, told = puma("data", "import", "folder", "pictures", "--size", "9", "--out", "pool")
    assert code == 2
    assert "not classes; import pictures/test and pictures/train each." in told
    assert puma("data", "import", "folder", "pictures/train", "--size", "9", "--out", "pool")[0] == 0


def test_the_right_door_is_named(place: Path, puma: Run) -> None:
    wrong = ("data", "import", "folder", "mine.npz", "--size", "9", "--out", "pool")
    assert "puma data import npz mine.npz" in puma(*wrong)[2]
    assert "puma data import folder pictures" in puma("data", "import", "npz", "pictures", "--out", "pool")[2]
    puma("data", "import", "npz", "mine.npz", "--out", "pool")
    assert "give its folder, pool." in puma("data", "show", "pool/pool.json")[2]
    assert "picture: pool.png" in puma("data", "show", "pool")[1]
