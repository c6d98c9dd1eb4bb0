"""The specifications say what the paper did."""

import csv
import re
from pathlib import Path

from puma.experiments import BEYOND, EXPERIMENTS
from puma.experiments.spec import (
    REAL_ONLY,
    TRADES,
    Experiment,
    GeneratedAmount,
    MarginSpec,
    ModelSpec,
    NetRole,
    OnlineSpec,
    OutsideModel,
    PlanSpec,
    RowSpec,
    StrengthRule,
    iterate_models,
    name_model,
    specify_puma,
    use_margin_model,
)

PAPER = Path(__file__).parent / "paper_numbers.csv"


def test_the_papers_numbers_are_typed_right() -> None:
    """Compare with a list that was taken out of the paper's tables: table, row, accuracy and robustness in percent."""
    with PAPER.open(encoding="utf-8", newline="") as file:
        typed = list(csv.DictReader(file))
    for name in dict.fromkeys(line["table"] for line in typed):
        told = [(float(line["accuracy"]), float(line["robustness"])) for line in typed if line["table"] == name]
        experiment = EXPERIMENTS[name]
        assert isinstance(experiment, Experiment)
        assert [(row.paper.clean, row.paper.robust) for row in experiment.rows if row.paper] == told, name
    tables = {name for name in EXPERIMENTS.keys() - BEYOND.keys() if name.startswith("tab-")}
    assert {line["table"] for line in typed} == tables


def test_every_experiment_opens_with_its_command() -> None:
    folder = Path(__file__).parents[2] / "src" / "puma" / "experiments"
    for name in EXPERIMENTS:
        text = (folder / ("beyond" if name in BEYOND else "paper") / f"{name.replace('-', '_')}.py").read_text(
            encoding="utf-8"
        )
        docstring = text.split('"""')[1]
        assert f"puma run {name} --preset small" in docstring
        assert "Expect" in docstring
        assert re.search(r"\bminutes?\b|\bhours?\b|\bseconds?\b", docstring), name


