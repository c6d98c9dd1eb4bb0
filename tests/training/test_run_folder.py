import json
from pathlib import Path

import pytest
import torch

from puma import Plan, Pool, PumaError
from puma.files import UNKNOWN_HASH
from puma.training import TrainConfig, load_model
from puma.training.run import resume_run, start_run
from puma.training.run_folder import RunFolder

from .conftest import WritePool


def test_a_run_tells_what_it_was_made_from(
    tmp_path: Path, pool_folder: Path, write: WritePool, mixed_config: TrainConfig
) -> None:
    pools = [pool_folder, write("generated", 40, origin=1, seed=1)]
    whole = Pool.open(pools[0]) + Pool.open(pools[1])
    keep, strength = torch.ones(len(whole), dtype=torch.bool), torch.full((len(whole),), 0.1)
    plan = Plan(torch.arange(len(whole)), keep, strength, whole.fingerprint).save(tmp_path / "plan.parquet")
    run = start_run(mixed_config, pools, tmp_path / "run", plan=plan, show=False)
    links = RunFolder(run).read()[1].links
    assert [(link.role, link.path) for link in links] == [
        ("pool", str(pools[0])),
        ("pool", str(pools[1])),
        ("plan", str(plan)),
    ]
    assert [link.hash for link in links[:2]] == [Pool.open(path).fingerprint for path in pools]

    described = json.loads((run / "config.json").read_text())  # as older versions wrote it
    del described["links"], described["sha256"]
    (run / "config.json").write_text(json.dumps(described))
    old = RunFolder(run).read()[1].links
    assert [link.hash for link in old] == [UNKNOWN_HASH, UNKNOWN_HASH, links[2].hash]
    resume_run(run, show=False)


def test_a_model_is_loaded_without_being_told_its_classes(
    tmp_path: Path, pool_folder: Path, config: TrainConfig
) -> None:
    run = start_run(config, [pool_folder], tmp_path / "run", show=False)
    assert load_model(run)(torch.rand(2, 1, 8, 8)).shape == (2, 10)
    with pytest.raises(PumaError, match="trained on 10 classes, 3 are asked"):
        load_model(run, 3)
    with pytest.raises(PumaError, match="say how many classes model 'resnet18' has"):
        load_model("resnet18")


@pytest.mark.parametrize("text", ["[]", "[" * 200_000, "{}", '{"format": "puma-run-1", "inputs": []}', "\0"])
def test_a_damaged_config_is_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(PumaError, match="damaged"):
        RunFolder(tmp_path).read()


def test_lines_of_metrics_that_are_none_are_passed_over(tmp_path: Path) -> None:
    lines = ['{"step": 1, "samples": 16}', "[" * 100_000, "[1]", "{}", '{"step": 2, "samples": 32}', '{"step": 3, "sam']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    folder = RunFolder(tmp_path)
    assert [line["step"] for line in folder.read_metrics()] == [1, 2]
    folder.forget_metrics_after(1)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "samples": 16}\n'


def test_what_a_killed_process_left_does_not_block(tmp_path: Path, pool_folder: Path, config: TrainConfig) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / ".config.json.partial").write_text("{")
    assert (start_run(config, [pool_folder], out, show=False) / "model.safetensors").is_file()
