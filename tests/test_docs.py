"""Every command and every piece of code on the documentation site is run, or at least parsed.

A fenced ``sh`` or ``python`` block is run, block after block of a page in one folder, unless the line before it says
``<!-- not run here: REASON -->``; what takes long is made short. Commands of the other blocks, in running text and in
tables are parsed: the verb must exist and its flags be known.
"""

import ast
import contextlib
import functools
import importlib
import inspect
import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import puma
from puma import cli
from puma.errors import PumaError
from puma.margins import read_margins

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path.stem for path in DOCS.glob("*.md"))
FENCE = re.compile(
    r"(?:^[ ]*<!-- not run here: (?P<reason>[^\n]+?) -->\n)?"
    r"^(?P<indent>[ ]*)```(?P<language>\S*)\n(?P<text>.*?)^(?P=indent)```$",
    flags=re.M | re.S,
)

# verb -> flags that make it short; they replace those of the page
SHORT: dict[str, dict[str, list[str]]] = {
    "train": {"--samples-seen": ["256"], "--snapshot-every": ["128"]},
    "scores dynamics": {"--window": ["2"]},
    "iterate": {"--samples-seen": ["256"]},
    "scores el2n": {"--samples-seen": ["256"]},
    "data distort": {"--count": ["50"]},
    "generate train": {"--samples-seen": ["128"], "--net.width": ["8"]},
    "generate sample": {"--count": ["80"]},
    "evaluate": {"--max-samples": ["4"], "--masking-samples": ["0"], "--curve-samples": ["8"]},
    "perceptron": {
        "--figures": ["eps0.01"],
        "--dimension": ["20"],
        "--seeds": ["1"],
        "--alphas": ["4"],
        "--keeps": ["0.2"],
        "--steps": ["20"],
        "--jobs": ["1"],
    },
}


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    reason: str | None  # why it is not run


def blocks(page: str) -> list[Block]:
    return [Block(found["language"], textwrap.dedent(found["text"]), found["reason"]) for found in FENCE.finditer(page)]


def prose(page: str) -> str:
    return FENCE.sub("", page)


def commands(text: str) -> Iterator[list[str]]:
    """Split a shell block into its commands; a backslash joins lines, what follows # or > is not theirs."""
    for line in text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words[: words.index(">")] if ">" in words else words


def words_of_puma(words: Sequence[str]) -> list[str] | None:
    """Return what follows ``puma``, or ``-m puma`` of torchrun; None for another program."""
    if words[0] == "puma":
        return list(words[1:])
    if words[0] == "torchrun" and "puma" in words and words[words.index("puma") - 1] == "-m":
        return list(words[words.index("puma") + 1 :])
    return None


