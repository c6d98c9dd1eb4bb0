"""What is printed never fails: closed streams, terminals that lack a sign, odd names, several processes."""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import Run
from puma import Pool, PumaError, evaluate, make_plan, pgd, trades_loss
from puma import cli as command
from puma.files import name_natively

ODD = os.fsdecode(b"odd\xff")


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pool:
    monkeypatch.chdir(tmp_path)
    images = np.random.default_rng(0).random((40, 8, 8, 1))
    return Pool.open(Pool.from_tensors(images, np.arange(40) % 4).save("pool"))


def run_puma(*words: str, redirect: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    call = f'"{sys.executable}" -m puma "$@" {redirect}'
    settings = {**os.environ, **environment}
    return subprocess.run(
        ["sh", "-c", call, "sh", *words], capture_output=True, text=True, env=settings, check=False, errors="replace"
    )


@pytest.mark.parametrize("redirect", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_quiet(redirect: str) -> None:
    done = run_puma("--version", redirect=redirect)
    assert (done.returncode, done.stderr) == (0, "")
    assert run_puma("nothing", redirect=redirect).returncode == 2


def test_a_full_disk_behind_standard_output_is_one_sentence() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    done = run_puma("list", redirect="> /dev/full")
    assert (done.returncode, done.stderr) == (2, "puma: No space left on device.\n")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_terminals_that_lack_a_sign_get_another(encoding: str, pool: Pool) -> None:
    done = run_puma("data", "show", "pool", PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    assert "10   25.0%  ####" in done.stdout
    assert run_puma("plan", "--help", PYTHONIOENCODING=encoding).returncode == 0


def test_names_that_are_not_utf8_work_from_import_to_report(pool: Pool) -> None:
    try:
        pool.save(ODD)
    except (OSError, PumaError):
        pytest.skip("this file system takes UTF-8 only")
    run, tables = f"{ODD}-run", [f"{ODD}-margins.parquet", f"{ODD}-plan.parquet"]
    commands = [
        ["train", ODD, "--samples-seen", "64", "--batch-size", "32", "--out", run],
        ["margins", ODD, "--model", run, "--out", tables[0]],
        ["plan", ODD, "--prune-random", "0.5", "--out", tables[1]],
        ["evaluate", run, ODD, "--max-samples", "4", "--masking-samples", "0", "--curve-samples", "4"],
        ["report", ".", "--out", f"{ODD}.html"],
        ["trace", tables[0]],
    ]
    for words in commands:  # a locale in which Python does not let such names through by itself
        done = run_puma(*words, PYTHONIOENCODING="utf-8:strict")
        assert done.returncode == 0, (words, done.stderr)
    with name_natively(f"{run}/model.safetensors") as name:
        assert Path(name).read_bytes() == Path(f"{run}/model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["a:b.parquet", "file:b.parquet", "s3://b.parquet", "a b.parquet", "#b%20.parquet"])
def test_names_that_look_like_addresses_are_names(name: str, pool: Pool, puma: Run) -> None:
    Path("s3:").mkdir()
    assert puma("plan", "pool", "--prune-random", "0.5", "--out", name)[0] == 0
    assert Path(name).is_file()
    code, said, _ = puma("plan", "show", name)
    assert (code, " .. " in said) == (0, False)  # one strength for all needs no histogram


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but RANK, MASTER_ADDR, MASTER_PORT is not set"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE must be a whole number, it is 'two'"),
        ({"WORLD_SIZE": "2", "RANK": "5", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "RANK is 5 of WORLD_SIZE 2"),
    ],
)
def test_half_an_environment_of_torchrun_is_told(
    environment: dict[str, str], sentence: str, pool: Pool, puma: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code, _, err = puma("train", "pool", "--samples-seen", "64", "--out", "run")
    assert (code, sentence in err) == (2, True), err
    assert puma("--version")[0] == 0


def test_under_torchrun_bad_input_is_told_once(tmp_path: Path) -> None:
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "puma", "train", str(tmp_path / "nowhere")]
    done = subprocess.run(
        [sys.executable, *words, "--out", str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    told = [line for line in done.stderr.splitlines() if line.startswith("puma: ")]
    assert told == [f"puma: {tmp_path / 'nowhere'} is not a pool (no pool.json); make one with: puma data import."]


def test_a_fault_of_another_process_alone_is_told_after_a_while(
    puma: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        assert "is not a pool" in puma("data", "show", str(tmp_path))[2]
    assert len(waited) == 1


def test_warnings_are_sentences_without_places_in_the_code(
    puma: Run, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def warn(_: list[str]) -> None:
        warnings.simplefilter("always")
        warnings.warn("the outputs look\nlike probabilities.", stacklevel=2)

    monkeypatch.setattr(command, "call_verb", warn)
    assert puma("list") == (0, "", "puma: warning: the outputs look like probabilities.\n")


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "", "cpu:x"])
@pytest.mark.parametrize("verb", ["margins", "evaluate", "train"])
def test_a_device_that_is_not_there_is_told(verb: str, device: str, pool: Pool, puma: Run) -> None:
    torch.save(torch.nn.Sequential().state_dict(), "net.pt")
    Path("one.py").write_text(
        "import torch\ndef net(): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))"
    )
    words = {
        "margins": ["pool", "--model", "one.py:net", "--out", "m.parquet", "--device", device],
        "evaluate": ["one.py:net", "pool", "--eps", "0.1", "--device", device],
        "train": ["pool", "--samples-seen", "64", "--out", "run", "--compute.device", device],
    }[verb]
    code, _, err = puma(verb, *words)
    assert code == 2, err
    assert "device" in err
    assert len(err.strip().splitlines()) == 1


class Net(torch.nn.Module):
    def __init__(self, answer: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.head, self.answer = torch.nn.Linear(64, 4, dtype=dtype), answer

    def forward(self, images: torch.Tensor) -> object:
        logits = self.head(images.flatten(1))
        return {"tuple": (logits, images), "dict": {"logits": logits}, "tensor": logits}[self.answer]


@pytest.mark.parametrize("answer", ["tuple", "dict"])
def test_models_that_answer_with_more_than_logits_are_told(answer: str) -> None:
    images, labels = torch.rand(4, 1, 8, 8), torch.arange(4)
    calls: tuple[Callable[[], object], ...] = (
        lambda: trades_loss(Net(answer), images, labels, 0.1),
        lambda: pgd(Net(answer), images, labels, 0.1),
        lambda: evaluate(Net(answer), images, labels, 0.1),
    )
    for call in calls:
        with pytest.raises(PumaError, match=answer):
            call()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_models_of_another_precision_work_or_are_told(dtype: torch.dtype) -> None:
    images, labels = torch.rand(4, 1, 8, 8), torch.arange(4)
    model = Net("tensor", dtype)
    assert set(evaluate(model, images, labels, 0.1)) == {"clean", "cw"}
    moved = pgd(model, images, labels, 0.1)
    assert moved.dtype == images.dtype
    assert (moved - images).abs().max() <= 0.1 + 1e-6
    with pytest.raises(PumaError, match=r"which are float32: give model\.to\(images\.dtype\)"):
        trades_loss(model, images, labels, 0.1)
    assert trades_loss(model.to(images.dtype), images, labels, 0.1).isfinite()  # as the sentence says


def test_a_training_tells_held_out_images_and_why_attacked_may_lie_above_clean(pool: Pool, puma: Run) -> None:
    plan = make_plan(pool, torch.linspace(-0.1, 0.1, 40), eps=0.1)
    plan.save("plan.parquet")
    words = ["--samples-seen", "64", "--batch-size", "32", "--attack.steps", "1", "--held-out", "8"]
    code, _, err = puma("train", "pool", *words, "--evaluate-every", "32", "--plan", "plan.parquet", "--out", "run")
    assert code == 0, err
    assert [line.partition(":")[0] for line in err.splitlines() if line.startswith("held out")] == [
        "held out, at 32 samples",
        "held out, at 64 samples",
    ]
    assert "samples are moved towards their label (negative strength)" in err
    assert "towards their label" not in puma("train", "pool", *words, "--out", "other")[2]


def test_a_plan_tells_what_differs_from_the_defaults(pool: Pool, puma: Run) -> None:
    code, said, _ = puma("plan", "pool", "--prune-random", "0.5", "--eps", "4/255", "--out", "plan.parquet")
    assert code == 0
    rules = [line.strip() for line in said.splitlines() if line.startswith("  ") and ": " in line]
    assert rules == ["pruning.random: 0.5", "strength.rule: constant", "strength.eps: 4/255"]
    assert "everything else as by default" in said


@pytest.mark.parametrize(
    ("flags", "near"),
    [
        (["--eps", "0.1"], "--attack.eps"),
        (["--eps", "0.1", "--nonsense", "3"], "--attack.eps"),
        (["--batchsize", "3"], "--batch-size"),
        (["--quux", "3"], None),
    ],
)
def test_the_flag_that_was_meant_is_named(flags: list[str], near: str | None, puma: Run) -> None:
    code, _, err = puma("train", "pool", "--out", "run", *flags)
    assert code == 2
    assert (f"did you mean {near}?" in err) if near else ("did you mean" not in err), err
