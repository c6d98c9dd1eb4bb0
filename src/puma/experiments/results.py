"""``results/<experiment>.csv``: a line per row and quantity, with mean, spread over seeds, and the paper's value."""

import csv
import math
import os
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from puma.errors import PumaError
from puma.experiments.locks import locked

FORMAT = "puma-results-1"
COLUMNS = (
    "format", "experiment", "preset", "dataset", "changed", "row", "at", "quantity", "mean", "spread", "seeds",
    "by_seed", "paper", "paper_spread", "commit", "device", "puma", "torch",
)  # fmt: skip


Stored = Mapping[str, str]


@dataclass(frozen=True)
class Line:
    """One quantity of one row. Accuracies are fractions; ``spread`` is the standard deviation over seeds.

    ``commit`` names the commits of the code that made its numbers.
    """

    row: str
    quantity: str
    by_seed: Mapping[int, float]
    at: float | None = None
    paper: float | None = None
    paper_spread: float | None = None
    commit: str = ""

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return statistics.fmean(self.by_seed.values())

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None of a single one."""
        return statistics.stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None


Keep = Callable[[Line], bool]


@dataclass(frozen=True)
class Provenance:
    """What made the lines of a results file; lines of another preset, data set or change are kept beside them."""

    experiment: str
    preset: str
    dataset: str
    changed: str
    device: str

    def columns(self) -> dict[str, str]:
        """Return the columns that all its lines share."""
        return {"format": FORMAT, **vars(self), "puma": version("puma-pruning"), "torch": version("torch")}

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


def checked_table(out: Path, name: str) -> Path:
    """Return where the results go; a folder or file that cannot be written to is told before hours of work."""
    out.mkdir(parents=True, exist_ok=True)
    table = out / f"{name}.csv"
    if table.exists():
        read_results(table)
    if not os.access(out, os.W_OK):
        raise PumaError(f"the folder {out} cannot be written to; choose another --out.")
    return table


def write_results(path: Path, origin: Provenance, lines: Sequence[Line], keep: Keep = lambda _: False) -> None:
    """Renew lines of a file, whole or not at all.

    What it has of another origin stays. Of this one the lines that ``keep`` picks stay, and renewed lines keep the
    values of seeds that they do not have themselves.
    """
    shared = origin.columns()
    with locked(path):
        before = read_results(path) if path.is_file() else []
        earlier = {_place(line): line for line in map(_line, filter(origin.made, before))}
        renewed = [_joined(line, earlier.get(_place(line))) for line in lines]
        places = {_place(line) for line in renewed}
        spared = {place for place, line in earlier.items() if keep(line) and place not in places}
        others = [stored for stored in before if not origin.made(stored) or _place(_line(stored)) in spared]
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        with partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(others)
            writer.writerows({**shared, **_cells(line)} for line in renewed)
        partial.replace(path)


def _place(line: Line) -> tuple[str, str, str]:
    return line.row, at_text(line.at), line.quantity


def _joined(line: Line, earlier: Line | None) -> Line:
    """Add the seeds of an earlier line that this one does not have."""
    if earlier is None or not earlier.by_seed.keys() - line.by_seed.keys():
        return line
    commits = sorted({*line.commit.split(), *earlier.commit.split()})
    return replace(line, by_seed={**earlier.by_seed, **line.by_seed}, commit=" ".join(commits))


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


def stored_lines(path: Path, origin: Provenance) -> list[Line]:
    """Return the lines of one origin as they were written."""
    return [_line(stored) for stored in read_results(path) if origin.made(stored)]


def _line(stored: Stored) -> Line:
    pairs = (pair.partition(":") for pair in stored["by_seed"].split())
    by_seed = {int(seed): float(value) for seed, _, value in pairs}
    numbers = (stored[name] for name in ("at", "paper", "paper_spread"))
    at, paper, spread = (float(number) if number else None for number in numbers)
    return Line(stored["row"], stored["quantity"], by_seed, at, paper, spread, stored["commit"])


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
        "commit": line.commit,
    }


def at_text(at: float | None) -> str:
    """Write a place on the horizontal axis as the results have it."""
    return _number(at)


def _number(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.6g}"
