"""``results/<experiment>.csv``: a line per row, quantity and seed; means, spreads and figures are made from it."""

import csv
import io
import math
import os
import re
import statistics
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from puma.drawing import COLOURS, MARKERS
from puma.errors import PumaError, tell_missing
from puma.experiments.presets import ExperimentSetting
from puma.experiments.spec import Experiment
from puma.files import lock, read_bytes, replace_atomically
from puma.margins import compare_margins, count_histograms, draw_joint_margins, draw_picture, read_margins

FORMAT = "puma-results-2"
_ORIGIN = ("experiment", "preset", "dataset", "changed")
COLUMNS = (
    "format", *_ORIGIN, "row", "at", "quantity", "seed", "value", "paper", "paper_spread", "commit", "device", "puma",
    "torch",
)  # fmt: skip
# a line per row and quantity, all seeds in one cell: written until version 0.1
_WITH = "_with "  # between a quantity of two rows and the other row
_OLD_FORMAT = "puma-results-1"
_OLD_COLUMNS = (
    "format", *_ORIGIN, "row", "at", "quantity", "mean", "spread", "seeds", "by_seed", "paper", "paper_spread",
    "commit", "device", "puma", "torch",
)  # fmt: skip
_NAMED = ("cifar10-eps2", "cifar10-eps8", "cifar10-eps2-scratch")  # presets that are a data set and a radius
_SHOWN = {"clean_accuracy": "accuracy", "robust_accuracy": "robustness", "autoattack_accuracy": "AutoAttack"}

Place = tuple[str, float | None, str]  # row, place on the horizontal axis, quantity


@dataclass(frozen=True)
class ResultOrigin:
    """What lines are results of; those of another preset, data set or change stand beside them in a file."""

    experiment: str
    preset: str
    dataset: str
    changed: str = ""


def name_setting(origin: ResultOrigin) -> str | None:
    """Return what pages call the setting of results: its data set or preset; None for those that they do not show.

    Shown are the presets small and small-real and those of CIFAR-10, as they stand or with trainings of another length.
    """
    own = {"small": origin.dataset, "small-real": f"{origin.dataset}, all real"}
    name = own.get(origin.preset, origin.preset if origin.preset in _NAMED else None)
    if name is None or not origin.changed:
        return name
    length = re.fullmatch(r"samples_seen (\d+)", origin.changed)
    return None if length is None else f"{name}, {int(length[1]):,} samples seen"


@dataclass(frozen=True)
class ResultLine:
    """One quantity of one row and seed; accuracies are fractions, with the six digits that the file has.

    Attributes:
        origin: the experiment and its size.
        row: the row; for figures the line.
        quantity: what was measured.
        seed: the seed.
        value: the number.
        at: place on the horizontal axis, for figures.
        paper: what the paper reports.
        paper_spread: and its spread.
        commit: the commits of the code that trained and evaluated, as far as they are known.
        device: what it ran on.
        puma: version of this package.
        torch: version of PyTorch.
    """

    origin: ResultOrigin
    row: str
    quantity: str
    seed: int
    value: float
    at: float | None = None
    paper: float | None = None
    paper_spread: float | None = None
    commit: str = ""
    device: str = "cpu"
    puma: str = field(default_factory=lambda: version("puma-pruning"))
    torch: str = field(default_factory=lambda: version("torch"))

    @property
    def place(self) -> Place:
        """Where it stands in a table of its origin, whatever the seed."""
        return self.row, self.at, self.quantity


