import json
from dataclasses import replace

import pytest
import torch

from puma import PumaError
from puma.models import build
from puma.training import RECIPES, TrainConfig, find_recipe
from puma.training.batches import choose_fraction
from puma.training.config import AugmentConfig, check_train_config, config_from_dict, config_to_dict, list_differences


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_can_be_run_and_survive_json(name: str) -> None:
    config = find_recipe(name)
    check_train_config(config)
    assert config_from_dict(json.loads(json.dumps(config_to_dict(config)))) == config
    with torch.device("meta"):
        build(config.model, 10)


def test_the_baseline_is_what_its_code_does() -> None:
    config = find_recipe("wang2023-resnet18")
    assert config.samples_seen == 20_000_000
    assert config.batch_size * choose_fraction(config, 50_000, 1_000_000) == pytest.approx(358.4)
    assert (config.beta, config.label_smoothing, config.bn_momentum, config.held_out) == (5, 0.1, 0.01, 1024)
    assert (config.attack.eps, config.attack.step_size, config.attack.steps) == (8 / 255, 2 / 255, 10)
    assert config.attack.batchnorm == "batch"
    assert (config.optimizer.lr, config.optimizer.weight_decay, config.optimizer.decay) == (0.2, 5e-4, "all")
    assert (config.schedule.every, config.schedule.low_momentum, config.schedule.high_momentum) == (50_000, 0.85, 0.95)
    assert (config.average.decay, config.average.copy_steps) == (0.995, 980)
    assert find_recipe("wang2023-wrn70-16").optimizer.decay == "all-but-norms"


def test_unknown_recipes_are_told() -> None:
    with pytest.raises(PumaError, match="did you mean 'wang2023-resnet18'"):
        find_recipe("wang2023-resnet81")


def test_all_that_is_wrong_is_told_at_once() -> None:
    bad = replace(TrainConfig(), batch_size=0, beta=-1.0, augment=AugmentConfig(padding=-1))
    with pytest.raises(PumaError, match=r"batch_size must be positive.*beta must not.*padding"):
        check_train_config(bad)


def test_budget_and_batch_statistics_do_not_go_together() -> None:
    config = find_recipe("wang2023-resnet18")
    with pytest.raises(PumaError, match=r"attack\.budget needs attack\.batchnorm eval"):
        check_train_config(replace(config, attack=replace(config.attack, budget=True)))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"batchsize": 3}, "unknown setting 'batchsize'; did you mean 'batch_size'"),
        ({"attack": {"epz": 1.0}}, "unknown setting 'attack.epz'"),
        ({"batch_size": "many"}, "setting batch_size must be int, got 'many'"),
        ({"seed": True}, "setting seed must be int"),
        ({"loss": "trade"}, "setting loss must be"),
        ({"bn_momentum": "x"}, "setting bn_momentum must be"),
        ({"attack": 3}, "setting attack must be a group"),
    ],
)
def test_bad_files_are_told(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(PumaError, match=sentence):
        config_from_dict({**config_to_dict(TrainConfig()), **change})


def test_differences_name_the_setting_and_both_values() -> None:
    config = TrainConfig()
    other = replace(config, seed=4, attack=replace(config.attack, steps=7))
    assert list_differences(config, other) == ["seed: 0 in the run, 4 asked", "attack.steps: 10 in the run, 7 asked"]
    assert list_differences(config, config) == []
