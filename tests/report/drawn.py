"""A chart as it was drawn, read back in the units of its axes."""

import re
from xml.etree import ElementTree

import numpy as np


class Chart:
    """The picture of a figure, found by the beginning of its title."""

    def __init__(self, page: str, title: str) -> None:
        found = re.search(rf'<svg[^>]* aria-label="{re.escape(title)}.*?</svg>', page, re.DOTALL)
        assert found is not None, title
        self.root = ElementTree.fromstring(found[0])
        for group in self.root.findall("g[@class='in255']"):  # the same axis in the other unit
            self.root.remove(group)
        self.across = self._scale("tick middle", "x")
        self.up = self._scale("tick end", "y")

    def _scale(self, kind: str, axis: str) -> tuple[float, float]:
        """Value = slope * place + offset, out of the ticks' words."""
        found = [tick for tick in self.root.iter("text") if tick.get("class") == kind]
        ticks = [tick for tick in found if tick.text not in ("≤", "≥")]
        values = [_value(tick.text or "") for tick in ticks]
        places = [float(tick.get(axis, "")) - (4 if axis == "y" else 0) for tick in ticks]
        slope, offset = np.polyfit(places, values, 1)
        return float(slope), float(offset)

    def x(self, place: str | None) -> float:
        return self.across[0] * float(place or "nan") + self.across[1]

    def y(self, place: str | None) -> float:
        return self.up[0] * float(place or "nan") + self.up[1]

    def of(self, tag: str, kind: str) -> list[ElementTree.Element]:
        return [element for element in self.root.iter(tag) if (element.get("class") or "").startswith(kind)]

    def told(self, tag: str, kind: str) -> list[str]:
        """What is said on pointing at these."""
        return [element.findtext("title") or "" for element in self.of(tag, kind)]

    def counted(self, kind: str) -> int:
        """Samples in all bars of a kind."""
        return sum(int(words.split(": ")[1].split()[0].replace(",", "")) for words in self.told("rect", kind))


def _value(words: str) -> float:
    units = {"k": 1e3, "M": 1e6}
    return float(words.rstrip("%kM")) * units.get(words[-1], 1.0)
