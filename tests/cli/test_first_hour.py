"""What a new user types in the first hour, and the sentence that comes back."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import puma as package
from conftest import Run
from puma.cli import COMMANDS
from puma.cli.completion import read_help
from puma.files import read_json
from puma.planning import format_plan
from puma.progress import choose_words

NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 25, 2))

class Stubborn(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(144, 10))
        for weights in self.parameters():
            weights.data.zero_()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a net of one's own, for 12 px only, and a pool of such images that it can learn."""
    monkeypatch.chdir(tmp_path)
    Path("own_net.py").write_text(NET, encoding="utf-8")
    labels = np.arange(96) % 2
    images = np.random.default_rng(0).random((96, 1, 12, 12)) / 2 + labels[:, None, None, None] / 2
    package.Pool.from_tensors(torch.tensor(images), torch.tensor(labels)).save("pool")
    return tmp_path


TRAIN = (
    "train",
    "pool",
    "--model",
    "own_net.py:Net",
    "--samples-seen",
    "256",
    "--batch-size",
    "32",
    "--attack.steps",
    "1",
)


@pytest.fixture
def trained(place: Path, puma: Run) -> Path:
    assert puma(*TRAIN, "--optimizer.lr", "0.05", "--out", "run")[0] == 0
    return place


def test_a_dry_run_of_a_net_for_one_size_has_images_of_that_size(place: Path, puma: Run) -> None:
    code, said, _ = puma(*TRAIN, "--dry-run")
    assert code == 0
    assert said.startswith("This would train own_net.py:Net on 96 images of pool.")
    assert "samples/s in a short trial" in said


def test_dry_runs_speak_in_sentences(trained: Path, puma: Run) -> None:
    package.Pool.from_tensors(torch.rand(64, 1, 8, 8), torch.arange(64) % 2).save("eight")  # a size for a generator
    before = sorted(trained.rglob("*"))
    for words, sentence in {
        ("margins", "pool", "--model", "run", "--out", "m.parquet"): "This would measure linf margins of 96 images",
        (
            "evaluate",
            "run",
            "pool",
            "--eps",
            "8/255",
        ): "This would evaluate run on 96 images of pool at eps 8/255 (linf)",
        (
            "scores",
            "el2n",
            "pool",
            "--out",
            "e.parquet",
            "--runs",
            "nets",
        ): "This would train 5 nets briefly on 96 images",
        ("iterate", "pool", "--out", "i", "--model", "own_net.py:Net"): "This would train own_net.py:Net 3 times on 96",
        (
            "generate",
            "train",
            "eight",
            "--recipe",
            "digits-8px",
        ): "This would train a generator of images like those of",
    }.items():
        code, said, told = puma(*words, "--dry-run")
        assert (code, said.startswith(sentence)) == (0, True), said + told
        assert "Nothing was written." in said
        assert not re.search(r"[{}]|0\.03137|None", said), said
    assert sorted(trained.rglob("*")) == before


def test_the_picture_is_part_of_the_cost_and_drawn_once(trained: Path, puma: Run) -> None:
    assert "picture about" in puma("evaluate", "run", "pool", "--dry-run")[1]
    assert "picture: run/evaluation-pool/curve.png" in puma("evaluate", "run", "pool", "--curve-samples", "32")[1]
    curve = read_json(Path("run/evaluation-pool/metrics.json"), "the counts")["curve"]
    code, said, told = puma("evaluate", "run", "pool", "--curve-samples", "32")
    assert (code, "picture:" in said, "curve:" in told) == (0, False, False)
    assert read_json(Path("run/evaluation-pool/metrics.json"), "the counts")["curve"] == curve
    assert "picture:" in puma("evaluate", "run", "pool", "--curve-samples", "16")[1]


def test_a_run_that_is_finished_says_so(trained: Path, puma: Run) -> None:
    code, _, told = puma("train", "--resume", "run")
    assert (code, "run is finished: all of its 8 steps are done" in told) == (0, True)
    assert "resuming" not in told
    assert "it is a run that is finished; choose another --out." in puma(*TRAIN, "--out", "run")[2]


def test_a_net_that_only_guesses_is_told(place: Path, puma: Run) -> None:
    labels = torch.arange(40) % 10
    package.Pool.from_tensors(torch.rand(40, 1, 12, 12), labels).save("ten")
    words = (
        "train",
        "ten",
        *TRAIN[2:],
        "--model",
        "own_net.py:Stubborn",
        "--optimizer.lr",
        "1e-9",
        "--out",
        "stubborn",
    )
    code, _, told = puma(*words)
    assert code == 0
    assert "hardly better than a guess among 10 classes; train it anew with a smaller --optimizer.lr" in told


