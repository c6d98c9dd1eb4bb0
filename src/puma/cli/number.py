"""Numbers as people type them: every flag that takes one takes ``8/255`` as well as ``0.03``."""

from typing import Any

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from puma.errors import PumaError

REGISTRY = ConstructorRegistry()


def parse_number(text: str) -> float:
    """Read a number or a fraction."""
    top, slash, bottom = text.partition("/")
    try:
        return float(top) / float(bottom) if slash else float(top)
    except (ValueError, ZeroDivisionError) as error:
        raise PumaError(f"expected a number such as 0.03 or 8/255, got {text!r}.") from error


@REGISTRY.primitive_rule
def number(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Tell tyro how to read a float."""
    if kind.type is not float:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="NUMBER",
        instance_from_str=lambda words: parse_number(words[0]),
        is_instance=lambda value: isinstance(value, float | int) and not isinstance(value, bool),
        str_from_instance=lambda value: [f"{value:.6g}"],
    )
