import re
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import Run
from puma.cli import COMMANDS
from puma.cli.completion import read_help


@pytest.mark.parametrize("verb", COMMANDS)
def test_the_help_of_every_verb_is_read_whole(verb: str, puma: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    _, printed, _ = puma(*verb.split(), "--help")
    told = read_help(verb)
    names = {name for group in told.groups for flag in group.flags for name in flag.names}
    assert names <= set(re.findall(r"--?[a-zA-Z][a-z0-9.-]*", printed))
    assert {"-h", "--help"} <= names
    assert told.usage.startswith(f"puma {verb} ")
    assert told.text
    assert all(flag.text for group in told.groups for flag in group.flags)
    assert "None" not in " ".join(flag.metavar for group in told.groups for flag in group.flags if not flag.choices)


def test_choices_and_groups_are_told() -> None:
    flags = {name: flag for group in read_help("train").groups for flag in group.flags for name in flag.names}
    assert flags["--online.mode"].choices == ("off", "paper", "ours")
    assert flags["--optimizer.lr"].text == "the highest learning rate. (default: 0.2)"
    assert any(group.title == "optimizer options" and group.text == "SGD." for group in read_help("train").groups)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import contextlib

    from puma.cli.completion import print_completion

    path = tmp_path_factory.mktemp("completion") / "puma.bash"
    with path.open("w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
        print_completion("bash")
    return path


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["tr"], ["trace", "train"]),
        (["data", "import", "c"], ["cifar10", "cifar100"]),
        (["plan", ""], ["diff", "export", "show"]),
        (["plan", "pool", "--with"], ["--within"]),
        (["plan", "pool", "--within", ""], ["pool", "class", "origin"]),
        (["evaluate", "run", "test", "--attacks", "a"], ["autoattack"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["train", "pool", ""], []),  # names of files
    ],
)
def test_bash_completes(words: list[str], offered: list[str], script: Path) -> None:
    lines = 'source "$0"; COMP_WORDS=(puma "$@"); COMP_CWORD=$#; _puma; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", lines, str(script), *words], capture_output=True, text=True, check=True)
    assert done.stdout.split() == offered
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script(shell: str, puma: Run, tmp_path: Path) -> None:
    code, out, _ = puma("completion", shell)
    assert code == 0
    assert "--generated-fraction" in out or "-l generated-fraction" in out
    if shutil.which(shell):  # else at least what bash understands of it
        (tmp_path / "script").write_text(out, encoding="utf-8")
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)
    assert puma("completion", "tcsh")[0] == 2
