import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import Run
from puma import cli
from puma.cli import COMMANDS, load_verb
from puma.cli.demo import GENERATOR, compare_counts
from puma.errors import Interrupted
from puma.evaluation import Count
from puma.pools import Pool
from puma.training import run as training_run


def test_every_verb_has_a_function_and_help(puma: Run) -> None:
    for verb in COMMANDS:
        assert load_verb(verb, []).__doc__
        code, out, _ = puma(*verb.split(), "--help")
        assert code == 0
        assert f"usage: puma {verb}" in out


def test_verbs_are_listed(puma: Run) -> None:
    for words in ([], ["--help"]):
        code, out, _ = puma(*words)
        assert code == 0
        assert all(f"puma {verb}" in out for verb in COMMANDS)
    code, out, _ = puma("data", "import", "--help")
    assert code == 0
    assert "puma data import npz" in out
    assert "puma list" not in out


def test_version_and_list(puma: Run) -> None:
    code, out, _ = puma("--version")
    assert code == 0
    assert out.startswith("puma 0.")
    code, out, _ = puma("list")
    assert code == 0
    assert "wrn70-16" in out
    assert "266.80 M" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["dat"], "puma: unknown command 'dat'; did you mean 'data show'?"),
        (["data", "imprt", "digits"], "did you mean 'data import digits'"),
        (["trian", "digits/train"], "puma: unknown command 'trian'; did you mean 'train'?"),
        (["--colour"], "puma: unknown command '--colour'; known: demo"),
        (["list", "--colour"], "puma: list has no '--colour'; puma list --help tells its flags."),
        (["plan", "--mragins", "x", "--out", "y"], "puma: plan has no '--mragins'; did you mean --margins?"),
        (["run", "x", "--attacks", "cww"], "puma: unknown value of --attacks 'cww'; did you mean 'cw'? known: clean"),
        (["evaluate", "run"], "puma: evaluate needs PATH (the images, such as DIR/test); puma evaluate --help"),
        (["plan", "--out"], "puma: --out needs a value; puma plan --help tells which."),
        (["demo", "--seeds", "x"], "puma: --seeds: expected a whole number such as 100, got 'x'."),
        (["demo", "--seeds", "1" + 23 * "0"], "puma: --seeds: expected a whole number of at most 9,223,372,036"),
        (["plan", "--out", "x", "--eps", "1e308"], "puma: --eps: expected a number of at most 1e+30, got '1e308'."),
        (["plan", "--out", "x", "--easy-threshold", "nan"], "puma: --easy-threshold: expected a number of at most"),
        (["data", "show", "nowhere"], "puma: nowhere is not a pool (no pool.json); make one with: puma data import."),
        (["data", "import", "npz", "nowhere.npz", "--out", "x"], "puma: no such file: nowhere.npz."),
        (["data", "import", "cifar10", "nowhere", "--out", "x"], "puma: no such folder or archive: nowhere."),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    words: list[str], sentence: str, puma: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = puma(*words)
    assert code == 2
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("words", [["data", "import", "npz"], ["list", "--colour"], ["demo", "--seeds", "x"]])
def test_bad_flags_exit_with_2(words: list[str], puma: Run) -> None:
    code, _, err = puma(*words)
    assert code == 2
    assert "Traceback" not in err


