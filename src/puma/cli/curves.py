"""``puma curves``: training curves of several runs in one picture."""

from pathlib import Path

from tyro.conf import Positional

from puma.errors import PumaError
from puma.report.training_curves import draw_curves


def curves(runs: Positional[tuple[Path, ...]], /, *, out: Path = Path("curves.png")) -> None:
    """Draw accuracy, robustness, loss and what else was recorded over training, for several runs.

    Args:
        runs: folders of runs of puma train; finished or not.
        out: the PNG, SVG or PDF to write.
    """
    if not runs:
        raise PumaError("give at least one run.")
    if out.suffix not in (".png", ".svg", ".pdf"):
        raise PumaError(f"--out must end in .png, .svg or .pdf, got {out.name!r}.")
    print(f"{', '.join(draw_curves(runs, out))}\npicture: {out}")
