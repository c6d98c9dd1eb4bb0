import contextlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import Literal

import pytest

from conftest import Run
from puma.cli import COMMANDS
from puma.cli.completion import print_completion, read_help


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


def write_script(shell: Literal["bash", "zsh", "fish"], path: Path) -> Path:
    with path.open("w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
        print_completion(shell)
    return path


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("completion")
    return {
        "bash": write_script("bash", folder / "puma.bash"),
        "zsh": write_script("zsh", folder / "_puma"),  # the name by which zsh finds it
        "fish": write_script("fish", folder / "puma.fish"),
    }


# zsh completes in a terminal only: another zsh is started in one, a line typed, and what it would list is written down
_TYPE_IN_ZSH = r"""
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "PROMPT=; fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -D"
zpty -w z 'compadd () { if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then builtin compadd "$@"; return; fi
typeset -a hits; builtin compadd -A hits "$@"; print -rl -- $hits >> '$3' }'
zpty -w z 'finish () { print DO""NE; exit }; zle -N finish; bindkey "^X" finish; bindkey "^I" complete-word'
zpty -w -n z "$2"$'\t'$'\x18'
while zpty -r z line; do [[ $line == *DONE* ]] && break; done
"""


def ask_shell(shell: str, words: list[str], script: Path) -> list[str]:
    """Return what a shell offers for the last of the words."""
    line = " ".join(["puma", *words])
    if shell == "zsh":
        offers = script.parent / "offers"
        offers.unlink(missing_ok=True)
        call = ["zsh", "-f", "-c", _TYPE_IN_ZSH, "zsh", str(script.parent), line, str(offers)]
        subprocess.run(call, check=True, timeout=60)
        return offers.read_text(encoding="utf-8").split() if offers.exists() else []
    if shell == "fish":
        call = ["fish", "--no-config", "-c", 'source $argv[1]; complete -C "$argv[2]"', str(script), line]
    else:
        lines = 'source "$0"; COMP_WORDS=(puma "$@"); COMP_CWORD=$#; _puma; printf "%s\\n" "${COMPREPLY[@]}"'
        call = ["bash", "-c", lines, str(script), *words]
    done = subprocess.run(call, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return [offered.partition("\t")[0] for offered in done.stdout.split("\n") if offered]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["tr"], {"trace", "train"}),
        (["data", "import", "c"], {"cifar10", "cifar100"}),
        (["plan", ""], {"diff", "export", "show"}),
        (["plan", "pool", "--with"], {"--within"}),
        (["plan", "pool", "--within", ""], {"pool", "class", "origin"}),
        (["evaluate", "run", "test", "--attacks", "a"], {"autoattack"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["train", "pool", "--seed", "1", ""], set()),  # names of files, of which there are none
    ],
)
def test_shells_complete(
    shell: str,
    words: list[str],
    offered: set[str],
    scripts: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = ask_shell(shell, words, scripts[shell])
    assert set(found) - {f"{tmp_path.name}/"} == offered


def test_only_known_shells_get_a_script(puma: Run) -> None:
    assert puma("completion", "tcsh")[0] == 2
