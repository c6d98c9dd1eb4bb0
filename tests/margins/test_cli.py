"""``puma margins`` and ``puma margins show``."""

from pathlib import Path

import pytest

from conftest import MakePool
from puma.cli import main
from puma.margins import read_margins

MODEL = """
import torch
def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(90, 4))
def not_a_model():
    return 3
"""


@pytest.fixture
def folder(make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_pool("pool", count=60)
    (tmp_path / "margins_test_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


BASE = ["margins", "pool", "--model", "margins_test_model:make", "--out", "m.parquet"]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    sentence = capsys.readouterr().err
    assert sentence.count("\n") == 1
    return sentence


def test_measure_and_show(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([*BASE, "--cap", "8/255", "--norm", "l2"])
    assert read_margins(folder / "m.parquet").made_from["cap"] == 8 / 255
    main([*BASE, "--no-resume"])
    main(["margins", "show", "m.parquet", "--eps", "4/255", "--bins", "7"])
    printed = capsys.readouterr().out
    assert "margin < 4/255" in printed
    assert printed.count(" |") >= 7
    assert (folder / "m.png").read_bytes()[:4] == b"\x89PNG"


def test_dry_run_measures_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([*BASE, "--dry-run"])
    assert "60 images" in capsys.readouterr().out
    assert not (folder / "m.parquet").exists()


def test_bad_input_is_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not a pool" in refused(capsys, "margins", "nowhere", *BASE[2:])
    assert "must return a torch.nn.Module" in refused(
        capsys, *BASE[:3], "margins_test_model:not_a_model", "--out", "m.parquet"
    )
    assert "does not exist; make it first" in refused(capsys, *BASE[:5], "no/folder/m.parquet")
    assert "expected a number such as 0.03" in refused(capsys, *BASE, "--cap", "eight")
    assert "no margins at" in refused(capsys, "margins", "show", "none.parquet")
    main(BASE)
    main([*BASE[:5], "l2.parquet", "--norm", "l2"])
    capsys.readouterr()
    assert "different norms" in refused(capsys, "margins", "show", "m.parquet", "l2.parquet")
    assert "was made from something else" in refused(capsys, *BASE, "--method", "fast")


def test_flags_of_predicted_margins_are_never_passed_over(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (["--eps", "0.1"], ["--seed", "1"], ["--prune-easy", "0.3"]):
        assert "all samples are measured" in refused(capsys, *BASE, *flags)
    told = "puma: 2% of the samples are measured at random first; --measure takes another share.\n"
    with pytest.raises(SystemExit):
        main([*BASE, "--plan-agreement", "0.9"])
    assert capsys.readouterr().err.startswith(told)


def test_another_seed_into_the_same_file_is_told_by_its_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([*BASE, "--measure", "1"])
    capsys.readouterr()
    assert "m.parquet was made from something else (seed was 0, now 1); give another --out" in refused(
        capsys, *BASE, "--measure", "1", "--seed", "1"
    )
    assert "(method was predicted, now deepfool); give" in refused(capsys, *BASE)
