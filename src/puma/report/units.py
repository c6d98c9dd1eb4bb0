"""How a page writes radii and margins: in steps of 1/255, as pixels are stored, or as shares of the pixel range.

Only the maximum norm has both; what is written in both carries the classes that the page's switch shows or hides.
"""

import math

from puma.report.svg import IN_SHARES, IN_STEPS, STEPS, Markup, join_markup, make_tag

USUAL_EPS = {"linf": 8 / 255, "l2": 0.5}  # what most papers attack small images with


def format_radius(eps: float, norm: str | None) -> str:
    """Return a radius as people write it: 8/255 in the maximum norm, a plain number in others."""
    return f"{round(eps * STEPS, 2):g}/{STEPS}" if norm == "linf" else f"{eps:.4g}"


def write_radius(eps: float, norm: str | None) -> Markup:
    """Return a radius in both units."""
    return _write_both(format_radius(eps, norm), f"{eps:.4g}", norm)


def write_distance(value: float, norm: str | None, *, signed: bool = True) -> Markup:
    """Return a margin or strength in both units, with its sign where ``signed``."""
    if not math.isfinite(value):
        return join_markup("–" if math.isnan(value) else "+∞" if value > 0 else "−∞")
    sign = "+" if signed else ""
    small = ".1e" if value and abs(value) < 1e-4 else ".4f"
    steps, share = f"{STEPS * value:{sign}.2f}/{STEPS}", f"{value:{sign}{small}}"
    return _write_both(steps.replace("-", "−"), share.replace("-", "−"), norm)


def _write_both(steps: str, share: str, norm: str | None) -> Markup:
    if norm != "linf":
        return join_markup(share)
    return join_markup(make_tag("span", steps, class_=IN_STEPS), make_tag("span", share, class_=IN_SHARES))
