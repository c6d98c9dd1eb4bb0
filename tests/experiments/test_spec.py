"""The specifications say what the paper did."""

import re
from pathlib import Path

import pytest

from conftest import SHARED_DATA
from puma.experiments import EXPERIMENTS
from puma.experiments.run import models_of
from puma.experiments.spec import REAL_ONLY, TRADES, Experiment, Measured, Model, Planned, described, puma

PAPER = SHARED_DATA.parent / "PAPER.md"


def test_the_papers_numbers_are_typed_right() -> None:
    if not PAPER.is_file():
        pytest.skip("needs the folder ../shared with a description of the paper")
    rows = re.findall(r"^\| (tab-[a-z-]+) \|.*\| ([^|]+) \|$", PAPER.read_text(encoding="utf-8"), flags=re.M)
    checked = 0
    for name, numbers in rows:
        experiment = EXPERIMENTS.get(name)
        if not isinstance(experiment, Experiment):
            continue
        told = [(float(clean), float(robust)) for clean, robust in re.findall(r"([\d.]+)/([\d.]+)", numbers)]
        assert [(row.paper.clean, row.paper.robust) for row in experiment.rows if row.paper] == told, name
        checked += 1
    assert checked == 8


def test_every_experiment_opens_with_its_command() -> None:
    folder = Path(__file__).parents[2] / "src" / "puma" / "experiments"
    for name in EXPERIMENTS:
        text = (folder / f"{name.replace('-', '_')}.py").read_text(encoding="utf-8")
        docstring = text.split('"""')[1]
        assert f"puma run {name} --preset small" in docstring
        assert "Expect" in docstring
        assert re.search(r"\bminutes?\b|\bhours?\b|\bseconds?\b", docstring), name


def test_models_come_before_what_is_built_on_them() -> None:
    iterated = puma(0.2, by=puma(0.2, by=TRADES))
    assert list(models_of(iterated)) == [TRADES, puma(0.2, by=TRADES), iterated]
    assert list(models_of(Measured(REAL_ONLY))) == [REAL_ONLY]
    both = Model(Planned(easy=0.2, score="cd_clean", strength="margin"))
    assert list(models_of(both)) == [REAL_ONLY, TRADES, both]


def test_names_for_files() -> None:
    assert described(TRADES) == "trades"
    assert described(puma(0.225, by=TRADES)) == "puma-easy22.5"
    assert described(Model(Planned(random=0.22, strength="constant"), net="wide")) == "pruned-random22-wide"
    names = {described(model) for experiment in EXPERIMENTS.values() if isinstance(experiment, Experiment)
             for row in experiment.rows for model in models_of(row.wants)}  # fmt: skip
    assert all(re.fullmatch(r"[a-z0-9.-]+", name) for name in names)
