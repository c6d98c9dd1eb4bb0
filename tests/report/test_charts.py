import re

import numpy as np
import pytest

from puma.report.charts import Point, binned, curves, edges_of, margin_histogram, strength_histogram, trade_off
from puma.report.comparison import Estimate
from puma.report.frame import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Frame


def counted(chart: str, kind: str) -> int:
    """Samples in all bars of a kind, from what is told on pointing at them."""
    return sum(int(number.replace(",", "")) for number in re.findall(rf": ([\d,]+) {kind}</title>", chart))


def test_a_frame_fills_the_picture() -> None:
    frame = Frame((-1.0, 3.0), (10.0, 20.0))
    assert (frame.across(-1), frame.across(1), frame.across(3)) == (LEFT, (LEFT + WIDTH - RIGHT) / 2, WIDTH - RIGHT)
    assert (frame.up(10), frame.up(20)) == (HEIGHT - BOTTOM, TOP)
    log = Frame((0.0, 1.0), (1.0, 10_000.0), log=True)
    assert log.up(100) == pytest.approx((HEIGHT - BOTTOM + TOP) / 2)
    assert log.up(0) == HEIGHT - BOTTOM  # an empty bar has no height


def test_every_sample_is_in_a_bar() -> None:
    margin = np.random.default_rng(0).standard_cauchy(5_000)  # far outliers
    edges = edges_of(margin)
    assert binned(margin, edges).sum() == 5_000
    kept, pruned = margin[margin < 1], margin[margin >= 1]
    chart = margin_histogram("r", kept, pruned, {"0": 0.0, "eps": 0.1, "threshold": 1.0}, "linf")
    assert (counted(chart, "kept"), counted(chart, "pruned")) == (len(kept), len(pruned))
    assert [chart.count(f'class="marked m{index}"') for index in range(3)] == [2, 2, 2]  # in the chart and its legend
    assert counted(strength_histogram("r", kept.clip(-0.1, 0.1), 0.1, "linf"), "kept") == len(kept)


def test_one_margin_for_all() -> None:
    same = np.full(7, 0.25)
    chart = margin_histogram("r", same, np.zeros(0), {"0": 0.0}, "l2")
    assert counted(chart, "kept") == 7
    assert "pruned" not in chart
    assert counted(strength_histogram("r", same, None, ""), "kept") == 7


def test_the_papers_marks_are_hollow() -> None:
    value = Estimate(0.5, 0.4, 0.6, None, 1, 100)
    points = [
        Point("a", 0, value, value, (0.7, 0.6)),
        Point("b", 1, None, None, (0.8, 0.5)),
        Point("c", 2, value, value, None),
    ]
    chart = trade_off(points, "robustness")
    assert chart.count("hollow") == 2 + 2  # two of the paper's, one in the legend with its word
    assert chart.count("interval") == 2 * 2 + 2  # and twice in words
    assert "a: accuracy 50% [40%, 60%], robustness 50% [40%, 60%]" in chart
    assert "b, paper: accuracy 80%, robustness 50%" in chart


def test_long_curves_are_thinned_but_keep_their_end() -> None:
    points = [(float(step), 1.0 / step) for step in range(1, 10_001)]
    chart = curves("Loss", [(0, points)], shares=False)
    (drawn,) = re.findall(r'd="M([^"]+)"', chart)
    places = drawn.split("L")
    assert 200 < len(places) <= 300
    assert places[-1].split()[0] == f"{WIDTH - RIGHT:.1f}"
    assert 'class="mark s1"' in curves("Loss", [(1, points[:1])], shares=False)  # a single point is a mark
