"""Extra images out of a pool's own: distorted copies, marked as generated."""

from collections.abc import Iterator

import numpy as np

from puma.errors import PumaError
from puma.pools.distort import distorted
from puma.pools.pool import Pool, Rows
from puma.pools.store import Origin
from puma.pools.writer import Chunk, PoolPart

_PIXELS = 1 << 18  # in one chunk


def distorted_copies(pool: Pool, count: int, *, seed: int = 0, chunk: int | None = None) -> PoolPart:
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
    return PoolPart(_chunks(pool, count, seed, size), pool.class_names, count, Origin.GENERATED, allow_empty_class=True)


def _chunks(pool: Pool, count: int, seed: int, size: int) -> Iterator[Chunk]:
    choice, strokes = (np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(2))
    whole_rounds = count // len(pool) * len(pool)
    last_round = even_share(pool.labels, count - whole_rounds, choice)
    for start in range(0, count, size):
        place = np.arange(start, min(start + size, count))
        positions = place % len(pool)
        positions[place >= whole_rounds] = last_round[place[place >= whole_rounds] - whole_rounds]
        batch = pool.batch(positions)
        yield distorted(batch.images.permute(0, 2, 3, 1).numpy(), rng=strokes), batch.labels.numpy()


def even_share(labels: Rows, count: int, rng: np.random.Generator) -> Rows:
    """Draw ``count`` different positions, ascending, with every label's share as in ``labels`` to within one."""
    shuffled = rng.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return np.sort(by_label[(np.arange(count) * len(labels) + len(labels) // 2) // max(count, 1)])
