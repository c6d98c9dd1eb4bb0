"""How a page writes radii and margins: in steps of 1/255, as pixels are stored, or as shares of the pixel range."""

STEPS = 255


def format_radius(eps: float, norm: str | None) -> str:
    """Return a radius as people write it: 8/255 in the maximum norm, a plain number in others."""
    return f"{round(eps * STEPS, 2):g}/{STEPS}" if norm == "linf" else f"{eps:.4g}"