@dataclass(frozen=True)
class ResultSummary:
    """One quantity of one row over its seeds."""

    origin: ResultOrigin
    row: str
    at: float | None
    quantity: str
    by_seed: Mapping[int, float]
    paper: float | None
    commit: str

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return statistics.fmean(self.by_seed.values())

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None of a single one."""
        return statistics.stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None


def summarise_results(lines: Iterable[ResultLine]) -> list[ResultSummary]:
    """Put the seeds of each row and quantity together."""
    groups: dict[tuple[ResultOrigin, Place], list[ResultLine]] = {}
    for line in lines:
        groups.setdefault((line.origin, line.place), []).append(line)
    return [
        ResultSummary(
            origin,
            *place,
            by_seed={line.seed: line.value for line in group},
            paper=group[-1].paper,
            commit=" ".join(sorted({word for line in group for word in line.commit.split()})),
        )
        for (origin, place), group in groups.items()
    ]


def find_commit() -> str:
    """Return the commit of the source tree, marked if files have changed since; "" outside of a repository."""
    here = Path(__file__).resolve().parent
    try:
        ask = ["git", "-C", str(here), "describe", "--always", "--dirty=+changes", "--exclude=*"]
        said = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=10)
        tracked = subprocess.run(["git", "-C", str(here), "ls-files", "--error-unmatch", __file__], capture_output=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.stdout.strip() if tracked.returncode == 0 else ""


def check_table(out: Path, name: str) -> Path:
    """Return where the results go; a folder or file that cannot be written to is told before hours of work."""
    if out.is_file():
        raise PumaError(f"--out {out} is a file; give a folder.")
    out.mkdir(parents=True, exist_ok=True)
    table = out / f"{name}.csv"
    if table.exists():
        read_results_file(table)
    if not os.access(out, os.W_OK):
        raise PumaError(f"the folder {out} cannot be written to; choose another --out.")
    return table


def write_results_file(
    path: Path, origin: ResultOrigin, lines: Sequence[ResultLine], keep: Callable[[Place], bool] = lambda _: False
) -> None:
    """Renew lines of a file, whole or not at all.

    What it has of another origin stays. Of this one, seeds that the new lines do not have stay where a new line stands,
    and everything else where ``keep`` says so.
    """
    renewed: dict[Place, dict[int, ResultLine]] = {}
    for line in lines:
        renewed.setdefault(line.place, {})[line.seed] = line
    with lock(path, wait=True):
        others = []
        for line in read_results_file(path) if path.is_file() else ():
            if line.origin == origin and line.place in renewed:
                seeds = renewed[line.place]
                newest = next(iter(seeds.values()))
                seeds.setdefault(line.seed, replace(line, paper=newest.paper, paper_spread=newest.paper_spread))
            elif line.origin != origin or keep(line.place):
                others.append(line)
        ours = [seeds[seed] for seeds in renewed.values() for seed in sorted(seeds)]
        with replace_atomically(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows(_write_cells(line) for line in [*others, *ours])


def read_results_file(path: Path) -> list[ResultLine]:
    """Return the lines of a results file, also of one that an earlier version wrote; anything else raises."""
    content = read_bytes(path, "a results file")
    try:
        reader = csv.DictReader(io.StringIO(content.decode(), newline=""))
        header, rows = tuple(reader.fieldnames or ()), list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise PumaError(f"{path} is not a results file ({error}); move it away, or choose another --out.") from error
    old = header == _OLD_COLUMNS
    whole = all(None not in row and None not in row.values() for row in rows)
    expected = _OLD_FORMAT if old else FORMAT
    if header not in (COLUMNS, _OLD_COLUMNS) or any(row["format"] != expected for row in rows) or not whole:
        raise PumaError(
            f"{path} is not a results file of this version ({FORMAT}): move it away, or choose another --out."
        )
    try:
        return [line for row in rows for line in _read_cells(row, old=old)]
    except ValueError as error:
        raise PumaError(f"{path} is not a results file ({error}); move it away, or choose another --out.") from error


def _read_cells(cells: Mapping[str, str], *, old: bool) -> Iterable[ResultLine]:
    pairs = [pair.split(":") for pair in cells["by_seed"].split()] if old else [(cells["seed"], cells["value"])]
    numbers = (cells[name] for name in ("at", "paper", "paper_spread"))
    at, paper, spread = (float(number) if number else None for number in numbers)
    origin = ResultOrigin(*(cells[name] for name in _ORIGIN))
    for seed, value in pairs:
        yield ResultLine(
            origin, cells["row"], cells["quantity"], int(seed), float(value), at, paper, spread,
            *(cells[name] for name in ("commit", "device", "puma", "torch")),
        )  # fmt: skip


def _write_cells(line: ResultLine) -> tuple[str, ...]:
    origin = (getattr(line.origin, name) for name in _ORIGIN)
    value = format_number(line.value)
    paper, spread = format_number(line.paper), format_number(line.paper_spread)
    place = (line.row, format_number(line.at), line.quantity)
    return (
        FORMAT,
        *origin,
        *place,
        str(line.seed),
        value,
        paper,
        spread,
        line.commit,
        line.device,
        line.puma,
        line.torch,
    )


def format_number(value: float | None) -> str:
    """Write a number with the six digits that results have, nothing for none."""
    return "" if value is None or math.isnan(value) else f"{value:.6g}"


def format_results(title: str, origin: ResultOrigin, path: Path) -> str:
    """Return a table of mean and spread in percent, ours beside the paper's; margins where nothing was trained."""
    stored = summarise_results(line for line in read_results_file(path) if line.origin == origin)
    finals = [line for line in stored if not line.quantity.startswith("held_out") and _WITH not in line.quantity]
    present = {line.quantity for line in finals}
    shown = {name: text for name, text in _SHOWN.items() if name in present} or {
        name: name.replace("_", " ") for name in dict.fromkeys(line.quantity for line in finals)
    }
    cells: dict[tuple[str, float | None], dict[str, ResultSummary]] = {}
    for line in finals:
        cells.setdefault((line.row, line.at), {})[line.quantity] = line
    names = [row if at is None else f"{row}, {at:g}" for row, at in cells]
    wide = max(len(name) for name in [*names, ""]) + 2
    papers = any(line.paper is not None for line in finals)
    header = f"{'':<{wide}}" + "".join(f"{text:>20}" + (f"{'paper':>9}" if papers else "") for text in shown.values())
    lines = [f"{title} ({origin.preset}, {origin.dataset})", header]
    for name, by_quantity in zip(names, cells.values(), strict=True):
        row = (_format_cell(by_quantity.get(quantity), papers=papers) for quantity in shown)
        lines.append(f"{name:<{wide}}{''.join(row)}".rstrip())
    return "\n".join([*lines, *_format_pairs(stored)])


