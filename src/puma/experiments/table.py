"""The results of an experiment as a table on the terminal, ours beside the paper's."""

from collections.abc import Mapping
from pathlib import Path

from puma.experiments.presets import Setting
from puma.experiments.results import read_results
from puma.experiments.spec import Experiment

_SHOWN = {"clean_accuracy": "accuracy", "robust_accuracy": "robustness", "autoattack_accuracy": "AutoAttack"}


def printed(experiment: Experiment, setting: Setting, path: Path) -> str:
    """Return the rows with mean and spread in percent; margins are summarised instead where nothing was trained."""
    wanted = (experiment.name, setting.preset, setting.dataset, setting.changed)
    stored = [
        line
        for line in read_results(path)
        if (line["experiment"], line["preset"], line["dataset"], line["changed"]) == wanted
    ]
    finals = [line for line in stored if not line["quantity"].startswith("held_out")]
    present = {line["quantity"] for line in finals}
    shown = {name: text for name, text in _SHOWN.items() if name in present} or {
        name: name.replace("_", " ") for name in dict.fromkeys(line["quantity"] for line in finals)
    }
    cells: dict[tuple[str, str], dict[str, Mapping[str, str]]] = {}
    for line in finals:
        cells.setdefault((line["row"], line["at"]), {})[line["quantity"]] = line
    names = [f"{row}, {float(at):g}" if at else row for row, at in cells]
    wide = max(len(name) for name in [*names, ""]) + 2
    papers = any(line["paper"] for line in finals)
    header = f"{'':<{wide}}" + "".join(f"{text:>20}" + (f"{'paper':>9}" if papers else "") for text in shown.values())
    lines = [f"{experiment.title} ({setting.preset}, {setting.dataset})", header]
    for name, by_quantity in zip(names, cells.values(), strict=True):
        row = (_cell(by_quantity.get(quantity), papers=papers) for quantity in shown)
        lines.append(f"{name:<{wide}}{''.join(row)}".rstrip())
    return "\n".join(lines)


def _cell(line: Mapping[str, str] | None, *, papers: bool) -> str:
    if line is None:
        return " " * (29 if papers else 20)
    scale, digits = (100.0, 2) if line["quantity"].endswith(("accuracy", "share")) else (1.0, 4)
    text = f"{float(line['mean']) * scale:.{digits}f}"
    text += f" +- {float(line['spread']) * scale:.{digits}f} ({line['seeds']})" if line["spread"] else ""
    paper = f"{float(line['paper']) * scale:.{digits}f}" if line["paper"] else ""
    return f"{text:>20}{paper:>9}" if papers else f"{text:>20}"
