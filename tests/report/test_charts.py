import re

import numpy as np
import pytest

from puma.report.charts import (
    TradeOffPoint,
    draw_margin_histogram,
    draw_run_curves,
    draw_strength_histogram,
    draw_trade_off,
)
from puma.report.statistics import AccuracyEstimate
from puma.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, ChartFrame
from report.drawn import Chart


def counted(chart: str, kind: str) -> int:
    """Samples in all bars of a kind, from what is told on pointing at them."""
    return sum(int(number.replace(",", "")) for number in re.findall(rf": ([\d,]+) {kind}</title>", chart))


def test_a_frame_fills_the_picture() -> None:
    frame = ChartFrame((-1.0, 3.0), (10.0, 20.0))
    assert (frame.across(-1), frame.across(1), frame.across(3)) == (LEFT, (LEFT + WIDTH - RIGHT) / 2, WIDTH - RIGHT)
    assert (frame.up(10), frame.up(20)) == (HEIGHT - BOTTOM, TOP)
    log = ChartFrame((0.0, 1.0), (1.0, 10_000.0), log=True)
    assert log.up(100) == pytest.approx((HEIGHT - BOTTOM + TOP) / 2)
    assert log.up(0) == HEIGHT - BOTTOM  # an empty bar has no height


def test_every_sample_is_in_a_bar() -> None:
    margin = np.random.default_rng(0).standard_cauchy(5_000)  # far outliers
    kept, pruned = margin[margin < 1], margin[margin >= 1]
    chart = draw_margin_histogram("r", kept, pruned, {"0": 0.0, "eps": 0.1, "threshold": 1.0}, "linf")
    assert (counted(chart, "kept"), counted(chart, "pruned")) == (len(kept), len(pruned))
    assert [chart.count(f'class="marked m{index}"') for index in range(3)] == [2, 2, 2]  # in the chart and its legend
    assert counted(draw_strength_histogram("r", kept.clip(-0.1, 0.1), 0.1, "linf"), "kept") == len(kept)


def test_one_margin_for_all() -> None:
    same = np.full(7, 0.25)
    chart = draw_margin_histogram("r", same, np.zeros(0), {"0": 0.0}, "l2")
    assert counted(chart, "kept") == 7
    assert "pruned" not in chart
    assert counted(draw_strength_histogram("r", same, None, ""), "kept") == 7


def test_the_papers_marks_are_hollow() -> None:
    value = AccuracyEstimate(0.5, 0.4, 0.6, None, 1, 100)
    points = [
        TradeOffPoint("a", 0, value, value, (0.7, 0.6)),
        TradeOffPoint("b", 1, None, None, (0.8, 0.5)),
        TradeOffPoint("c", 2, value, value, None),
    ]
    chart = draw_trade_off(points, "robustness")
    assert chart.count("hollow") == 2 + 2  # two of the paper's, one in the legend with its word
    assert chart.count("interval") == 2 * 2 + 2  # and twice in words
    assert "a: accuracy 50% [40%, 60%], robustness 50% [40%, 60%]" in chart
    assert "b, paper: accuracy 80%, robustness 50%" in chart


def test_long_curves_are_thinned_but_keep_their_end() -> None:
    points = [(float(step), 1.0 / step) for step in range(1, 10_001)]
    chart = draw_run_curves("Loss", [(0, points)], shares=False)
    (drawn,) = re.findall(r'd="M([^"]+)"', chart)
    places = drawn.split("L")
    assert 200 < len(places) <= 300
    assert places[-1].split()[0] == f"{WIDTH - RIGHT:.1f}"
    assert 'class="mark s1"' in draw_run_curves("Loss", [(1, points[:1])], shares=False)  # a single point is a mark


def test_bars_of_a_mark_are_its_own_intervals() -> None:
    accuracy, robustness = (
        AccuracyEstimate(0.8, 0.7, 0.85, None, 1, 100),
        AccuracyEstimate(0.4, 0.35, 0.6, None, 1, 100),
    )
    chart = Chart(draw_trade_off([TradeOffPoint("a", 0, accuracy, robustness, None)], "robustness"), "Accuracy against")
    flat, upright = chart.of("line", "interval")
    assert (chart.x(flat.get("x1")), chart.x(flat.get("x2"))) == pytest.approx((70, 85), abs=0.1)
    assert (chart.y(flat.get("y1")), chart.y(flat.get("y2"))) == pytest.approx((40, 40), abs=0.1)
    assert (chart.y(upright.get("y1")), chart.y(upright.get("y2"))) == pytest.approx((35, 60), abs=0.1)
    assert (chart.x(upright.get("x1")), chart.x(upright.get("x2"))) == pytest.approx((80, 80), abs=0.1)
    (dot,) = chart.of("circle", "mark")
    assert (chart.x(dot.get("cx")), chart.y(dot.get("cy"))) == pytest.approx((80, 40), abs=0.1)


def test_marked_margins_stand_where_they_are() -> None:
    margin = np.linspace(-0.1, 0.3, 50)
    marks = {"0": 0.0, "eps": 0.1, "threshold": 0.2}
    chart = Chart(draw_margin_histogram("r", margin[:40], margin[40:], marks, "linf"), "Margins of r")
    for index, value in enumerate(marks.values()):
        (drawn,) = chart.of("line", f"marked m{index}")
        assert (chart.x(drawn.get("x1")), chart.x(drawn.get("x2"))) == pytest.approx((value, value), abs=1e-3)
    assert (chart.counted("bar kept"), chart.counted("bar pruned")) == (40, 10)
    assert min(chart.x(bar.get("x")) for bar in chart.of("rect", "bar pruned")) > 0.2


@pytest.mark.parametrize("end", [100_000, 1_250_000, 102_500])
def test_ticks_are_not_cut_off(end: float) -> None:
    """The style sheet's letters are at most 13 high, and a digit at most 0.6 as wide."""
    for tick in Chart(draw_run_curves("Loss", [(0, [(0.0, 1.0), (end, 0.5)])], shares=False), "Loss").of(
        "text", "tick middle"
    ):
        assert float(tick.get("x", "")) + 0.6 * 13 * len(tick.text or "") / 2 <= WIDTH


def test_bars_that_hold_what_lies_beyond_are_marked() -> None:
    margin = np.concatenate([np.linspace(0, 1, 1_000), np.full(4, 50.0)])
    chart = Chart(draw_margin_histogram("r", margin, np.zeros(0), {"0": 0.0}, "linf"), "Margins of r")
    signs = {tick.text: tick for tick in chart.of("text", "tick middle") if tick.text in ("≤", "≥")}
    assert chart.x(signs["≥"].get("x")) == pytest.approx(chart.x(chart.of("rect", "bar")[-1].get("x")), abs=0.03)
    even = np.linspace(0, 1, 1_000).repeat(2)
    even[:20], even[-20:] = even[20], even[-21]  # the middle 99 % is all there is
    assert "≥" not in draw_margin_histogram("r", even, np.zeros(0), {"0": 0.0}, "linf")
