"""Write the measured numbers into the pages that show them: ``python docs/measured.py`` after ``puma run``.

The tables of README.md and of some pages stand between a pair of marks and come from results/*.csv and
benchmarks/wrong_labels.csv alone, so a number on a page is always one that a command has written. The figures of
results/ are copied beside the pages.
"""

import csv
import importlib
import re
import shutil
import statistics
import textwrap
from collections.abc import Iterator
from pathlib import Path

from puma.experiments import BEYOND, EXPERIMENTS, Experiment
from puma.experiments.results import ResultSummary, name_setting, read_results_file, summarise_results
from puma.experiments.verdicts import (
    Claim,
    estimate_mean,
    find_efficiency,
    format_verdicts,
    judge_claims,
    judge_difference,
)

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "images" / "reproduce"
_HEADLINE_SEEDS = 3  # fewer are shown with the experiment, not on the first page
# what the place on the horizontal axis of a figure means, where it is not the pruned fraction
_AT = {
    "fig-plan-from": (100, "plan from {:g} %"),
    "fig-prune-beyond": (1, "beyond {:g} eps"),
    "fig-prune-distance": (1, "beyond {:g} eps"),
    "fig-margin-accuracy": (1, "margins by length {:g}"),
    "fig-label-noise": (100, "{:g} % wrong"),
}
_PRUNED = (100, "pruned {:g} %")
_REAL = "fashion-mnist-14px, all real"  # the setting with the longest curves of three seeds
_MARKS = re.compile(r"(<!-- numbers: .*? -->\n)(.*?)(<!-- end of numbers -->)", flags=re.S)


