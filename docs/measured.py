"""Write the measured numbers into the pages that show them: ``python docs/measured.py`` after ``puma run``.

The tables of docs/reproduce.md and README.md stand between a pair of marks and come from results/*.csv alone, so a
number on a page is always one that a command has written. The figures of results/ are copied beside the pages.
"""

import importlib
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

from puma.experiments import EXPERIMENTS
from puma.experiments.results import read_results
from puma.experiments.spec import Experiment

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"docs/reproduce.md": "everything", "README.md": "summary"}
PICTURES = ROOT / "docs" / "images" / "reproduce"
_MARKS = re.compile(r"(<!-- numbers: .*? -->\n)(.*?)(<!-- end of numbers -->)", flags=re.S)

Stored = Mapping[str, str]


def main() -> None:
    """Bring pictures and pages up to date."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for picture in sorted((ROOT / "results").glob("fig*-small-*.png")):
        shutil.copyfile(picture, PICTURES / picture.name)
    for page in PAGES:
        path = ROOT / page
        path.write_text(updated(page, path.read_text(encoding="utf-8")), encoding="utf-8")


def updated(page: str, text: str) -> str:
    """Return a page with its numbers put in anew."""
    table = summary() if PAGES[page] == "summary" else everything()
    return _MARKS.sub(lambda found: f"{found[1]}{table}\n{found[3]}", text)


def summary() -> str:
    """Return the rows of the experiment that sums the method up."""
    header = "| | data | accuracy | robustness | seeds |\n|---|---|---|---|---|"
    lines = [
        f"| {row} | {dataset} | {ours['clean_accuracy']} | {ours['robust_accuracy']} | {ours['seeds']} |"
        for dataset, row, ours, _ in finals("tab-summary")
    ]
    return "\n".join([header, *lines])


def everything() -> str:
    """Return a table per experiment: rows, the paper's values, ours."""
    return "\n\n".join(section for name in EXPERIMENTS if (section := section_of(name)))


def section_of(name: str) -> str:
    """Return the heading, command, table and picture of one experiment; nothing if it was not run."""
    experiment = EXPERIMENTS[name]
    path = ROOT / "results" / f"{name}.csv"
    if not path.is_file():
        return ""
    pictures = sorted(PICTURES.glob(f"{name}-small-*.png"))
    shown = "".join(f"\n\n![{experiment.title}](images/reproduce/{picture.name})" for picture in pictures)
    command, found = told_by_the_file(name)
    parts = [f"### {name}: {experiment.title}", f"`{command}`", f"The paper: {experiment.expect}", found]
    if isinstance(experiment, Experiment) and experiment.figure in ("none", "lines", "curves"):
        rows = list(finals(name))
        header = "| row | paper | ours | seeds | data |\n|---|---|---|---|---|"
        lines = [
            f"| {row} | {paper} | {ours['clean_accuracy']} / {ours['robust_accuracy']} | {ours['seeds']} | {dataset} |"
            for dataset, row, ours, paper in rows
        ]
        parts.append("\n".join([header, *lines]))
    elif isinstance(experiment, Experiment):
        parts.append(margins_table(path))
    return "\n\n".join(parts) + shown


def told_by_the_file(name: str) -> tuple[str, str]:
    """Return the command and the result to expect, with which an experiment's file opens."""
    module = importlib.import_module(f"puma.experiments.{name.replace('-', '_')}")
    text = textwrap.dedent((module.__doc__ or "").partition("\n")[2]).strip()
    command, _, expected = text.partition("\n\n")
    return command.partition("  #")[0].strip(), expected.strip()


def finals(name: str) -> Iterator[tuple[str, str, dict[str, str], str]]:
    """Yield data set, row, our accuracies and the paper's, in percent, of the preset small as it stands."""
    rows: dict[tuple[str, str, str], dict[str, Stored]] = {}
    path = ROOT / "results" / f"{name}.csv"
    for line in read_results(path) if path.is_file() else ():
        if (
            line["preset"] == "small"
            and not line["changed"]
            and line["quantity"] in ("clean_accuracy", "robust_accuracy")
        ):
            rows.setdefault((line["dataset"], line["row"], line["at"]), {})[line["quantity"]] = line
    for (dataset, row, at), found in rows.items():
        ours = {quantity: percent(line) for quantity, line in found.items()}
        ours["seeds"] = found["clean_accuracy"]["seeds"]
        papers = [found[quantity]["paper"] for quantity in ("clean_accuracy", "robust_accuracy")]
        paper = " / ".join(f"{100 * float(value):.2f}" for value in papers) if all(papers) else ""
        label = f"{row}, pruned {100 * float(at):g} %" if at else row
        yield dataset, label, ours, paper


def margins_table(path: Path) -> str:
    """Return the quantiles of margins by row, times 255."""
    names = ("margin_q05", "margin_q25", "margin_q50", "margin_q75", "margin_q95")
    lines = [line for line in read_results(path) if line["preset"] == "small" and not line["changed"]]
    rows = dict.fromkeys(line["row"] for line in lines)
    cells = {(line["row"], line["quantity"]): 255 * float(line["mean"]) for line in lines}
    header = "| margins x 255 | 5 % | 25 % | median | 75 % | 95 % |\n|---|---|---|---|---|---|"
    return "\n".join(
        [header, *(f"| {row} | {' | '.join(f'{cells[row, name]:.2f}' for name in names)} |" for row in rows)]
    )


def percent(line: Stored) -> str:
    """Return mean and spread of a line in percent."""
    spread = f" ± {100 * float(line['spread']):.2f}" if line["spread"] else ""
    return f"{100 * float(line['mean']):.2f}{spread}"


if __name__ == "__main__":
    main()
