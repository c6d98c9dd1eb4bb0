import json
from pathlib import Path

import pytest

from puma.cli import main
from puma.cli.flags import find_value
from puma.training import TrainConfig

from .conftest import WritePool

SMALL = ["--samples-seen", "32", "--batch-size", "16", "--attack.steps", "1"]


def puma(*words: str) -> int:
    try:
        main(words)
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_train_then_evaluate(tmp_path: Path, pool_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert puma("train", str(pool_folder), "--out", str(run), *SMALL) == 0
    assert f"puma evaluate {run} POOL" in capsys.readouterr().out
    assert puma("train", "--resume", str(run)) == 0
    words = ["evaluate", str(run), str(pool_folder), "--curve-samples", "20", "--masking-samples", "10"]
    assert puma(*words, "--dry-run") == 0
    assert "96 images of" in capsys.readouterr().out
    assert not (run / "evaluation-pool").exists()
    assert puma(*words) == 0
    out = capsys.readouterr().out
    assert "95 % interval" in out
    written = json.loads((run / "evaluation-pool" / "metrics.json").read_text())
    assert written["eps"] == 0.1
    assert written["results"]["clean"]["total"] == 96
    assert len(written["curve"]) == 11
    assert (run / "evaluation-pool" / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_help_shows_the_recipes_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert puma("train", "--recipe", "wang2023-wrn28-10", "--help") == 0
    shown = capsys.readouterr().out
    assert "wrn28-10" in shown
    assert "980" in shown
    assert puma("list") == 0
    assert "wang2023-wrn70-16" in capsys.readouterr().out


@pytest.mark.parametrize("given", [True, False])
def test_dry_run_tells_settings_and_cost_and_writes_nothing(
    given: bool, tmp_path: Path, pool_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    pools = [str(pool_folder)] if given else []
    assert puma("train", *pools, "--out", str(out), "--dry-run", "--attack.steps", "7", *SMALL[:4]) == 0
    said = capsys.readouterr().out
    assert said.startswith("This would train small-8px on " + ("" if given else "a pool yet to be named. "))
    assert "Recipe small-digits, but " in said
    assert "attack.steps 7" in said
    settings = [line for line in said.splitlines() if line.startswith("attack ")]
    assert "steps 7, step_ratio 1" in settings[0]
    assert "10 forward and 9 backward per sample" in said
    assert "32 samples = 2 steps of 16" in said
    assert "parameters   35," in said or "parameters   34," in said
    assert "GiB" in said
    assert " s on one cpu" in said
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "POOL"], "say where the run goes with --out DIR"),
        (["train", "--out", "X"], "no pool given"),
        (["train", "POOL", "--out", "X", "--recipe", "wang"], "unknown recipe 'wang'"),
        (["train", "POOL", "--out", "X", "--generated-fraction", "0.5"], "no generated samples"),
        (
            ["train", "POOL", "--out", "X", "--beta", "-1", "--batch-size", "0"],
            "batch_size must be positive; beta must",
        ),
        (["train", "--resume", "POOL"], "is not a run"),
        (["train", "ABSENT", "--out", "X"], "is not a pool"),
        (["train", "POOL", "--out", "X", "--plan", "ABSENT"], "no plan at"),
        (["evaluate", "small-8px", "POOL"], "say how strong the attacks are with --eps"),
        (["evaluate", "small-8px", "POOL", "--eps", "0.1"], "needs trained weights"),
        (["evaluate", "small-8px", "POOL", "--eps", "-1"], "eps must be positive"),
        (["evaluate", "POOL", "POOL", "--eps", "0.1"], "not a run of puma train"),
    ],
)
def test_bad_words_end_with_a_sentence_and_code_2(
    words: list[str], sentence: str, tmp_path: Path, pool_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"POOL": str(pool_folder), "X": str(tmp_path / "x"), "ABSENT": str(tmp_path / "absent")}
    assert puma(*[places.get(word, word) for word in words]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.startswith("puma: ")
    assert not (tmp_path / "x").exists()


def test_resume_takes_nothing_but_its_own(
    tmp_path: Path, pool_folder: Path, write: WritePool, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    assert puma("train", str(pool_folder), "--out", run, *SMALL) == 0
    assert puma("train", str(pool_folder), "--resume", run, "--out", run) == 0
    for words, sentence in (
        (["--resume", run, "--optimizer.lr", "0.5"], "optimizer.lr: 0.2 in the run, 0.5 asked"),
        ([str(write("other", seed=1)), f"--resume={run}"], "was begun with pools"),
        (["--resume", run, "--out", str(tmp_path / "other")], "was begun with out"),
    ):
        capsys.readouterr()
        assert puma("train", *words) == 2
        assert sentence in capsys.readouterr().err


def test_flags_are_found_in_both_spellings() -> None:
    assert find_value("--recipe", ["x", "--recipe", "a"]) == "a"
    assert find_value("--recipe", ["--recipe=b"]) == "b"
    assert find_value("--recipe", ["--recipe"]) is None
    assert TrainConfig().steps == 39063
