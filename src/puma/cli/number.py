"""Numbers as people type them: ``8/255`` as well as ``0.03``."""

from typing import Annotated

from tyro.conf import arg

from puma.errors import PumaError


def parse_number(text: str) -> float:
    """Read a number or a fraction."""
    top, slash, bottom = text.partition("/")
    try:
        return float(top) / float(bottom) if slash else float(top)
    except (ValueError, ZeroDivisionError) as error:
        raise PumaError(f"expected a number such as 0.03 or 8/255, got {text!r}.") from error


def parse_optional(text: str) -> float | None:
    """Read a number, a fraction, or ``none``."""
    return None if text.lower() == "none" else parse_number(text)


Number = Annotated[float, arg(constructor=parse_number, metavar="NUMBER")]
OptionalNumber = Annotated[float | None, arg(constructor=parse_optional, metavar="NUMBER")]
