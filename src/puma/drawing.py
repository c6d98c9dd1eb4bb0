"""One palette and one binning for every drawer: told apart by all kinds of colour vision, and by style in grey."""

import numpy as np
from numpy.typing import NDArray

# Okabe and Ito's hues, darkened until each has a contrast of 4.5 on white; DARK are the same hues for a dark ground.
COLOURS = ("#0072b2", "#c14f00", "#007a5a", "#a8487f", "#8a6400", "#5b4bb5", "#333333")
DARK = ("#56b4e9", "#ff9d5c", "#3fcf9f", "#f2a1cd", "#f0c040", "#b3a6ff", "#dddddd")
# for levels of one quantity: stays ordered for every kind of colour vision and in grey
SEQUENCE = ("#fdae3d", "#ee7b51", "#cc4778", "#9c179e", "#5c01a6", "#1f0a8a")
LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
KEPT, PRUNED, POOL = COLOURS[0], COLOURS[1], "#d9d9d9"
BINS = 40  # fine enough for a tail, coarse enough for a few hundred samples


def bin_edges(values: NDArray[np.floating], bins: int = BINS) -> NDArray[np.float64]:
    """Return equal bins over the middle 99 %; the outer ones also take what lies beyond."""
    low, high = np.quantile(values.astype(np.float64), (0.005, 0.995))
    return np.linspace(low, max(high, low + 1e-9), bins + 1)  # values that are all alike still get bins


def count_in_bins(values: NDArray[np.floating], edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """Count values in bins; those beyond the ends count in the outer bins."""
    return np.histogram(values.clip(edges[0], edges[-1]), edges)[0]
