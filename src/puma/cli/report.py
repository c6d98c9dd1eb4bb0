"""``puma report``, ``puma curves`` and ``puma trace``: results as a page, as curves, and back to what made them."""

import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from puma.cli.flags import check_output
from puma.errors import PumaError
from puma.report import MAX_SAMPLES, draw_curves, printable_text, write_report
from puma.trace import format_trace, trace_file


def write_page(
    results: Positional[tuple[Path, ...]],
    /,
    *,
    out: Path = Path("report.html"),
    title: str | None = None,
    max_samples: int = MAX_SAMPLES,
    open_: Annotated[bool, arg(name="open")] = False,
    force: bool = False,
) -> None:
    """Write one self-contained HTML page: results, training curves, margins, strengths, classes, a gallery.

    Args:
        results: run folders, folders that hold runs, margins*.parquet, plan*.parquet and pools, or experiment.json.
        out: the .html file to write; needs no network and no other file.
        title: heading of the page.
        max_samples: the gallery shows at most so many samples, the telling ones first.
        open_: show the page in the browser.
        force: replace a file that is not a report.
    """
    path = write_report(results, out, title=title, max_samples=max_samples, force=force, show=True)
    print(f"report: {printable_text(path)} ({path.stat().st_size / 1e6:.1f} MB)")
    if open_:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


def draw_runs(runs: Positional[tuple[Path, ...]], /, *, out: Path = Path("curves.png")) -> None:
    """Draw accuracy, robustness, loss and what else was recorded over training, for several runs.

    Args:
        runs: folders of runs of puma train; finished or not.
        out: the PNG, SVG or PDF to write.
    """
    if not runs:
        raise PumaError("give at least one run.")
    check_output("--out", out, ".png", ".svg", ".pdf")
    print(f"{', '.join(draw_curves(runs, out))}\npicture: {out}")


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