def main() -> None:
    """Bring pictures and pages up to date."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for picture in sorted((ROOT / "results").glob("*-small-*.png")):
        shutil.copyfile(picture, PICTURES / picture.name)
    for page in PAGES:
        path = ROOT / page
        path.write_text(update_page(page, path.read_text(encoding="utf-8")), encoding="utf-8")


def update_page(page: str, text: str) -> str:
    """Return a page with its numbers put in anew."""
    table = PAGES[page]()
    return _MARKS.sub(lambda found: f"{found[1]}{table}\n{found[3]}", text)


def format_summary() -> str:
    """Return the rows of the experiment that sums the method up."""
    header = "| | data | accuracy | robustness | seeds |\n|---|---|---|---|---|"
    finals = [final for final in list_finals("tab-summary") if int(final[2]["seeds"]) >= _HEADLINE_SEEDS]
    if any(setting.startswith("cifar10-") for setting, *_ in finals):  # the preset small has too small a net for it
        finals = [final for final in finals if final[0] != "cifar10"]
    whole = {setting for setting, *_ in finals}  # what was also run at half the length is shown with the experiment
    finals = [final for final in finals if _name_whole(final[0]) not in whole - {final[0]}]
    lines = [
        f"| {row} | {dataset} | {ours['clean_accuracy']} | {ours['robust_accuracy']} | {ours['seeds']} |"
        for dataset, row, ours, _ in finals
    ]
    return "\n".join([header, *lines])


def _name_whole(setting: str) -> str:
    """Return the name of a setting without the length that its trainings were cut to."""
    return re.sub(r", [\d,]+ samples seen$", "", setting)


def format_images() -> str:
    """Return what images of a wanted margin are like, and what training on them gains over images of any margin."""
    lines = list_summaries("gen-margin")
    cells = {(line.row, line.quantity): line.mean for line in lines if line.at is None}
    experiment = EXPERIMENTS["gen-margin"]
    assert isinstance(experiment, Experiment)
    rows = [row.name for row in experiment.rows if row.name.startswith("TRADES") and (row.name, "images") in cells]
    table = [
        "| images | number | in the band | doubted | Frechet distance | accuracy gained | robustness gained | seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        inside = cells.get((row, "in_band_share"))
        seeds = max(len(line.by_seed) for line in lines if line.row == row)
        gained = [format_difference(lines, row, rows[0], what) for what in ("clean_accuracy", "robust_accuracy")]
        table.append(
            f"| {row.partition(', ')[2]} | {cells[row, 'images']:,.0f} | {'' if inside is None else f'{inside:.0%}'} | "
            f"{cells[row, 'doubted_share']:.0%} | {cells[row, 'frechet']:.2f} | {gained[0]} | {gained[1]} | {seeds} |"
        )
    return "\n\n".join(["\n".join(table), *format_pruned_images(lines, [row.partition(", ")[2] for row in rows])])


def format_pruned_images(lines: list[ResultSummary], names: list[str]) -> list[str]:
    """Return what PUMA makes of the same images, and what it gains over TRADES on them; nothing if not run."""
    cells = {(line.row, line.quantity): line for line in lines if line.at is None}
    quantities = ("clean_accuracy", "robust_accuracy")
    table = []
    for name in names:
        pair = (f"TRADES, {name}", f"PUMA 20 %, {name}")
        if (pair[1], quantities[0]) in cells:
            shown = [" / ".join(format_percent(cells[row, quantity]) for quantity in quantities) for row in pair]
            gained = [format_difference(lines, pair[1], pair[0], quantity) for quantity in quantities]
            seeds = len(cells[pair[1], quantities[0]].by_seed)
            table.append(f"| {name} | {shown[0]} | {shown[1]} | {gained[0]} | {gained[1]} | {seeds} |")
    header = [
        "| images | TRADES | PUMA 20 % | accuracy gained | robustness gained | seeds |",
        "|---|---|---|---|---|---|",
    ]
    said = "On the same images, PUMA against TRADES, accuracy / robustness and paired differences:"
    return [said, "\n".join([*header, *table])] if table else []


def format_difference(lines: list[ResultSummary], row: str, against: str, quantity: str) -> str:
    """Return the difference of two rows in points, with its interval over paired seeds; nothing of a row to itself."""
    found = {line.row: line for line in lines if line.at is None and line.quantity == quantity}
    if row == against or against not in found or row not in found:
        return ""
    judged = judge_difference(Claim("", "", row, against, quantity), "", found[row].by_seed, found[against].by_seed)
    if judged.difference is None:
        return ""
    span = "" if judged.interval is None else f" ({100 * judged.interval[0]:+.1f} to {100 * judged.interval[1]:+.1f})"
    return f"{100 * judged.difference:+.2f}{span}"


def format_claims() -> str:
    """Return the verdict on every claim of the paper."""
    return format_verdicts(judge_claims(ROOT / "results"))


def format_labels() -> str:
    """Return how well each order finds changed labels, and the same of what is flagged, in percent."""
    values: dict[str, dict[tuple[str, ...], list[tuple[float, float]]]] = {}
    with (ROOT / "benchmarks" / "wrong_labels.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            column = line["images"], line["nets"], line["share"]
            pair = 100 * float(line["first"]), 100 * float(line["second"])
            values.setdefault(line["method"], {}).setdefault(column, []).append(pair)
    columns = list(dict.fromkeys(column for found in values.values() for column in found))
    titles = [f"{images}, {nets}, {float(share):.0%}" for images, nets, share in columns]
    header = "\n".join(["| | " + " | ".join(titles) + " |", "|---" * (len(columns) + 1) + "|"])

    def format_seeds(numbers: tuple[float, ...]) -> str:
        return f"{statistics.mean(numbers):.1f} ± {statistics.stdev(numbers):.1f}"

    orders, flags = [header], [header]
    for method, found in values.items():
        pairs = [list(zip(*found[column], strict=True)) for column in columns]
        if method.startswith("flagged: "):
            cells = [f"{statistics.mean(first):.1f} / {statistics.mean(second):.1f}" for first, second in pairs]
            flags.append(f"| {method.removeprefix('flagged: ')} | {' | '.join(cells)} |")
        else:
            orders.append(f"| {method} | {' | '.join(format_seeds(first) for first, _ in pairs)} |")
    said = "The same as a decision instead of an order, precision / recall in percent, mean over the seeds:"
    return "\n\n".join(["\n".join(orders), said, "\n".join(flags)])


def format_everything() -> str:
    """Return a table per experiment, rows, the paper's values, ours, and the samples that the method saves."""
    sections = [section for name in EXPERIMENTS if (section := format_section(name))]
    return "\n\n".join([*sections, format_efficiency()])


