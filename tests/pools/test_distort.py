from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from conftest import MakePool, Run
from puma.errors import PumaError
from puma.pools import Origin, Pool
from puma.pools.distort import distort_images, distort_pool, find_affine_places, sample_pixels, smooth_fields
from puma.pools.writer import PoolPart

RNG = np.random.default_rng(0)
STILL = {"rotation": 0.0, "scale": 0.0, "shear": 0.0, "shift": 0.0, "elastic": 0.0}


def random_images(*shape: int) -> NDArray[np.uint8]:
    return RNG.integers(256, size=shape).astype(np.uint8)


def moved(
    images: NDArray[np.uint8],
    *,
    degrees: float = 0.0,
    scale: tuple[float, float] = (1.0, 1.0),
    shear: float = 0.0,
    shift: tuple[float, float] = (0.0, 0.0),
) -> NDArray[np.uint8]:
    """The same affine map for every image."""
    count, height, width, _ = images.shape
    rows, columns = find_affine_places(
        (height, width),
        degrees=np.full(count, degrees),
        scale=np.tile(scale, (count, 1)),
        shear=np.full(count, shear),
        shift=np.tile(shift, (count, 1)),
    )
    return sample_pixels(images, rows, columns)


@pytest.mark.parametrize("shape", [(3, 8, 8, 1), (2, 5, 9, 3), (1, 1, 1, 1), (0, 4, 4, 1)])
def test_no_strength_is_the_identity(shape: tuple[int, ...]) -> None:
    images = random_images(*shape)
    assert np.array_equal(distort_images(images, rng=np.random.default_rng(0), **STILL), images)


@pytest.mark.parametrize(("down", "right"), [(0, 1), (2, 0), (-1, 3), (-7, -7), (8, 0), (50, 0)])
def test_a_shift_by_whole_pixels_moves_them_and_lets_black_in(down: int, right: int) -> None:
    images = random_images(4, 8, 8, 3)
    wide = np.zeros((4, 8 + 2 * 50, 8 + 2 * 50, 3), dtype=np.uint8)
    wide[:, 50:58, 50:58] = images
    expected = np.roll(wide, (down, right), axis=(1, 2))[:, 50:58, 50:58]
    assert np.array_equal(moved(images, shift=(down, right)), expected)


@pytest.mark.parametrize("size", [7, 8])
def test_quarter_turns_are_rot90(size: int) -> None:
    images = random_images(3, size, size, 1)
    for turns in (-1, 1, 2, 3):
        assert np.array_equal(moved(images, degrees=90 * turns), np.rot90(images, turns, axes=(1, 2)))


def test_scale_shear_and_the_values_between_pixels() -> None:
    images = np.zeros((1, 5, 5, 1), dtype=np.uint8)
    images[0, 0] = images[0, 4] = 200
    assert moved(images, scale=(0.5, 1.0))[0, :, 2, 0].tolist() == [0, 200, 0, 200, 0]
    assert moved(images, shift=(0.25, 0.0))[0, :, 2, 0].tolist() == [150, 50, 0, 0, 150]
    assert moved(images, shear=1.0)[0, 4, :, 0].tolist() == [0, 0, 200, 200, 200]
    assert moved(images, shear=1.0)[0, 0, :, 0].tolist() == [200, 200, 200, 0, 0]


def test_scale_and_shear_come_before_the_turn() -> None:
    images = random_images(2, 8, 8, 1)
    first = moved(images, scale=(0.5, 1.0), shear=0.5)
    turned = moved(images, scale=(0.5, 1.0), shear=0.5, degrees=90)
    assert np.abs(turned.astype(int) - np.rot90(first, axes=(1, 2))).max() <= 1  # rounding


