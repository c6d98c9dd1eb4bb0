"""Every table and figure of the paper, and some beyond it; run one: ``puma run NAME --preset smoke|small|paper``."""

from puma.errors import unknown_name
from puma.experiments.beyond import BEYOND
from puma.experiments.cost import describe_experiment, summarise_cost
from puma.experiments.experiment_run import (
    build_study,
    describe_perceptron_cost,
    picture_path,
    record_folder,
    result_origin,
    run_experiment,
    run_perceptron_figure,
)
from puma.experiments.paper import PAPER
from puma.experiments.presets import (
    OWN_GENERATOR,
    ExperimentSetting,
    GeneratedImages,
    GeneratorSetting,
    OwnImages,
    SettingChanges,
    change_setting,
    find_setting,
)
from puma.experiments.results import format_results
from puma.experiments.spec import Experiment, OutsideModel, PerceptronFigure, use_margin_model
from puma.experiments.workspace import Workspace

__all__ = [
    "BEYOND",
    "EXPERIMENTS",
    "OWN_GENERATOR",
    "PAPER",
    "Experiment",
    "ExperimentSetting",
    "GeneratedImages",
    "GeneratorSetting",
    "OutsideModel",
    "OwnImages",
    "PerceptronFigure",
    "SettingChanges",
    "Workspace",
    "build_study",
    "change_setting",
    "describe_experiment",
    "describe_perceptron_cost",
    "find_experiment",
    "find_setting",
    "format_results",
    "picture_path",
    "record_folder",
    "result_origin",
    "run_experiment",
    "run_perceptron_figure",
    "summarise_cost",
    "use_margin_model",
]


EXPERIMENTS: dict[str, Experiment | PerceptronFigure] = {**PAPER, **BEYOND}


def find_experiment(name: str) -> Experiment | PerceptronFigure:
    """Look an experiment up; an unknown name raises."""
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, list(EXPERIMENTS))
    return EXPERIMENTS[name]