def format_efficiency() -> str:
    """Return with how many of the samples PUMA reaches what TRADES ends with, on held-out images."""
    lines = [line for line in list_summaries("tab-summary") if name_setting(line.origin) == _REAL]
    told = []
    for quantity, name in (("held_out_clean_accuracy", "accuracy"), ("held_out_robust_accuracy", "robustness")):
        shares = [share for share in find_efficiency(lines, "PUMA 20 %", "TRADES", quantity) if share is not None]
        mean, half = estimate_mean(shares)
        told.append(f"| {name} | {mean:.0%} | {max(0.0, mean - half):.0%} to {mean + half:.0%} | {len(shares)} |")
    return "\n".join(
        [
            "### Data efficiency: the baseline's result with fewer samples",
            "",
            "On Fashion-MNIST, how many of the samples seen PUMA 20 % needs for what TRADES has on held-out images at",
            "its end, read off the curves of `tab-summary`, with its 95 % interval over seeds. The margin model is not",
            "counted.",
            "",
            "| | share of the samples | 95 % interval | seeds |",
            "|---|---|---|---|",
            *told,
        ]
    )


def format_section(name: str) -> str:
    """Return the heading, command, table and picture of one experiment; nothing if it was not run."""
    experiment = EXPERIMENTS[name]
    if not list_summaries(name):
        return ""
    pictures = sorted(PICTURES.glob(f"{name}-small-*.png"))
    shown = "".join(f"\n\n![{experiment.title}](images/reproduce/{picture.name})" for picture in pictures)
    command, found = read_docstring(name)
    parts = [f"### {name}: {experiment.title}", f"`{command}`", f"The paper: {experiment.expect}", found]
    if isinstance(experiment, Experiment) and experiment.figure in ("none", "lines", "curves", "bands"):
        rows = list(list_finals(name))
        strong = any(ours["autoattack_accuracy"] for _, _, ours, _ in rows)
        gains = name in BEYOND and experiment.figure != "lines"  # those have rows to be told from the baseline's
        header = (
            f"| row | paper | ours |{' AutoAttack |' if strong else ''}{' gained |' if gains else ''} seeds | data |"
        )
        header += f"\n|---|---|---|{'---|' if strong else ''}{'---|' if gains else ''}---|---|"
        lines = [
            f"| {row} | {paper} | {ours['clean_accuracy']} / {ours['robust_accuracy']} |"
            + (f" {ours['autoattack_accuracy']} |" if strong else "")
            + (f" {format_gains(experiment, dataset, row)} |" if gains else "")
            + f" {ours['seeds']} | {dataset} |"
            for dataset, row, ours, paper in rows
        ]
        parts.append("\n".join([header, *lines]))
    elif isinstance(experiment, Experiment):
        parts.append(format_pairs(name) if experiment.figure == "heat map" else format_margins(name))
    return "\n\n".join(parts) + shown


def format_gains(experiment: Experiment, setting: str, row: str) -> str:
    """Return what a row gains over the baseline in accuracy and robustness, at one setting."""
    lines = [line for line in list_summaries(experiment.name) if name_setting(line.origin) == setting]
    against = next(other.name for other in experiment.rows if other.baseline)
    gained = [format_difference(lines, row, against, what) for what in ("clean_accuracy", "robust_accuracy")]
    return " / ".join(filter(None, gained))


def read_docstring(name: str) -> tuple[str, str]:
    """Return the command and the result to expect, with which an experiment's file opens."""
    folder = "beyond" if name in BEYOND else "paper"
    module = importlib.import_module(f"puma.experiments.{folder}.{name.replace('-', '_')}")
    text = textwrap.dedent((module.__doc__ or "").partition("\n")[2]).strip()
    command, _, expected = text.partition("\n\n")
    return command.partition("  #")[0].strip(), expected.strip()


def list_finals(name: str) -> Iterator[tuple[str, str, dict[str, str], str]]:
    """Yield setting, row, our accuracies and the paper's, in percent; presets as they stand."""
    rows: dict[tuple[str, str, float | None], dict[str, ResultSummary]] = {}
    for line in list_summaries(name):
        if line.quantity in ("clean_accuracy", "robust_accuracy", "autoattack_accuracy"):
            setting = name_setting(line.origin) or ""
            rows.setdefault((setting, line.row, line.at), {})[line.quantity] = line
    for (dataset, row, at), found in rows.items():
        ours = {quantity: format_percent(line) for quantity, line in found.items()}
        ours.setdefault("autoattack_accuracy", "")
        ours["seeds"] = str(len(found["clean_accuracy"].by_seed))
        papers = [found[quantity].paper for quantity in ("clean_accuracy", "robust_accuracy")]
        paper = " / ".join(f"{100 * value:.2f}" for value in papers if value is not None)
        scale, words = _AT.get(name, _PRUNED)
        label = row if at is None else f"{row}, {words.format(scale * at)}"
        yield dataset, label, ours, paper


