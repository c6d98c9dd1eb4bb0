"""Extra images out of a pool's own: random affine and elastic distortions, each image its own (Simard et al. 2003)."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError, tell_missing
from puma.files import LINKS_KEY, Link, write_links
from puma.pools.pool import Pool, Rows
from puma.pools.store import Origin
from puma.pools.writer import Chunk, PoolPart, check_pixels

Floats = NDArray[np.float64]
_AFFINE_DRAWS = 6  # rotation, two scales, shear, two shifts
_UNIFORM_RMS = 1 / np.sqrt(3)  # of numbers drawn evenly from -1..1
_PIXELS = 1 << 18  # in one chunk


def distort_pool(pool: Pool, count: int, *, seed: int = 0, chunk: int | None = None) -> PoolPart:
    """Describe ``count`` distorted copies of a pool's images, with their labels, as generated.

    Every image is used equally often; the last, incomplete round takes the same share of every class. The result
    depends on pool, count and seed, not on ``chunk``, the number of images made at a time.
    """
    if count < 1:
        raise PumaError(f"--count must be at least 1 image, got {count}.")
    if not 0 <= seed < 1 << 32:
        raise PumaError(f"--seed must lie in 0..2**32 - 1, got {seed}.")
    if len(pool) == 0:
        raise PumaError("the pool holds no images, so there is nothing to distort.")
    height, width, _ = pool.image_shape
    size = chunk or max(1, _PIXELS // (height * width))
    return PoolPart(
        _distort_chunks(pool, count, seed, size),
        pool.class_names,
        count,
        Origin.GENERATED,
        allow_empty_class=True,
        description={LINKS_KEY: write_links([Link("images", "pool", pool.fingerprint, pool.place)])},
    )


def _distort_chunks(pool: Pool, count: int, seed: int, size: int) -> Iterator[Chunk]:
    choice, strokes = (np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(2))
    whole_rounds = count // len(pool) * len(pool)
    last_round = draw_even_share(pool.labels, count - whole_rounds, choice)
    for start in range(0, count, size):
        place = np.arange(start, min(start + size, count))
        positions = place % len(pool)
        positions[place >= whole_rounds] = last_round[place[place >= whole_rounds] - whole_rounds]
        batch = pool.batch(positions)
        yield distort_images(batch.images.permute(0, 2, 3, 1).numpy(), rng=strokes), batch.labels.numpy()


def draw_even_share(labels: Rows, count: int, rng: np.random.Generator) -> Rows:
    """Draw ``count`` different positions, ascending, with every label's share as in ``labels`` to within one."""
    shuffled = rng.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return np.sort(by_label[(np.arange(count) * len(labels) + len(labels) // 2) // max(count, 1)])


def distort_images(
    images: NDArray[np.uint8],
    *,
    rng: np.random.Generator,
    rotation: float = 10.0,
    scale: float = 0.08,
    shear: float = 0.1,
    shift: float = 0.04,
    elastic: float = 0.025,
    smoothness: float = 0.2,
) -> NDArray[np.uint8]:
    """Distort images (n, height, width, channels); black comes in from outside, and all strengths 0 change nothing.

    An image uses up the same number of draws whatever its content, so a batch distorted in two halves, one after the
    other with one generator, gives the same images as in one go.

    Args:
        images: what to distort.
        rng: where the draws come from.
        rotation: at most this many degrees either way.
        scale: height and width each grow or shrink by at most this share.
        shear: rows slide sideways by at most this share of their distance from the middle.
        shift: at most this share of the side, down or up and right or left.
        elastic: typical distance that the smooth random field moves a pixel, as a share of the side.
        smoothness: width of the Gaussian the field is smoothed with, as a share of the side.
    """
    height, width, _ = check_pixels(images, None)
    strengths = {"rotation": rotation, "scale": scale, "shear": shear, "shift": shift, "elastic": elastic}
    if bad := {name: value for name, value in strengths.items() if not 0 <= value < np.inf}:
        raise PumaError(f"the strengths of a distortion must be numbers from 0 on, got {bad}.")
    if not 0 < smoothness < np.inf:
        raise PumaError(f"smoothness must be a number above 0, got {smoothness}.")
    count, side = len(images), max(height, width)
    draws = rng.uniform(-1, 1, (count, _AFFINE_DRAWS + 2 * height * width))
    turn, taller, wider, slant, down, right = draws[:, :_AFFINE_DRAWS].T
    rows, columns = find_affine_places(
        (height, width),
        degrees=rotation * turn,
        scale=(1 + scale) ** np.stack([taller, wider], axis=1),
        shear=shear * slant,
        shift=shift * side * np.stack([down, right], axis=1),
    )
    field = draws[:, _AFFINE_DRAWS:].reshape(count, 2, height, width)
    moved = elastic * side * smooth_fields(field, smoothness * side)
    return sample_pixels(images, rows + moved[:, 0], columns + moved[:, 1])


def find_affine_places(
    size: tuple[int, int], *, degrees: Floats, scale: Floats, shear: Floats, shift: Floats
) -> tuple[Floats, Floats]:
    """Return the row and column (n, height, width) of the source that each pixel of the result shows.

    The result is the source scaled (n, 2) and sheared (n,), turned by ``degrees`` (n,) against the clock, all about the
    middle, then shifted (n, 2) down and right by pixels.
    """
    middle = (np.array(size) - 1) / 2
    angle = np.deg2rad(degrees)
    unturned = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]).transpose(2, 0, 1)
    unsheared = np.tile(np.eye(2), (len(shear), 1, 1))
    unsheared[:, 1, 0] = -shear
    matrix = unsheared @ unturned / scale[:, :, None]
    places = np.stack(np.meshgrid(*map(np.arange, size), indexing="ij"))[None] - (middle + shift)[:, :, None, None]
    source = np.einsum("nij,njhw->nihw", matrix, places) + middle[:, None, None]
    return source[:, 0], source[:, 1]


def smooth_fields(field: Floats, sigma: float) -> Floats:
    """Smooth fields (n, 2, height, width) of numbers from -1..1, and scale them to a typical length of one vector."""
    with tell_missing("data"):
        from scipy.ndimage import gaussian_filter

    reach = max(1, int(np.ceil(4 * sigma)))
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    spread_kept = (weights**2).sum() / weights.sum() ** 2  # smoothing rows multiplies by its root, columns once more
    rms = np.sqrt(2) * _UNIFORM_RMS * spread_kept  # of a vector's length
    found: Floats = gaussian_filter(field, (0, 0, sigma, sigma), mode="constant", radius=(0, 0, reach, reach)) / rms
    return found


def sample_pixels(images: NDArray[np.uint8], rows: Floats, columns: Floats) -> NDArray[np.uint8]:
    """Read images (n, height, width, channels) at rows and columns between the pixels; outside it is black."""
    _, height, width, _ = images.shape
    padded = np.pad(images, ((0, 0), (1, 2), (1, 2), (0, 0)))
    rows, columns = np.clip(rows, -1, height) + 1, np.clip(columns, -1, width) + 1
    top, left = rows.astype(np.int64), columns.astype(np.int64)
    below, beside = (rows - top)[..., None], (columns - left)[..., None]
    sample = np.arange(len(images))[:, None, None]
    upper = padded[sample, top, left] * (1 - beside) + padded[sample, top, left + 1] * beside
    lower = padded[sample, top + 1, left] * (1 - beside) + padded[sample, top + 1, left + 1] * beside
    return np.rint(upper * (1 - below) + lower * below).astype(np.uint8)