def test_rows_train_what_they_say() -> None:
    """Every row of every table and figure, spelt out: pruning, score, rule, multiples of eps, who measures margins."""
    real, same = REAL_ONLY, TRADES

    def told(name: str) -> dict[str, ModelSpec | MarginSpec]:
        experiment = EXPERIMENTS[name]
        assert isinstance(experiment, Experiment)
        return {row.name: row.wants for row in experiment.rows}

    def by_margin(easy: float, by: ModelSpec, *, eps: float = 1.0, gap: float = 0.0) -> ModelSpec:
        return ModelSpec(
            PlanSpec(easy=easy, score="margin", strength="margin", eps=eps, gap=gap, margins=MarginSpec(by))
        )

    def by_difficulty(
        easy: float = 0.0, difficult: float = 0.0, random: float = 0.0, rule: StrengthRule = "constant"
    ) -> ModelSpec:
        scored = PlanSpec(easy, difficult, random, "cd_clean", rule, 1.0, 0.0, 0.125, MarginSpec(real), same)
        return ModelSpec(scored)

    assert real == ModelSpec(None, "main", "none", None)
    assert same == ModelSpec(None, "main", "usual", None)
    assert told("tab-summary") == {
        "TRADES": same,
        **{f"PUMA {100 * share:g} %": by_margin(share, same) for share in (0.0, 0.1, 0.2)},
        "PE 20 %, eps for all": ModelSpec(PlanSpec(easy=0.2, strength="constant", margins=MarginSpec(same))),
        "random 20 %": by_difficulty(random=0.2),
    }
    assert told("tab-double-pruning") == {
        "no pruning": same,
        "random 22 %": by_difficulty(random=0.22),
        "PD 12 %": by_difficulty(difficult=0.12),
        "PE 22 %": by_difficulty(easy=0.22),
        "PE 22 % + PD 12 %": by_difficulty(easy=0.22, difficult=0.12),
    }
    assert told("tab-gap") == {"no gap": by_margin(0.2, real), "gap eps/8": by_margin(0.2, real, gap=0.125)}
    assert told("tab-epsilon") == {
        "3/4 eps": by_margin(0.2, real, eps=0.75),
        "eps": by_margin(0.2, real),
        "5/4 eps": by_margin(0.2, real, eps=1.25),
    }
    assert told("tab-online") == {
        "PUMA 0 %": by_margin(0.0, real),
        "online, no pruning": ModelSpec(online=OnlineSpec("paper", 0.0)),
        "online, pruned at 3.25 eps": ModelSpec(online=OnlineSpec("paper", 3.25)),
        "online, ours, 20 %": ModelSpec(online=OnlineSpec("ours", 0.0, 0.2)),
        "online, ours, by the average": ModelSpec(online=OnlineSpec("ours", 0.0, 0.2, "average")),
        "online, ours, by the average and class": ModelSpec(online=OnlineSpec("ours", 0.0, 0.2, "average", True)),
        "PUMA 20 %": by_margin(0.2, real),
    }
    assert told("tab-margin-difficult") == {
        "eps for all": by_difficulty(easy=0.22),
        "eps/8 if always wrong": by_difficulty(easy=0.22, rule="weak-if-difficult"),
        "margin if always wrong": by_difficulty(easy=0.22, rule="margin-if-difficult"),
        "margin for all": by_difficulty(easy=0.22, rule="margin"),
    }
    assert told("tab-pruning-strategies") == {
        "random 22 %, eps for all": by_difficulty(random=0.22),
        "PUMA 22 %, by difficulty": by_difficulty(easy=0.22, rule="margin"),
        "PUMA 22 %, by margin": by_margin(0.22, real),
    }
    assert told("tab-margin-model") == {
        "same net, real images only": by_margin(0.2, real),
        "same net, same images": by_margin(0.2, same),
        "iterated: the row above": by_margin(0.2, by_margin(0.2, same)),
        "wide net, most images": by_margin(0.2, ModelSpec(net="wide", generated="most")),
        "wide net, same images": by_margin(0.2, ModelSpec(net="wide")),
        "widest net, most images": by_margin(0.2, ModelSpec(net="widest", generated="most")),
    }
    others = {f"random {share} %": by_difficulty(random=share / 100) for share in (22, 40)}
    difficult = {f"PD {share} %": by_difficulty(difficult=share / 100) for share in (12, 22, 40)}
    easy = {f"PE {share} %": by_difficulty(easy=share / 100) for share in (12, 22, 40)}
    assert told("fig-pd") == {"no pruning": same, **others, **difficult}
    assert told("fig-pe") == {"no pruning": same, **others, **easy}
    fractions = (0.0, 0.1, 0.2, 0.3, 0.4, 0.6)
    amounts: tuple[GeneratedAmount, ...] = ("few", "usual", "many")
    assert told("fig-data-size") == {
        f"{amount} generated, PUMA {100 * share:g} %": ModelSpec(
            PlanSpec(easy=share, margins=MarginSpec(ModelSpec(generated=amount))), generated=amount
        )
        for amount in amounts
        for share in fractions
    }
    nets: tuple[NetRole, ...] = ("main", "second", "third")
    assert told("fig-models") == {
        f"{net} net, PUMA {100 * share:g} %": ModelSpec(
            PlanSpec(easy=share, margins=MarginSpec(ModelSpec(net=net))), net=net
        )
        for net in nets
        for share in fractions
    }
    assert told("fig-margin-distribution") == {
        "DeepFool": MarginSpec(same, "deepfool"),
        "DeepFool, textbook": MarginSpec(same, "deepfool-classic"),
        "Algorithm 1": MarginSpec(same, "fast"),
    }


