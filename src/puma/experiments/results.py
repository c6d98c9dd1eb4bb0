"""``results/<experiment>.csv``: a line per row and quantity, with mean, spread over seeds, and the paper's value."""

import csv
import math
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from puma.errors import PumaError

FORMAT = "puma-results-1"
COLUMNS = (
    "format", "experiment", "preset", "dataset", "changed", "row", "at", "quantity", "mean", "spread", "seeds",
    "by_seed", "paper", "paper_spread", "commit", "device", "puma", "torch",
)  # fmt: skip


Stored = Mapping[str, str]
Keep = Callable[[Stored], bool]


@dataclass(frozen=True)
class Line:
    """One quantity of one row. Accuracies are fractions; ``spread`` is the standard deviation over seeds."""

    row: str
    quantity: str
    by_seed: Mapping[int, float]
    at: float | None = None
    paper: float | None = None
    paper_spread: float | None = None

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return statistics.fmean(self.by_seed.values())

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None of a single one."""
        return statistics.stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None


@dataclass(frozen=True)
class Origin:
    """What made the lines of a results file; lines of another preset, data set or change are kept beside them."""

    experiment: str
    preset: str
    dataset: str
    changed: str
    device: str

    def columns(self) -> dict[str, str]:
        """Return the columns that all its lines share."""
        made_by = {"commit": commit(), "puma": version("puma-pruning"), "torch": version("torch")}
        return {"format": FORMAT, **vars(self), **made_by}

    def made(self, stored: Stored) -> bool:
        """Tell whether a stored line has this origin, on whatever device."""
        return all(stored[name] == getattr(self, name) for name in ("experiment", "preset", "dataset", "changed"))


def commit() -> str:
    """Return the commit of the source tree, marked if files have changed since; "" outside of a repository."""
    here = Path(__file__).resolve().parent
    try:
        ask = ["git", "-C", str(here), "describe", "--always", "--dirty=+changes", "--exclude=*"]
        said = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=10)
        tracked = subprocess.run(["git", "-C", str(here), "ls-files", "--error-unmatch", __file__], capture_output=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.stdout.strip() if tracked.returncode == 0 else ""


def write_results(path: Path, origin: Origin, lines: Sequence[Line], keep: Keep = lambda _: False) -> None:
    """Replace the lines of one origin in a file, whole or not at all; those that ``keep`` picks stay."""
    before = read_results(path) if path.is_file() else []
    others = [stored for stored in before if not origin.made(stored) or keep(stored)]
    shared = origin.columns()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(others)
        writer.writerows({**shared, **_cells(line)} for line in lines)
    partial.replace(path)


def read_results(path: Path) -> list[dict[str, str]]:
    """Return the lines of a results file; one of another version raises."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            header, rows = tuple(reader.fieldnames or ()), list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise PumaError(f"{path} is not a results file ({error}); move it away, or choose another --out.") from error
    whole = all(None not in row and None not in row.values() for row in rows)
    if header != COLUMNS or any(row["format"] != FORMAT for row in rows) or not whole:
        raise PumaError(
            f"{path} is not a results file of this version ({FORMAT}): move it away, or choose another --out."
        )
    return rows


def stored_lines(path: Path, origin: Origin) -> list[Line]:
    """Return the lines of one origin as they were written."""
    found = []
    for stored in read_results(path):
        if origin.made(stored):
            pairs = (pair.partition(":") for pair in stored["by_seed"].split())
            by_seed = {int(seed): float(value) for seed, _, value in pairs}
            numbers = (stored[name] for name in ("at", "paper", "paper_spread"))
            at, paper, spread = (float(number) if number else None for number in numbers)
            found.append(Line(stored["row"], stored["quantity"], by_seed, at, paper, spread))
    return found


def _cells(line: Line) -> dict[str, str]:
    return {
        "row": line.row,
        "at": at_text(line.at),
        "quantity": line.quantity,
        "mean": _number(line.mean),
        "spread": _number(line.spread),
        "seeds": str(len(line.by_seed)),
        "by_seed": " ".join(f"{seed}:{_number(value)}" for seed, value in sorted(line.by_seed.items())),
        "paper": _number(line.paper),
        "paper_spread": _number(line.paper_spread),
    }


def at_text(at: float | None) -> str:
    """Write a place on the horizontal axis as the results have it."""
    return _number(at)


def _number(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.6g}"