def _format_pairs(stored: Iterable[ResultSummary]) -> Iterator[str]:
    """Say how alike rows are, a line per pair."""
    pairs: dict[tuple[str, str], dict[str, ResultSummary]] = {}
    for line in stored:
        quantity, between, other = line.quantity.partition(_WITH)
        if between:
            pairs.setdefault((line.row, other), {})[quantity] = line
    width = max([len(f"{row} : {other}") for row, other in pairs], default=0) + 2
    for number, ((row, other), found) in enumerate(pairs.items()):
        if not number:
            yield " " * width + "".join(f"{quantity.replace('_', ' '):>26}" for quantity in found)
        cells = (_format_cell(line, papers=False) for line in found.values())
        yield f"{f'{row} : {other}':<{width}}" + "".join(f"{cell:>26}" for cell in cells)


def _format_cell(line: ResultSummary | None, *, papers: bool) -> str:
    if line is None:
        return " " * (29 if papers else 20)
    scale, digits = (100.0, 2) if line.quantity.endswith(("accuracy", "share")) else (1.0, 4)
    text = f"{line.mean * scale:.{digits}f}"
    text += f" +- {line.spread * scale:.{digits}f} ({len(line.by_seed)})" if line.spread is not None else ""
    paper = "" if line.paper is None else f"{line.paper * scale:.{digits}f}"
    return f"{text:>20}{paper:>9}" if papers else f"{text:>20}"


_PANELS = {
    "lines": {"clean_accuracy": "accuracy", "robust_accuracy": "robustness (C&W)"},
    "curves": {"held_out_clean_accuracy": "held-out accuracy", "held_out_robust_accuracy": "held-out robustness"},
}


def draw_figure(
    experiment: Experiment,
    lines: Sequence[ResultSummary],
    margins: Mapping[str, Path],
    path: Path,
    setting: ExperimentSetting,
) -> Path:
    """Draw the figure of an experiment: its lines, or the margins of the first seed of every row."""
    if experiment.figure == "histogram":
        return draw_margin_histograms(margins, path, setting)
    if experiment.figure == "heat map":
        tables = {row: read_margins(file) for row, file in margins.items()}
        if len(tables) > 1:
            draw_joint_margins(compare_margins(tables, eps=setting.eps), path)
        return path
    panels = _PANELS[experiment.figure]
    title = f"{experiment.title} (preset {setting.preset}, {setting.dataset})"
    return draw_lines(lines, panels, path, title=title, axis=experiment.axis)


def draw_lines(lines: Sequence[ResultSummary], panels: dict[str, str], path: Path, *, title: str, axis: str) -> Path:
    """Draw a panel per quantity and a line per row; bars are the spread over seeds."""
    with tell_missing("report"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(panels), 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    names = list(dict.fromkeys(line.row for line in lines if line.quantity in panels and line.at is not None))
    for axes, (quantity, label) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for index, name in enumerate(names):
            points = sorted(
                (line for line in lines if (line.row, line.quantity) == (name, quantity) and line.at is not None),
                key=lambda line: line.at or 0.0,
            )
            axes.errorbar(
                [line.at for line in points],
                [100 * line.mean for line in points],
                yerr=[100 * (line.spread or 0.0) for line in points],
                color=COLOURS[index % len(COLOURS)],
                marker=MARKERS[index % len(MARKERS)],
                markersize=5,
                linewidth=1.4,
                capsize=2,
                label=name,
            )
        axes.set(xlabel=axis, ylabel=f"{label}, %")
        axes.grid(alpha=0.3)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.suptitle(title, fontsize=11)
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path


def draw_margin_histograms(margins: Mapping[str, Path], path: Path, setting: ExperimentSetting) -> Path:
    """Draw the margins of every row over each other."""
    tables = {row: read_margins(file) for row, file in margins.items()}
    linf = setting.nets["main"].attack.norm == "linf"
    unit, label = (255.0, "margin x 255 (L_inf)") if linf else (1.0, "margin (L2)")
    draw_picture(count_histograms(tables), path, eps=setting.eps, unit=unit, label=label)
    return path
