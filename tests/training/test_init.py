from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from puma import PumaError
from puma.files import hash_file
from puma.processes import ProcessGroup
from puma.training import TrainConfig
from puma.training.batches import load_samples
from puma.training.optimizer import momentum_buffers
from puma.training.run import create_run, prepare_training, resume_run, start_run
from puma.training.run_folder import RunFolder
from puma.training.step import TrainState

from .test_run import Killed, die_after, same_files


@pytest.fixture
def first(tmp_path: Path, pool_folder: Path, config: TrainConfig) -> Path:
    """A finished run to begin with."""
    return start_run(replace(config, seed=9), [pool_folder], tmp_path / "first", show=False)


def begin(config: TrainConfig, pool_folder: Path) -> TrainState:
    return prepare_training(config, load_samples(config, [pool_folder], None), ProcessGroup())[1]


@pytest.mark.parametrize("of", ["run", "file"])
def test_a_run_begins_with_exactly_these_weights(of: str, first: Path, pool_folder: Path, config: TrainConfig) -> None:
    weights = load_file(first / "model.safetensors")
    state = begin(replace(config, init=str(first if of == "run" else first / "model.safetensors")), pool_folder)
    for module in (state.model, state.average):
        assert all(torch.equal(tensor, weights[name]) for name, tensor in module.state_dict().items())
    assert momentum_buffers(state.optimizer, state.model) == {}


def test_a_new_head_is_that_of_a_run_from_scratch(first: Path, pool_folder: Path, config: TrainConfig) -> None:
    weights = load_file(first / "model.safetensors")
    asked = replace(config, init=str(first), init_head="replace")
    found, scratch = begin(asked, pool_folder).model.state_dict(), begin(config, pool_folder).model.state_dict()
    heads = {"linear.weight", "linear.bias"}
    assert all(torch.equal(tensor, (scratch if name in heads else weights)[name]) for name, tensor in found.items())


def test_it_is_recorded_and_resumes_exactly(
    tmp_path: Path, first: Path, pool_folder: Path, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = replace(config, init=str(first))
    whole = start_run(asked, [pool_folder], tmp_path / "whole", show=False)
    link = RunFolder(whole).read()[1].links[-1]
    assert (link.role, link.kind, link.hash) == ("init", "run", hash_file(first / "model.safetensors"))
    with monkeypatch.context() as patch:
        die_after(4, patch)
        with pytest.raises(Killed):
            start_run(asked, [pool_folder], tmp_path / "run", show=False)
    create_run(asked, [pool_folder], tmp_path / "later")
    (first / "model.safetensors").write_bytes((whole / "model.safetensors").read_bytes())
    resume_run(tmp_path / "run", show=False)  # its checkpoint is all it needs
    assert same_files(tmp_path / "run" / "model.safetensors", whole / "model.safetensors")
    with pytest.raises(PumaError, match="the first weights have changed"):
        resume_run(tmp_path / "later", show=False)
    with pytest.raises(PumaError, match=r"init: .*first in the run,  asked"):
        resume_run(tmp_path / "run", config, show=False)


def test_weights_that_do_not_fit_are_told(tmp_path: Path, first: Path, pool_folder: Path, config: TrainConfig) -> None:
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes((first / "model.safetensors").read_bytes()[:-9])
    for change, sentence in (
        ({"init": str(first), "model": "small-14px-wide"}, "shapes differ: convolutions|does not fit this model"),
        ({"init": str(damaged)}, "not a whole safetensors file"),
        ({"init": str(tmp_path / "absent")}, "is not there; give a finished run"),
        ({"init": str(pool_folder)}, r"has no model\.safetensors"),
    ):
        with pytest.raises(PumaError, match=sentence):
            start_run(replace(config, **change), [pool_folder], tmp_path / "run", show=False)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()
