"""HTML and SVG in which text is escaped unless it is known to be markup."""

import html
import json
import unicodedata
from collections.abc import Sequence
from itertools import groupby

Value = str | float | bool | None
_HARMLESS = "\n\t\u200c\u200d"


class Markup(str):
    """Text that is markup already and goes into a page as it is."""


def tag(name: str, *children: str, **attributes: Value) -> Markup:
    """Return an element; children that are not Markup are escaped, and so are the values of attributes.

    An underscore in an attribute's name stands for a dash, one at its end for nothing (``class_``); None and False
    leave the attribute out.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}"
        + ("" if value is True else f'="{html.escape(printable(_text(value)))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{name}{written}>{markup(*children)}</{name}>")


def markup(*children: str) -> Markup:
    """Put children behind each other, escaped where they are not Markup."""
    return Markup("".join(child if isinstance(child, Markup) else html.escape(printable(child)) for child in children))


def printable(text: object) -> str:
    """Return text without control and format characters, such as those that turn the direction of what follows.

    Joiners within words stay; what is no character at all (half of a pair) is written out.
    """
    words = str(text)
    if words.isprintable():
        return words
    kept = (sign for sign in words if sign in _HARMLESS or unicodedata.category(sign) not in ("Cc", "Cf"))
    return "".join(kept).encode(errors="backslashreplace").decode()


def table(
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
    head = tag("tr", *(tag("th", text, scope="col", class_=kind) for text, kind in zip(headers, classes, strict=True)))
    bodies = []
    paired = zip(headings or [""] * len(rows), rows, strict=True)
    for heading, group in groupby(paired, key=lambda pair: pair[0]):
        body = [
            tag(
                "tr",
                tag("th", row[0], scope="row"),
                *(tag("td", text, class_=kind) for text, kind in zip(row[1:], classes[1:], strict=True)),
            )
            for _, row in group
        ]
        above = [tag("tr", tag("th", heading, scope="rowgroup", colspan=len(headers), class_="heading"))]
        bodies.append(tag("tbody", *(above if heading else []), *body))
    inner = tag("table", tag("caption", caption), tag("thead", head), *bodies)
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)


def script_json(value: object) -> Markup:
    """Return JSON that may stand inside a script element: nothing in it can end or begin an element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _text(value: Value) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
