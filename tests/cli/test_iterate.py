from pathlib import Path

import pytest

from conftest import Run
from puma.planning import Plan
from puma.training import run as training_run


def test_rounds_leave_every_artefact_and_a_second_call_finds_them(
    tmp_path: Path, puma: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    puma("data", "import", "digits", "--out", str(tmp_path / "digits"))
    settings = ["--samples-seen", "2048", "--checkpoint-every", "1024", "--attack.steps", "2"]
    command = ["iterate", str(tmp_path / "digits/train"), "--out", str(tmp_path / "it"), "--rounds", "2", *settings]
    code, said, err = puma(*command)
    assert code == 0, err
    assert {path.name for path in (tmp_path / "it").iterdir()} == {
        "run-0", "run-1", "run-2", "margins-1.parquet", "margins-2.parquet", "plan-1.parquet", "plan-2.parquet",
    }  # fmt: skip
    assert "round 2: 1,433 samples, 1,147 kept (80.0%), 286 pruned" in said
    plans = [Plan.open(tmp_path / "it" / f"plan-{turn}.parquet") for turn in (1, 2)]
    assert not plans[0].keep.equal(plans[1].keep)
    (tmp_path / "it" / "run-2" / "model.safetensors").unlink()  # as if it had been cut short

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a finished part was trained again")

    monkeypatch.setattr(training_run, "start_run", never)
    assert puma(*command)[0] == 0
    assert (tmp_path / "it" / "run-2" / "model.safetensors").is_file()
    code, _, err = puma(*command, "--prune-easy", "0.3")
    assert (code, "plan-1.parquet was made with other settings" in err) == (2, True)
    code, _, err = puma(*command, "--prune-easy", "1.5")
    assert (code, "fractions must lie in" in err) == (2, True)
    code, _, err = puma("iterate", str(tmp_path / "digits/test"), *command[2:])
    assert (code, "was begun with another pool or plan" in err) == (2, True)
    code, _, err = puma(*command, "--seed", "7")
    assert code == 2
    assert "was begun with other settings (seed: 0 in the run, 7 asked)" in err


def test_bad_input(puma: Run) -> None:
    code, _, err = puma("iterate", "--out", "x")
    assert code == 2
    assert "no pool given" in err
