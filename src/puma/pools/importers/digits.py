"""scikit-learn's handwritten digits: 1797 grey images of 8 px, part of the installed package."""

import numpy as np

from puma.pools.writer import PoolPart

_TEST_SHARE = 5  # every fifth image of a class is a test image
_SEED = 0


def digits() -> dict[str, PoolPart]:
    """Return the training and test part; the split is random within each class, and always the same."""
    from sklearn.datasets import load_digits

    bundle = load_digits()
    pixels = np.rint(bundle.images * (255 / 16)).astype(np.uint8)[..., None]
    labels = bundle.target.astype(np.int64)
    order = np.random.default_rng(_SEED).permutation(len(labels))
    is_test = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        is_test[order[labels[order] == label][::_TEST_SHARE]] = True
    names = [str(digit) for digit in range(10)]
    return {
        part: PoolPart([(pixels[rows], labels[rows])], names, int(rows.sum()))
        for part, rows in (("train", ~is_test), ("test", is_test))
    }
