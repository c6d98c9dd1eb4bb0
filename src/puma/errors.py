"""The exceptions that a user is meant to read."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_INSTALLED_AS = {"PIL": "pillow", "sklearn": "scikit-learn"}  # packages that are imported by another name


class PumaError(ValueError):
    """Bad input, told in one sentence: what was expected, what came, what to change.

    Examples:
        >>> puma.prune([0.1, 0.2], fraction=20)
        Traceback (most recent call last):
        puma.errors.PumaError: fraction must lie in [0, 1), got 20.
        >>> issubclass(puma.PumaError, ValueError)
        True

    The command line prints the sentence and exits with code 2; library callers can catch it, also as a ValueError.
    """


class Interrupted(Exception):
    """Work that a signal has ended in good order: the sentence says what is saved and how to go on.

    The command line prints the sentence and exits with 128 plus the number of the signal.
    """

    def __init__(self, sentence: str, signal_number: int) -> None:
        super().__init__(sentence)
        self.signal_number = signal_number


def unknown_name(kind: str, name: Any, known: list[str]) -> PumaError:
    """Build the error for a name that is not in a list, with the nearest known ones offered."""
    import difflib

    near = difflib.get_close_matches(name, known, n=2, cutoff=0.5) if isinstance(name, str) else []
    hint = f"did you mean {' or '.join(repr(n) for n in near)}? " if near else ""
    return PumaError(f"unknown {kind} {name!r}; {hint}known: {', '.join(known)}.")


def missing_extra(package: str, extra: str) -> PumaError:
    """Build the error for a package that comes with an extra of PUMA and is not installed."""
    return PumaError(f"this needs {package}; install it with: pip install 'puma-pruning[{extra}]'.")


@contextmanager
def tell_missing(extra: str) -> Iterator[None]:
    """Within the block a package that cannot be imported is told by name, with the extra that brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "puma"):
            raise
        raise missing_extra(_INSTALLED_AS.get(package, package), extra) from error