def test_rows_beyond_the_paper_train_what_they_say() -> None:
    def told(name: str) -> dict[str, ModelSpec | MarginSpec]:
        experiment = EXPERIMENTS[name]
        assert isinstance(experiment, Experiment)
        return {row.name: row.wants for row in experiment.rows}

    by = MarginSpec(TRADES)
    rivals = told("tab-rivals")
    assert rivals["EasyCore 20 %"] == ModelSpec(
        PlanSpec(difficult=0.2, score="input_gradient", strength="constant", margins=by)
    )
    assert rivals["CCS 20 %"] == ModelSpec(PlanSpec(difficult=0.05, stratified=0.15, strength="constant", margins=by))
    assert rivals["dynamic uncertainty 20 %"] == ModelSpec(
        PlanSpec(easy=0.2, score="uncertainty", strength="constant", margins=by)
    )
    assert rivals["InfoBatch"] == ModelSpec(soft=0.5)
    watched = ModelSpec(snapshots=True)
    assert list(iterate_models(rivals["EasyCore 20 %"])) == [watched, rivals["EasyCore 20 %"]]
    assert list(iterate_models(rivals["CCS 20 %"])) == [TRADES, rivals["CCS 20 %"]]
    floors = told("tab-floor")
    assert floors["PUMA 20 %, floor -eps"] == specify_puma(0.2, by=TRADES)
    assert floors["PUMA 0 %, floor eps/2"] == ModelSpec(PlanSpec(floor=0.5, margins=by))
    assert told("fig-plan-from")["PUMA 20 % from 0.5"] == ModelSpec(PlanSpec(easy=0.2, margins=by), plan_from=0.5)
    beyond = told("fig-prune-beyond")
    assert beyond["PUMA 60 % beyond 0 eps"] == specify_puma(0.6, by=TRADES)
    assert beyond["PUMA 60 % beyond 1.5 eps"] == ModelSpec(PlanSpec(easy=0.6, beyond=1.5, margins=by))
    far = told("fig-prune-distance")
    assert far["PUMA, random 20 % beyond 0 eps"] == ModelSpec(PlanSpec(random=0.2, margins=by))
    assert far["PUMA, random 20 % beyond 2 eps"] == ModelSpec(PlanSpec(random=0.2, beyond=2.0, margins=by))
    lengths = told("fig-margin-accuracy")
    assert lengths["PUMA 20 %, margin model of length 1"] == specify_puma(0.2, by=TRADES)
    short = lengths["PUMA 20 %, margin model of length 0.1"]
    assert list(iterate_models(short)) == [ModelSpec(length=0.1), short]
    noisy = told("fig-label-noise")["PUMA 20 %, filtered at 40 % wrong"]
    wrong = ModelSpec(noise=0.4, filtered=True)
    assert noisy == ModelSpec(PlanSpec(easy=0.2, margins=MarginSpec(wrong)), noise=0.4, filtered=True)
    assert list(iterate_models(noisy)) == [REAL_ONLY, wrong, REAL_ONLY, noisy]


def test_models_come_before_what_is_built_on_them() -> None:
    iterated = specify_puma(0.2, by=specify_puma(0.2, by=TRADES))
    assert list(iterate_models(iterated)) == [TRADES, specify_puma(0.2, by=TRADES), iterated]
    assert list(iterate_models(MarginSpec(REAL_ONLY))) == [REAL_ONLY]
    both = ModelSpec(PlanSpec(easy=0.2, score="cd_clean", strength="margin"))
    assert list(iterate_models(both)) == [REAL_ONLY, TRADES, both]


def test_names_for_files() -> None:
    assert name_model(TRADES) == "trades"
    assert name_model(specify_puma(0.225, by=TRADES)) == "puma-easy22.5"
    assert name_model(ModelSpec(PlanSpec(random=0.22, strength="constant"), net="wide")) == "pruned-random22-wide"
    assert name_model(EXPERIMENTS["tab-rivals"].rows[5].wants) == "pruned-difficult20-by-input-gradient"  # type: ignore
    names = {name_model(model) for experiment in EXPERIMENTS.values() if isinstance(experiment, Experiment)
             for row in experiment.rows for model in iterate_models(row.wants)}  # fmt: skip
    assert all(re.fullmatch(r"[a-z0-9.-]+", name) for name in names)


def test_a_margin_model_from_outside_takes_the_place_of_those_that_are_trained() -> None:
    outside = OutsideModel("resnet4b", "robust.safetensors")
    for name, rows in {"tab-summary": 6, "tab-margin-model": 6, "fig-margin-distribution": 3}.items():
        experiment = EXPERIMENTS[name]
        assert isinstance(experiment, Experiment)
        changed = use_margin_model(experiment, outside).rows
        assert len(changed) == rows
        needed = {model for row in changed for model in iterate_models(row.wants)}
        assert REAL_ONLY not in needed
        assert (TRADES in needed) == (name == "tab-summary")  # a row of its own there
    again = specify_puma(0.2, by=TRADES)
    iterated = Experiment("x", "x", (RowSpec("iterated", specify_puma(0.3, by=again)),))
    (model,) = [row.wants for row in use_margin_model(iterated, outside).rows]
    first = ModelSpec(PlanSpec(easy=0.2, margins=MarginSpec(outside)))
    assert model == ModelSpec(PlanSpec(easy=0.3, margins=MarginSpec(first)))