def test_the_default_net_is_told_where_it_is_for_other_images(place: Path, puma: Run) -> None:
    words = ("train", "pool", "--samples-seen", "32", "--batch-size", "32", "--attack.steps", "1")
    assert (
        "by default this trains small-8px, a net for 8 px, and these images have 12 px" in puma(*words, "--out", "a")[2]
    )
    assert "by default" not in puma(*words, "--model", "small-8px", "--out", "b")[2]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "pool", "--epochs", "3"], "did you mean --samples-seen, epochs times images,?"),
        (["train", "pool", "--learning-rate", "3"], "did you mean --optimizer.lr?"),
        (["train", "pool", "--epsilon", "3"], "did you mean --attack.eps?"),
        (["train", "pool", "--model", "own_net.py", "--out", "x"], "in it makes the net, such as own_net.py:Net."),
        (["train", "pool", "--model", "own_net.py:Nett", "--out", "x"], "did you mean 'Net'?"),
        (["margins", "pool", "--model", "net.pth", "--out", "x.parquet"], "give the file with --weights net.pth."),
        (["train", "pool", "--attack.eps", "8", "--out", "x"], "did you mean 8/255 = 0.03137?\n"),
        (["margins", "pool", "--model", "own_net.py:Net", "--eps", "8", "--out", "x.parquet"], "did you mean 8/255?"),
        (["evaluate", "own_net.py:Net", "pool"], "with --eps, such as --eps 8/255."),
        (["plan", "pool", "--out", "x.parquet", "--prune-easy", "20"], "(for 20 % give 0.2)"),
        (["demo", "--out", "pool"], "pool is a pool, and the demo makes its own"),
        (["demo", "--out", "own_net.py"], "--out own_net.py is a file; give a folder."),
        (["run", "tab-gap", "--preset", "smoke", "--out", "own_net.py"], "--out own_net.py is a file; give a folder."),
        (
            ["run", "tab-gap", "--preset", "smoke", "--work", "own_net.py"],
            "--work own_net.py is a file; give a folder.",
        ),
    ],
)
def test_mistakes(words: list[str], sentence: str, place: Path, puma: Run) -> None:
    code, _, told = puma(*words)
    assert (code, told.count("\n")) == (2, 1)
    assert sentence in told
    assert not Path("x").exists()


def test_files_at_the_wrong_place_are_named(trained: Path, puma: Run) -> None:
    assert "pool comes" not in puma("evaluate", "run", "pool", "--dry-run")[2]
    assert "run is a run, not a pool; the model comes first" in puma("evaluate", "pool", "run")[2]
    package.make_plan(package.Pool.open("pool"), eps=0.1).save("plan.parquet")
    assert "it is a plan: puma plan show" in puma("margins", "show", "plan.parquet")[2]


def test_help_behind_an_argument_is_whole(puma: Run) -> None:
    assert puma("evaluate", "run", "pool", "--help")[1] == puma("evaluate", "--help")[1]
    assert "MODEL" in puma("evaluate", "run", "--help")[1] or "STR" in puma("evaluate", "run", "--help")[1]


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_is_plain_text(verb: str) -> None:
    told = read_help(verb)
    assert "``" not in told.text + " ".join(flag.text for group in told.groups for flag in group.flags)


def test_slow_work_has_no_speed_of_zero() -> None:
    assert choose_words(2, 10, 11.0, "radii", "", 80) == " 20% 44 s left, 11 radii/min"
    assert choose_words(1, 10, 120.0, "trainings", "", 80).endswith(", 30 trainings/h")


def test_a_plan_tells_strengths_as_margins_are_told(place: Path) -> None:
    pool = package.Pool.open("pool")
    plan = package.make_plan(pool, torch.linspace(-0.1, 0.1, len(pool)), prune_easy=0.2, eps=8 / 255)
    assert "strength of the kept: -8/255 to +8/255" in format_plan(plan)
    assert "-8.00 .. -7.00" in format_plan(plan)


# the smallest call of every verb that has --out
_CALLS: dict[str, list[str]] = {
    "demo": [],
    "data import digits": [],
    "data import folder": ["x", "--size", "8"],
    "data import imagenet21k": ["x"],
    "data distort": ["pool", "--count", "3"],
    "train": ["pool"],
    "generate train": ["pool"],
    "generate sample": ["generator", "--count", "3"],
    "evaluate": ["run", "pool"],
    "scores cd": ["run"],
    "scores dynamics": ["run"],
    "scores el2n": ["pool", "--runs", "nets"],
    "plan": ["pool"],
    "margins": ["pool", "--model", "run"],
    "report": ["pool"],
    "curves": ["pool"],
    "iterate": ["pool"],
    "run": ["tab-gap"],
    "perceptron": [],
}
_WRITES_CSV = ("data superclasses", "margins export")


@pytest.mark.parametrize("verb", [verb for verb in COMMANDS if verb not in _WRITES_CSV])
def test_a_table_is_csv_or_refused(verb: str, place: Path, puma: Run) -> None:
    flags = {name for group in read_help(verb).groups for flag in group.flags for name in flag.names}
    if "--out" not in flags:
        return
    usual = (
        ["x", "--size", "8"] if verb in ("data import tar", "data import webdataset", "data import parquet") else ["x"]
    )
    code, _, told = puma(*verb.split(), *_CALLS.get(verb, usual), "--out", "a.csv")
    assert code == 2
    assert re.search(r"--out (is the name of a folder|must end in \.\w+).*'?a\.csv'?", told), told
    assert not Path("a.csv").exists()


def test_superclasses_are_csv(place: Path, puma: Run) -> None:
    assert puma("data", "superclasses", "--out", "a.csv")[0] == 0
    assert Path("a.csv").read_text(encoding="utf-8").startswith("wnid")
    assert "--out must end in .csv" in puma("data", "superclasses", "--out", "a.parquet")[2]