def shown_places(count: int, **strengths: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The row and column of the source that pixels around the middle show: ramps tell them to within an eighth."""
    ramp = np.tile(np.arange(0, 256, 4, dtype=np.uint8), (count, 64, 1))
    down, across = (
        distort_images(images[..., None], rng=np.random.default_rng(1), **{**STILL, **strengths})[..., 0] / 4
        for images in (ramp.transpose(0, 2, 1), ramp)
    )
    middle = slice(16, 48)
    return down[:, middle, middle] - 31.5, across[:, middle, middle] - 31.5


def fitted(**strengths: float) -> NDArray[np.float64]:
    """The affine maps (n, 2, 3) from a pixel's place, and 1, to the place it shows; both counted from the middle."""
    down, across = shown_places(300, **strengths)
    rows, columns = np.meshgrid(np.arange(16, 48) - 31.5, np.arange(16, 48) - 31.5, indexing="ij")
    places = np.stack([rows.ravel(), columns.ravel(), np.ones(32 * 32)], axis=1)
    shown = np.stack([down.reshape(300, -1), across.reshape(300, -1)], axis=2)
    return (np.linalg.pinv(places) @ shown).transpose(0, 2, 1)


def spans(values: NDArray[np.float64], low: float, high: float) -> bool:
    """Whether draws fill a range to within a twentieth, and never leave it by more than rounding explains."""
    slack = (high - low) / 20
    return bool(np.abs(np.array([values.min() - low, values.max() - high])).max() < slack)


def test_every_strength_does_its_own_and_fills_its_range() -> None:
    turned = fitted(rotation=20.0)
    angle = np.rad2deg(np.arctan2(turned[:, 0, 1], turned[:, 0, 0]))
    assert spans(angle, -20, 20)
    assert np.allclose(turned[:, 1, 0], -turned[:, 0, 1], atol=0.01)
    assert np.allclose(turned[:, :, 2], 0, atol=0.1)
    scaled = fitted(scale=0.25)
    assert spans(scaled[:, 0, 0], 1 / 1.25, 1.25)
    assert spans(scaled[:, 1, 1], 1 / 1.25, 1.25)
    assert abs(np.corrcoef(scaled[:, 0, 0], scaled[:, 1, 1])[0, 1]) < 0.2
    assert np.allclose(scaled[:, [0, 1], [1, 0]], 0, atol=0.01)
    sheared = fitted(shear=0.2)
    assert spans(sheared[:, 1, 0], -0.2, 0.2)
    assert np.allclose(sheared[:, [0, 0, 1], [0, 1, 1]], [1, 0, 1], atol=0.01)
    shifted = fitted(shift=0.1)
    assert spans(shifted[:, 0, 2], -6.4, 6.4)
    assert spans(shifted[:, 1, 2], -6.4, 6.4)
    assert np.allclose(shifted[:, :, :2], np.eye(2), atol=0.01)


def test_the_field_moves_rows_and_columns_independently() -> None:
    down, across = shown_places(300, elastic=0.05)
    places = np.arange(16, 48) - 31.5
    moved_down, moved_right = (down - places[:, None])[:, ::8, ::8].ravel(), (across - places)[:, ::8, ::8].ravel()
    assert abs(np.corrcoef(moved_down, moved_right)[0, 1]) < 0.2


def test_the_field_has_the_length_it_is_scaled_to_and_is_smooth() -> None:
    field = smooth_fields(np.random.default_rng(0).uniform(-1, 1, (200, 2, 32, 32)), 3.0)
    middle = field[:, :, 12:20, 12:20]
    assert np.sqrt((middle**2).sum(axis=1).mean()) == pytest.approx(1.0, rel=0.05)
    slope = np.diff(middle, axis=2)
    assert np.sqrt((slope**2).sum(axis=1).mean()) == pytest.approx(1 / (np.sqrt(2) * 3), rel=0.1)  # sd of a Gaussian's


def test_elastic_strength_alone_distorts_by_about_that_much() -> None:
    ramp = np.tile(np.arange(0, 256, 8, dtype=np.uint8), (50, 32, 1))[..., None]
    strengths = {**STILL, "elastic": 0.05}
    change = distort_images(ramp, rng=np.random.default_rng(0), **strengths).astype(float) - ramp
    step = change[:, 12:20, 12:20] / 8  # pixels to the side
    assert np.sqrt((step**2).mean()) == pytest.approx(0.05 * 32 / np.sqrt(2), rel=0.1)


def test_the_generator_alone_decides_and_halves_make_the_whole() -> None:
    images = random_images(6, 8, 8, 1)
    whole = distort_images(images, rng=np.random.default_rng(3))
    assert np.array_equal(distort_images(images, rng=np.random.default_rng(3)), whole)
    assert not np.array_equal(distort_images(images, rng=np.random.default_rng(4)), whole)
    rng = np.random.default_rng(3)
    assert np.array_equal(
        np.concatenate([distort_images(images[:2], rng=rng), distort_images(images[2:], rng=rng)]), whole
    )


def test_distorted_digits_stay_the_digit_they_were() -> None:
    from sklearn.datasets import load_digits
    from sklearn.neighbors import KNeighborsClassifier

    bundle = load_digits()
    pixels = np.rint(bundle.images * (255 / 16)).astype(np.uint8)[..., None]
    known, new = slice(0, 1200), slice(1200, None)
    judge = KNeighborsClassifier(3).fit(pixels[known].reshape(-1, 64), bundle.target[known])
    copies = distort_images(pixels[new], rng=np.random.default_rng(0))
    before, after = (judge.score(each.reshape(-1, 64), bundle.target[new]) for each in (pixels[new], copies))
    assert before > 0.95
    assert after > before - 0.06  # of an untouched judge who never saw a distorted digit


@pytest.mark.parametrize("name", ["rotation", "scale", "shear", "shift", "elastic", "smoothness"])
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_bad_strengths(name: str, value: float) -> None:
    with pytest.raises(PumaError, match=rf"(?=.*{name}).*got .*{value}"):
        distort_images(random_images(1, 4, 4, 1), rng=RNG, **{name: value})


def test_bad_images() -> None:
    with pytest.raises(PumaError, match="must be uint8"):
        distort_images(np.zeros((1, 4, 4, 1)), rng=RNG)  # type: ignore[arg-type]


# ---- copies of a pool


def collected(part: PoolPart) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    images, labels = zip(*part.chunks, strict=True)
    return np.concatenate(images), np.concatenate(labels)


@pytest.mark.parametrize("count", [1, 49, 50, 120])
def test_copies_do_not_depend_on_the_chunks(make_pool: MakePool, count: int) -> None:
    pool = make_pool(count=50)
    images, labels = collected(distort_pool(pool, count, seed=2))
    assert len(images) == len(labels) == count
    for chunk in (1, 7, 50, 1000):
        again, same = collected(distort_pool(pool, count, seed=2, chunk=chunk))
        assert np.array_equal(again, images)
        assert np.array_equal(same, labels)
    assert not np.array_equal(collected(distort_pool(pool, count, seed=3))[0], images)


def test_every_image_is_used_equally_often_up_to_one_and_classes_keep_their_share(tmp_path: Path) -> None:
    from puma.pools.writer import write_parts

    levels = np.arange(1, 101, dtype=np.uint8) * 2  # a flat image keeps its level in the middle
    labels = (np.arange(100) >= 70).astype(np.int64)
    flat = np.tile(levels[:, None, None, None], (1, 9, 9, 1))
    write_parts({"": PoolPart([(flat, labels)], ["a", "b"], 100)}, tmp_path / "flat")
    images, found = collected(distort_pool(Pool.open(tmp_path / "flat"), 230))
    source = images[:, 4, 4, 0] // 2 - 1
    assert np.array_equal(labels[source], found)
    assert np.bincount(source, minlength=100).min() == 2
    assert np.bincount(source, minlength=100).max() == 3
    assert np.bincount(found).tolist() == [161, 69]


def test_the_command(make_pool: MakePool, puma: Run, tmp_path: Path) -> None:
    make_pool("source", 40)
    source, out = str(tmp_path / "source"), str(tmp_path / "extra")
    code, printed, _ = puma("data", "distort", source, "--out", out, "--count", "100", "--seed", "5")
    assert code == 0
    assert "extra: 100 generated images of 6 x 5 x 3, 4 classes" in printed
    pool = Pool.open(out)
    assert (pool.origin == Origin.GENERATED).all()
    assert len(Pool.open(source) + pool) == 140
    expected, labels = collected(distort_pool(Pool.open(source), 100, seed=5))
    assert np.array_equal(pool.batch(range(100)).images.permute(0, 2, 3, 1).numpy(), expected)
    assert np.array_equal(pool.labels, labels)
    assert puma("data", "distort", source, "--out", out, "--count", "3", "--force")[0] == 0
    assert len(Pool.open(out)) == 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["source", "--out", "new", "--count", "0"], "--count must be at least 1 image, got 0"),
        (["source", "--out", "new", "--count", "5", "--seed", "-1"], "--seed must lie in 0..2**32 - 1, got -1"),
        (["source", "--out", "new", "--count", "5", "--seed", str(1 << 32)], "got 4294967296"),
        ([".", "--out", "new", "--count", "5"], "pool"),
        (["absent", "--out", "new", "--count", "5"], "pool"),
        (["source", "--out", "source", "--count", "5", "--force"], "would replace the pool source itself"),
        (["source", "--out", "source", "--count", "5"], "would replace the pool source itself"),
    ],
)
def test_bad_input(
    make_pool: MakePool,
    puma: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    sentence: str,
) -> None:
    make_pool("source", 8)
    monkeypatch.chdir(tmp_path)
    code, _, error = puma("data", "distort", *words)
    assert code == 2
    assert sentence in error
    assert error.count("\n") == 1
    assert len(Pool.open("source")) == 8
    assert not Path("new").exists()