def test_import_and_show(tmp_path: Path, puma: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "digits"
    code, said, _ = puma("data", "import", "digits", "--out", str(out))
    assert code == 0
    assert f"{out / 'train'}: 1,433 real images of 8 x 8 x 1, 10 classes" in said
    code, said, _ = puma("data", "show", str(out))
    assert code == 0
    assert "origin: 364 real, 0 generated" in said
    with Image.open(tmp_path / "digits-train.png") as grid:
        assert grid.size[1] == 640
    code, _, _ = puma("data", "show", str(out / "test"), "--picture", str(tmp_path / "p.png"))
    assert code == 0
    assert (tmp_path / "p.png").exists()
    code, _, err = puma("data", "import", "digits", "--out", str(out))
    assert code == 2
    assert "give --force" in err
    code, _, _ = puma("data", "import", "digits", "--out", str(out), "--force")
    assert code == 0


def test_generated_images_take_the_names_of_another_pool(tmp_path: Path, puma: Run) -> None:
    puma("data", "import", "digits", "--out", str(tmp_path / "digits"))
    images = np.zeros((20, 8, 8, 1), dtype=np.uint8)
    np.savez(tmp_path / "extra.npz", image=images, label=np.arange(20) % 10)
    train = str(tmp_path / "digits" / "train")
    command = ["data", "import", "npz", str(tmp_path / "extra.npz"), "--like", train, "--out", str(tmp_path / "extra")]
    assert puma(*command)[0] == 0
    both = Pool.open(train) + Pool.open(tmp_path / "extra")
    assert np.bincount(both.origin).tolist() == [1433, 20]
    code, _, err = puma(*command, "--class-names", "a", "b", "--force")
    assert code == 2
    assert "give one of them" in err


def test_broken_pictures_are_reported(tmp_path: Path, puma: Run) -> None:
    for name in ("ant", "bee"):
        (tmp_path / "source" / name).mkdir(parents=True)
        for index in range(2):
            Image.new("L", (9, 9), 99).save(tmp_path / "source" / name / f"{index}.png")
    (tmp_path / "source/ant/broken.jpg").write_text("x")
    command = ["data", "import", "folder", str(tmp_path / "source"), "--size", "8", "--out", str(tmp_path / "out")]
    code, said, err = puma(*command)
    assert code == 0
    assert "4 real images of 8 x 8 x 3, 2 classes" in said
    assert "1 pictures could not be read and were left out" in err
    assert "ant/broken.jpg" in err


@pytest.mark.parametrize(
    ("generated", "told", "pruned", "noted"),
    [
        (
            False,
            "7,433 training images (6,000 of them distorted copies of digits)",
            "1,486",
            "affine and elastic distort",
        ),
        (
            True,
            "2,033 training images (600 of them generated)",
            "406",
            "600 generated images are of a generator that was",
        ),
    ],
)
def test_demo_runs_the_whole_method_and_goes_on(
    generated: bool, told: str, pruned: str, noted: str, tmp_path: Path, puma: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    monkeypatch.setattr("puma.cli.demo.GENERATOR", replace(GENERATOR, samples_seen=6400, images=600))
    command = ["demo", "--out", str(tmp_path), "--samples-seen", "4000", "--seeds", "2"]
    code, said, err = puma(*command, *(["--generated"] if generated else []))
    assert code == 0, err
    assert ("First a generator learns the digits and makes 600 more." in said) == generated
    plan, accuracy, robustness = said.split("\n\n")[1].splitlines()
    assert plan.startswith(f"Of {told}")
    assert f"prunes the {pruned} easiest" in plan
    shares = {name: [float(share) for share in re.findall(r"(?:TRADES|PUMA) ([\d.]+) %", line)]
              for name, line in (("clean", accuracy), ("robust", robustness))}  # fmt: skip
    assert min(shares["clean"]) > 60
    assert max(shares["robust"]) < min(shares["clean"])
    assert "chance explains" in accuracy
    assert "over 2 seeds" in robustness
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "PUMA on handwritten digits" in report
    assert noted in report
    assert (tmp_path / "demo.txt").read_text(encoding="utf-8").strip() == said.split("\n\n")[1]

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a finished stage was made again")

    monkeypatch.setattr(training_run, "start_run", never)
    monkeypatch.setattr("puma.experiments.generated.train_generator", never)
    monkeypatch.setattr("puma.experiments.generated.sample_pool", never)
    assert puma(*command, *(["--generated"] if generated else []))[1] == said
    assert (tmp_path / "thesis.txt").exists()


def test_the_demo_says_whether_chance_explains_a_difference() -> None:
    counts = [Count(right, 100) for right in (50, 60, 70, 61, 71, 82)]
    assert "PUMA 71.3 % +- 10.5: +11.3 points, more than chance explains" in compare_counts(counts[:3], counts[3:])
    assert "within what chance explains" in compare_counts(counts[:2], [counts[1], counts[1]])
    alone = compare_counts(counts[:1], counts[1:2])
    assert alone == (
        "TRADES 50.0%, PUMA 60.0%: +10.0 points, within what chance explains "
        "(95 % interval -3.7 to +23.2 on these 100 test images; other seeds may differ)"
    )


def test_bad_demos_leave_nothing(tmp_path: Path, puma: Run) -> None:
    for words in (["--samples-seen", "0"], ["--seeds", "0"]):
        code, _, err = puma("demo", "--out", str(tmp_path / "x"), *words)
        assert (code, "must be positive" in err) == (2, True)
    assert not (tmp_path / "x").exists()
    (tmp_path / "report.html").write_text("somebody's own page")
    code, _, err = puma("demo", "--out", str(tmp_path))
    assert (code, "is not a report" in err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_terminated_import_leaves_nothing(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        (tmp_path / "source" / name).mkdir(parents=True)
        for index in range(40):
            Image.new("RGB", (600, 600), "red").save(tmp_path / "source" / name / f"{index}.png")
    command = [sys.executable, "-m", "puma", "data", "import", "folder", "source", "--size", "8", "--out", "out"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while process.poll() is None and not list(tmp_path.glob(".out.partial-*")):
        pass
    process.terminate()
    assert process.wait() in (0, 143)
    assert not list(tmp_path.glob(".out.*"))


def test_work_that_a_signal_ended_in_good_order_says_so_and_exits_as_shells_expect(
    puma: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> None:
        raise Interrupted("interrupted at step 3 of 6; saved.", signal.SIGUSR1)

    monkeypatch.setattr(cli, "load_verb", lambda *_: stop)
    code, out, err = puma("list")
    assert (code, out, err) == (128 + signal.SIGUSR1, "", "puma: interrupted at step 3 of 6; saved.\n")


@pytest.mark.parametrize(
    ("ending", "expected"), [(SystemExit(143), (143, "")), (KeyboardInterrupt(), (130, "puma: interrupted.\n"))]
)
def test_a_signal_that_a_library_made_an_error_of_ends_without_a_traceback(
    ending: BaseException, expected: tuple[int, str], puma: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> None:
        raise ValueError("not a valid PEP 3118 buffer format string") from ending

    monkeypatch.setattr(cli, "load_verb", lambda *_: stop)
    code, _, err = puma("list")
    assert (code, err) == expected


def test_the_installed_command_works_and_a_closed_pipe_is_quiet() -> None:
    command = f"{sys.executable} -m puma list | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("data")
    assert done.stderr == ""


def test_a_file_of_another_kind_is_never_replaced(tmp_path: Path, puma: Run) -> None:
    precious = tmp_path / "margins.parquet"
    precious.write_bytes(b"PAR1 a day of work")
    disguised = tmp_path / "thesis.png"
    disguised.write_text("years of work")
    for words in (
        ["margins", "show", str(precious), "--histogram", str(precious)],
        ["margins", "show", str(precious), "--picture", str(disguised)],
        ["data", "show", str(tmp_path), "--picture", str(precious)],
        ["curves", str(tmp_path), "--out", str(disguised)],
        ["curves", str(tmp_path), "--out", str(precious)],
    ):
        code, _, err = puma(*words)
        assert (code, len(err.strip().splitlines())) == (2, 1)
        assert "must end in" in err or "is not replaced" in err
    assert precious.read_bytes() == b"PAR1 a day of work"
    assert disguised.read_text() == "years of work"
