"""HTML and SVG in which text is escaped unless it is known to be markup; the axes of a chart."""

import html
import json
import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

Value = str | float | bool | None
_HARMLESS = "\n\t\u200c\u200d"


class Markup(str):
    """Text that is markup already and goes into a page as it is."""


def make_tag(name: str, *children: str, **attributes: Value) -> Markup:
    """Return an element; children that are not Markup are escaped, and so are the values of attributes.

    An underscore in an attribute's name stands for a dash, one at its end for nothing (``class_``); None and False
    leave the attribute out.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}"
        + ("" if value is True else f'="{html.escape(printable_text(_text(value)))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{name}{written}>{join_markup(*children)}</{name}>")


def join_markup(*children: str) -> Markup:
    """Put children behind each other, escaped where they are not Markup."""
    return Markup(
        "".join(child if isinstance(child, Markup) else html.escape(printable_text(child)) for child in children)
    )


def printable_text(text: object) -> str:
    """Return text without control and format characters, such as those that turn the direction of what follows.

    Joiners within words stay; what is no character at all (half of a pair) is written out.
    """
    words = str(text)
    if words.isprintable():
        return words
    kept = (sign for sign in words if sign in _HARMLESS or unicodedata.category(sign) not in ("Cc", "Cf"))
    return "".join(kept).encode(errors="backslashreplace").decode()


def make_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    caption: str,
    numbers_from: int = 1,
    headings: Sequence[str] = (),
) -> Markup:
    """Return a table that scrolls in itself: a row's first cell is its header, from ``numbers_from`` on are numbers.

    Rows behind each other that have the same heading, if any, stand below it.
    """
    classes = ["words" if index < numbers_from else "number" for index in range(len(headers))]
    head = make_tag(
        "tr", *(make_tag("th", text, scope="col", class_=kind) for text, kind in zip(headers, classes, strict=True))
    )
    bodies = []
    paired = zip(headings or [""] * len(rows), rows, strict=True)
    for heading, group in groupby(paired, key=lambda pair: pair[0]):
        body = [
            make_tag(
                "tr",
                make_tag("th", row[0], scope="row"),
                *(make_tag("td", text, class_=kind) for text, kind in zip(row[1:], classes[1:], strict=True)),
            )
            for _, row in group
        ]
        above = [make_tag("tr", make_tag("th", heading, scope="rowgroup", colspan=len(headers), class_="heading"))]
        bodies.append(make_tag("tbody", *(above if heading else []), *body))
    inner = make_tag("table", make_tag("caption", caption), make_tag("thead", head), *bodies)
    return make_tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)


def embed_json(value: object) -> Markup:
    """Return JSON that may stand inside a script element: nothing in it can end or begin an element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _text(value: Value) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


WIDTH, HEIGHT = 400.0, 270.0  # units of the drawing, which scales
LEFT, RIGHT, TOP, BOTTOM = 56.0, 24.0, 24.0, 44.0  # margins for ticks and labels
_SIGN = 7.8  # no digit is wider, at the largest size of the style sheet
COLOURS, SHAPES, DASHES = 7, 6, 4  # how many the style sheet and draw_mark() know

STEPS = 255  # of a pixel
IN_STEPS, IN_SHARES = "in255", "in1"  # classes of what is written in steps, and in shares of the pixel range

Write = Callable[[float], str]


@dataclass(frozen=True)
class ChartFrame:
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

    def axes(
        self,
        x_label: str,
        y_label: str,
        *,
        write_x: Write,
        write_y: Write,
        x_steps: bool = False,
        y_steps: bool = False,
    ) -> list[Markup]:
        """Grid, ticks and labels; an axis in ``steps`` is there twice, for either unit of the page's switch."""
        parts = []
        for draw, label, write, twice in (
            (self._draw_x_axis, x_label, write_x, x_steps),
            (self._draw_y_axis, y_label, write_y, y_steps),
        ):
            if twice:
                parts.append(make_tag("g", *draw(f"{label}, in 1/{STEPS}", write, STEPS), class_=IN_STEPS))
                parts.append(make_tag("g", *draw(label, write, 1), class_=IN_SHARES))
            else:
                parts += draw(label, write, 1)
        parts.append(draw_line(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, "axis"))
        return parts

    def _draw_x_axis(self, label: str, write: Write, scale: int) -> list[Markup]:
        parts = [draw_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, label, "label middle")]
        for value in round_ticks(scale * self.x[0], scale * self.x[1]):
            place, words = self.across(value / scale), write(value)
            parts.append(draw_line(place, TOP, place, HEIGHT - BOTTOM, "grid"))
            edge = min(place, WIDTH - _SIGN * len(words) / 2)
            parts.append(draw_text(edge, HEIGHT - BOTTOM + 17, words, "tick middle"))
        return parts

    def _draw_y_axis(self, label: str, write: Write, scale: int) -> list[Markup]:
        parts = [draw_text(4, 13, label, "label")]
        low, high = scale * self.y[0], scale * self.y[1]
        for value in list_decades(low, high) if self.log else round_ticks(low, high):
            place = self.up(value / scale)
            parts.append(draw_line(LEFT, place, WIDTH - RIGHT, place, "grid"))
            parts.append(draw_text(LEFT - 6, place + 4, write(value), "tick end"))
        return parts


def make_figure(title: str, parts: Sequence[Markup], *, legend: Sequence[Markup] = (), note: str = "") -> Markup:
    """Return a figure of a chart: the title is also what a screen reader says of the picture."""
    picture = make_tag(
        "svg", *parts, viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", role="img", aria_label=f"{title}. {note}".strip()
    )
    keys = [make_tag("ul", *(make_tag("li", item) for item in legend), class_="legend")] if legend else []
    caption = make_tag("figcaption", make_tag("strong", title), *([" ", note] if note else []))
    return make_tag("figure", caption, picture, *keys)


def draw_line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """Return a straight line."""
    return make_tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def draw_text(x: float, y: float, words: str, kind: str) -> Markup:
    """Return words at a place."""
    return make_tag("text", words, x=x, y=y, class_=kind)


def draw_path(points: Sequence[tuple[float, float]], kind: str) -> Markup:
    """Return a line through points."""
    return make_tag("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points), class_=kind)


def draw_mark(index: int, x: float, y: float, *, hollow: bool = False, title: str = "") -> Markup:
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
    inner = [make_tag("title", title)] if title else []
    if index % SHAPES == 0:
        return make_tag("circle", *inner, cx=x, cy=y, r=r, class_=kind)
    outline = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners[index % SHAPES])
    return make_tag("polygon", *inner, points=outline, class_=kind)


def legend_key(words: str, *parts: Markup) -> Markup:
    """Return an entry of a legend: a small picture of 28 by 14 and what it stands for."""
    return make_tag("span", make_tag("svg", *parts, viewBox="0 0 28 14", class_="key", aria_hidden="true"), words)


def line_classes(index: int) -> str:
    """Return the classes of a row's line: its colour and its dashes."""
    return f"line s{index % COLOURS} d{index % DASHES}"


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from low to high, at most about ``most``."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * 0.999)
    return [index * step for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def list_decades(low: float, high: float) -> list[float]:
    """Powers of ten from low to high."""
    return [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]


def widen_range(values: Sequence[float], share: float = 0.08) -> tuple[float, float]:
    """Return the range of values with some air around it; never empty."""
    low, high = min(values), max(values)
    air = share * (high - low) or 0.05 * max(abs(high), 1e-6)
    return low - air, high + air


def format_short(value: float) -> str:
    """Write a tick's number briefly: 12000 as 12k."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e4 else f"{round(value, 6):g}"
