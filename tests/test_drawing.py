import numpy as np
import pytest

from puma.drawing import BINS, COLOURS, DARK, bin_edges, count_in_bins


def test_every_value_is_in_a_bin() -> None:
    values = np.random.default_rng(0).standard_cauchy(5_000)  # far outliers
    edges = bin_edges(values)
    assert (len(edges), count_in_bins(values, edges).sum()) == (BINS + 1, 5_000)
    assert count_in_bins(np.full(7, 0.5), bin_edges(np.full(7, 0.5))).sum() == 7


def test_colours_stand_out_from_the_ground() -> None:
    for colours, ground in ((COLOURS, "#ffffff"), (DARK, "#15181c")):
        for colour in colours:
            light, dark = sorted((luminance(colour), luminance(ground)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, colour
    assert len(set(COLOURS)) == len(COLOURS) == len(DARK)


def luminance(colour: str) -> float:
    """Relative luminance, as the Web Content Accessibility Guidelines define it."""
    shares = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_white_on_black() -> None:
    assert (luminance("#ffffff"), luminance("#000000")) == pytest.approx((1.0, 0.0))
