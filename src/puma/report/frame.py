"""The frame of a chart: scales, round ticks, axes; drawn with classes, so that the style sheet colours it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from puma.report.markup import Markup, tag

WIDTH, HEIGHT = 400.0, 270.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 24.0, 24.0, 44.0
_SIGN = 7.8  # no digit is wider, at the largest size of the style sheet
COLOURS, SHAPES, DASHES = 7, 6, 4  # how many the style sheet and mark() know

Write = Callable[[float], str]


@dataclass(frozen=True)
class Frame:
    """A rectangle of values and where it lies in the picture; ``log`` is about the vertical axis."""

    x: tuple[float, float]
    y: tuple[float, float]
    log: bool = False

    def across(self, value: float) -> float:
        """Horizontal place of a value."""
        low, high = self.x
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - low) / (high - low)

    def up(self, value: float) -> float:
        """Vertical place of a value."""
        low, high = (math.log10(end) for end in self.y) if self.log else self.y
        place = math.log10(max(value, self.y[0])) if self.log else value
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (place - low) / (high - low)

    def axes(self, x_label: str, y_label: str, *, write_x: Write, write_y: Write) -> list[Markup]:
        """Grid, ticks and labels."""
        parts = []
        for value in ticks(*self.x):
            place = self.across(value)
            parts.append(line(place, TOP, place, HEIGHT - BOTTOM, "grid"))
            words = write_x(value)
            parts.append(text(min(place, WIDTH - _SIGN * len(words) / 2), HEIGHT - BOTTOM + 17, words, "tick middle"))
        for value in decades(*self.y) if self.log else ticks(*self.y):
            place = self.up(value)
            parts.append(line(LEFT, place, WIDTH - RIGHT, place, "grid"))
            parts.append(text(LEFT - 6, place + 4, write_y(value), "tick end"))
        parts.append(line(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, "axis"))
        parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, x_label, "label middle"))
        parts.append(text(4, 13, y_label, "label"))
        return parts


def figure(title: str, parts: Sequence[Markup], *, legend: Sequence[Markup] = (), note: str = "") -> Markup:
    """Return a figure of a chart: the title is also what a screen reader says of the picture."""
    picture = tag("svg", *parts, viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", role="img", aria_label=f"{title}. {note}".strip())
    keys = [tag("ul", *(tag("li", item) for item in legend), class_="legend")] if legend else []
    caption = tag("figcaption", tag("strong", title), *([" ", note] if note else []))
    return tag("figure", caption, picture, *keys)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """Return a straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def text(x: float, y: float, words: str, kind: str) -> Markup:
    """Return words at a place."""
    return tag("text", words, x=x, y=y, class_=kind)


def path(points: Sequence[tuple[float, float]], kind: str) -> Markup:
    """Return a line through points."""
    return tag("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points), class_=kind)


def mark(index: int, x: float, y: float, *, hollow: bool = False, title: str = "") -> Markup:
    """Return the mark of a row: shape and colour go by its index; the title is shown on pointing at it."""
    r, w = 5.0, 2.0
    corners = {
        1: [(-r, -r), (r, -r), (r, r), (-r, r)],
        2: [(0, -1.3 * r), (1.2 * r, r), (-1.2 * r, r)],
        3: [(0, -1.4 * r), (1.4 * r, 0), (0, 1.4 * r), (-1.4 * r, 0)],
        4: [(0, 1.3 * r), (1.2 * r, -r), (-1.2 * r, -r)],
        5: [
            (-w, -6), (w, -6), (w, -w), (6, -w), (6, w), (w, w), (w, 6), (-w, 6), (-w, w), (-6, w), (-6, -w), (-w, -w),
        ],
    }  # fmt: skip
    kind = f"mark s{index % COLOURS}{' hollow' if hollow else ''}"
    inner = [tag("title", title)] if title else []
    if index % SHAPES == 0:
        return tag("circle", *inner, cx=x, cy=y, r=r, class_=kind)
    outline = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners[index % SHAPES])
    return tag("polygon", *inner, points=outline, class_=kind)


def key(words: str, *parts: Markup) -> Markup:
    """Return an entry of a legend: a small picture of 28 by 14 and what it stands for."""
    return tag("span", tag("svg", *parts, viewBox="0 0 28 14", class_="key", aria_hidden="true"), words)


def line_kind(index: int) -> str:
    """Return the classes of a row's line: its colour and its dashes."""
    return f"line s{index % COLOURS} d{index % DASHES}"


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from low to high, at most about ``most``."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * 0.999)
    return [index * step for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def decades(low: float, high: float) -> list[float]:
    """Powers of ten from low to high."""
    return [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]


def widened(values: Sequence[float], share: float = 0.08) -> tuple[float, float]:
    """Return the range of values with some air around it; never empty."""
    low, high = min(values), max(values)
    air = share * (high - low) or 0.05 * max(abs(high), 1e-6)
    return low - air, high + air


def short(value: float) -> str:
    """Write a tick's number briefly: 12000 as 12k."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e4 else f"{round(value, 6):g}"
