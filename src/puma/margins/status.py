"""What a search can end with."""

from enum import IntEnum


class Status(IntEnum):
    """How the search for one sample ended. Only CROSSED comes with a measured margin."""

    CROSSED = 0
    NOT_CROSSED = 1
    ZERO_GRADIENT = 2
    NON_FINITE = 3
    CAPPED = 4