def list_summaries(name: str) -> list[ResultSummary]:
    """Return the results of an experiment that are shown; none if it was not run."""
    path = ROOT / "results" / f"{name}.csv"
    lines = summarise_results(read_results_file(path)) if path.is_file() else []
    return [line for line in lines if name_setting(line.origin) is not None]


def format_margins(name: str) -> str:
    """Return the quantiles of margins by row, times 255."""
    names = ("margin_q05", "margin_q25", "margin_q50", "margin_q75", "margin_q95")
    lines = list_summaries(name)
    rows = dict.fromkeys(line.row for line in lines)
    cells = {(line.row, line.quantity): 255 * line.mean for line in lines}
    header = "| margins x 255 | 5 % | 25 % | median | 75 % | 95 % |\n|---|---|---|---|---|---|"
    return "\n".join(
        [header, *(f"| {row} | {' | '.join(f'{cells[row, name]:.2f}' for name in names)} |" for row in rows)]
    )


def format_pairs(name: str) -> str:
    """Return how alike the margins of every two rows are, and at which setting."""
    lines = list_summaries(name)
    cells = {(line.origin, line.row, line.quantity): line for line in lines}
    header = "| margins of | and of | rank correlation | kept or dropped alike, % | seeds | data |"
    table = [header, "|---|---|---|---|---|---|"]
    for line in lines:
        what, _, other = line.quantity.partition("_with ")
        if what != "rank_correlation":
            continue
        plans = format_percent(cells[line.origin, line.row, f"plan_agreement_with {other}"])
        spread = "" if line.spread is None else f" ± {line.spread:.3f}"
        seeds, setting = len(line.by_seed), name_setting(line.origin)
        table.append(f"| {line.row} | {other} | {line.mean:.3f}{spread} | {plans} | {seeds} | {setting} |")
    return "\n".join(table)


def format_percent(line: ResultSummary) -> str:
    """Return mean and spread of a line in percent."""
    spread = "" if line.spread is None else f" ± {100 * line.spread:.2f}"
    return f"{100 * line.mean:.2f}{spread}"


def format_precision() -> str:
    """Return what bf16 changes against fp32, by row, with its interval over paired seeds."""
    path = ROOT / "results" / "tab-summary.csv"
    found: dict[str, dict[tuple[str, str], ResultSummary]] = {}
    for line in summarise_results(read_results_file(path)):
        if (
            kind := re.fullmatch(r"samples_seen 50000, precision (bf16|fp32)", line.origin.changed)
        ) and line.at is None:
            found.setdefault(kind[1], {})[line.row, line.quantity] = line
    table = ["| | quantity | fp32 | bf16 | difference (95 % interval) | seeds |", "|---|---|---|---|---|---|"]
    names = {"clean_accuracy": "accuracy", "robust_accuracy": "robustness"}
    for (row, quantity), half in found["bf16"].items():
        if quantity in names:
            full = found["fp32"][row, quantity]
            judged = judge_difference(Claim("", "", row, row, quantity), "", half.by_seed, full.by_seed)
            assert judged.difference is not None
            assert judged.interval is not None
            low, high = judged.interval
            table.append(
                f"| {row} | {names[quantity]} | {format_percent(full)} | {format_percent(half)} | "
                f"{100 * judged.difference:+.2f} ({100 * low:+.2f} to {100 * high:+.2f}) | {len(half.by_seed)} |"
            )
    return "\n".join(table)


PAGES = {
    "README.md": format_summary,
    "docs/reproduce.md": format_everything,
    "docs/verdicts.md": format_claims,
    "docs/generate.md": format_images,
    "docs/training.md": format_precision,
    "docs/wrong-labels.md": format_labels,
}

if __name__ == "__main__":
    main()