def read(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


# ---- run


def shortened(words: list[str]) -> list[str]:
    """Replace the flags that decide how long a command takes."""
    verb = cli.find_verb(words)
    for flag, values in SHORT.get(verb or "", {}).items():
        if flag in words:
            start = words.index(flag)
            stop = next((at for at in range(start + 1, len(words)) if words[at].startswith("-")), len(words))
            words = words[:start] + words[stop:]
        words = [*words, flag, *values]
    return words


def run_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = words_of_puma(words)
    assert asked is not None, (
        f"only puma and torchrun -m puma can be run; say why not: <!-- not run here: ... --> {words}"
    )
    parse(asked, monkeypatch)  # as it stands
    short = shortened(asked)
    if words[0] == "puma":
        cli.main(short)
        return
    launcher = [sys.executable, "-m", "torch.distributed.run", *words[1 : words.index("puma") + 1], *short]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(launcher, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def run_python(text: str, number: int, names: dict[str, Any]) -> dict[str, Any]:
    """Run a block with the names that earlier ones of the page left; one that names itself becomes that file."""
    title = re.match(r"# (\w+\.py)\n", text)
    path = Path(title[1] if title else f"block{number}.py")
    path.write_text(text, encoding="utf-8")
    return runpy.run_path(str(path), init_globals=names)


def check_margins_page(printed: str) -> None:
    assert "100% measured" in printed
    assert "below eps" in printed
    assert Path("methods.png").read_bytes()[:4] == b"\x89PNG"
    drawn = json.loads(Path("methods.json").read_text(encoding="utf-8"))
    assert set(drawn["counts"]) == {"margins", "fast"}
    assert sum(drawn["counts"]["margins"]) == int(read_margins("margins.parquet").crossed.sum())
    assert len(drawn["edges"]) == len(drawn["counts"]["fast"]) + 1


def check_scale_out_page(printed: str) -> None:
    assert len(read_margins("margins.parquet")) == 1433
    assert Path("run/model.safetensors").is_file()
    assert "below eps" in printed


# what must have come of a page, beyond that nothing failed
CHECKS: dict[str, Callable[[str], None]] = {
    "measure-your-own-model": check_margins_page,
    "scale-out": check_scale_out_page,
}


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs_in_the_order_of_the_page(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as for python -m puma: modules beside the command
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks(read(page))):
        if block.reason is not None:
            continue
        if block.language == "sh":
            for words in commands(block.text):
                run_command(words, monkeypatch)
        elif block.language == "python":
            names = run_python(block.text, number, names)
    if page in CHECKS:
        CHECKS[page](capsys.readouterr().out)


# ---- parse


def parse(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tyro read a command for a function with the verb's signature that does nothing."""
    load_verb = cli.load_verb

    def load_idle(verb: str, rest: Sequence[str] = ()) -> Callable[..., Any]:
        @functools.wraps(load_verb(verb, rest))
        def idle(*_: object, **__: object) -> None:
            pass

        return idle

    assert cli.find_verb(words) is not None, f"no such command: puma {' '.join(words)}"
    with monkeypatch.context() as patched:
        patched.setattr(cli, "load_verb", load_idle)
        try:
            cli.call_verb(words)
        except SystemExit as stop:  # help
            assert not stop.code, f"does not parse: puma {' '.join(words)}"  # noqa: PT017
        except PumaError as error:
            raise AssertionError(f"does not parse: puma {' '.join(words)} ({error})") from error


@functools.cache
def flags_of(verb: str) -> frozenset[str]:
    """Every flag that the help of a verb mentions."""
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(io.StringIO()) as text:
        patched.setenv("COLUMNS", "250")  # no flag is broken over two lines
        with contextlib.suppress(SystemExit):
            cli.call_verb([*verb.split(), "--help"])
    return frozenset(re.findall(r"--[a-z][a-z0-9.-]*[a-z0-9]", text.getvalue()))


def check_place(words: list[str]) -> None:
    """What make and python -m benchmarks are asked for must exist."""
    if words[0] == "make" and len(words) > 1:
        assert re.search(rf"^{re.escape(words[1])}:.*##", (ROOT / "Makefile").read_text(), flags=re.M), words
    if words[:2] == ["python", "-m"] and words[2].startswith("benchmarks"):
        module = words[2].split(".")[1:] or words[3:4]
        assert (ROOT / "benchmarks" / f"{module[0]}.py").is_file(), words
    if words[0] == "python" and words[1].endswith(".py"):
        assert (ROOT / words[1]).is_file(), words


@pytest.mark.parametrize("page", [*PAGES, "../README"])
def test_what_is_not_run_parses(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for block in blocks(read(page)):
        if block.language == "sh" and (block.reason is not None or page == "../README"):
            for words in commands(block.text):
                asked = words_of_puma(words)
                if asked is None:
                    check_place(words)
                else:
                    parse(asked, monkeypatch)


@pytest.mark.parametrize("page", [*PAGES, "../README"])
def test_commands_in_running_text_exist_with_their_flags(page: str) -> None:
    every_flag = frozenset(flag for verb in cli.COMMANDS for flag in flags_of(verb))
    for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(read(page))):
        words = code.replace(" ...", "").split()
        asked = words_of_puma(words) if words else None
        if asked and asked != ["--version"]:
            verb = cli.find_verb(asked)
            below = [name for name in cli.COMMANDS if name.startswith(f"{' '.join(asked)} ")]
            assert verb or below, f"no such command: {code}"
            known = flags_of(verb) if verb else frozenset({"--help"})
        elif words and words[0].startswith("--"):
            known = every_flag | {"--max-restarts"}  # torchrun's
        else:
            if words:
                check_place(words)
            continue
        for flag in (word.partition("=")[0] for word in (asked or words) if word.startswith("--")):
            group = flag.removesuffix("*") if flag.endswith(".*") else None  # --attack.* is all of them
            found = any(name.startswith(group) for name in known) if group else flag in known
            assert found, f"{flag} of {code!r} is not a flag"


@pytest.mark.parametrize("page", PAGES)
def test_fences_say_what_they_hold(page: str) -> None:
    """So that no command hides in a block that nobody runs."""
    text = read(page)
    assert {block.language for block in blocks(text)} <= {"sh", "python", "text", "json"}
    assert "```" not in prose(text)


def test_the_pictures_of_the_concepts_are_drawn(tmp_path: Path) -> None:
    script = runpy.run_path(str(DOCS / "figures.py"))
    script["main"](tmp_path)
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {path.name for path in (DOCS / "images" / "concepts").iterdir()}
    assert all(f"images/concepts/{name}" in read("concepts") for name in drawn)


def test_a_command_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="no such command"):
        parse(["trane", "digits"], monkeypatch)
    with pytest.raises(AssertionError, match="does not parse"):
        parse(["plan", "digits", "--margin", "m.parquet", "--out", "plan.parquet"], monkeypatch)
    assert "--margins" in flags_of("plan")
    assert "--margin" not in flags_of("plan")
    hidden = blocks("<!-- not run here: needs GPUs -->\n```sh\npuma x\n```\n\n```sh\npuma y \\\n  z  # remark\n```\n")
    assert [(block.text, block.reason) for block in hidden] == [
        ("puma x\n", "needs GPUs"),
        ("puma y \\\n  z  # remark\n", None),
    ]
    assert list(commands(hidden[1].text)) == [["puma", "y", "z"]]


def test_the_api_page_has_every_public_name_and_all_that_the_docs_use() -> None:
    listed = re.findall(r"^::: (puma\.\S+)$", read("api"), flags=re.M)
    assert len(set(listed)) == len(listed)
    for place in listed:
        module, _, name = place.rpartition(".")
        value = getattr(importlib.import_module(module), name)
        assert not inspect.ismodule(value), f"{place} is a module"
        if getattr(value, "__module__", "").endswith(f".{name}"):  # the site would show the module of that name
            assert place == f"{value.__module__}.{name}"
    names = {place.rpartition(".")[2] for place in listed}
    assert set(puma.__all__) <= names
    used = {
        alias.name
        for page in PAGES
        for block in blocks(read(page))
        if block.language == "python"
        for node in ast.walk(ast.parse(block.text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "puma"
        for alias in node.names
    }
    stand_ins = {"read_digits", "write_parts"}  # for images that readers have
    assert used - stand_ins <= names


def test_the_reference_of_the_commands_has_every_verb_and_flag() -> None:
    site = runpy.run_path(str(DOCS / "site.py"))
    pages = site["make_pages"]()
    told = pages["cli.md"]
    for verb in cli.COMMANDS:
        assert f"\n## puma {verb}\n" in told
        own = told.partition(f"\n## puma {verb}\n")[2].partition("\n## puma ")[0]
        missing = [flag for flag in flags_of(verb) - {"--help"} if not flag.partition("no-")[1] and flag not in own]
        assert not [flag for flag in missing if f"`{flag}`" not in own and flag not in prose(own)], (verb, missing)
    assert "{None}" not in told
    assert pages["first-look.md"].count("![") == sum(name.endswith(".png") for name in pages)
