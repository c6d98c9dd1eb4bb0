"""``puma trace``: from a result back to its pools and models, and which link is broken."""

import sys
from pathlib import Path

from tyro.conf import Positional

from puma.trace import format_trace, trace_file


def print_trace(made: Positional[Path], /) -> None:
    """Print what a file or folder was made from, back to pools and models, and say which link is broken.

    Exits with 0 when all links that are known hold, with 1 when one is broken.

    Args:
        made: a pool, margins, scores, a plan, a run, a generator, or an evaluation (its folder or file).
    """
    item = trace_file(made)
    print(format_trace(item))
    if any(part.is_broken for part in item.list_items()):
        sys.exit(1)
