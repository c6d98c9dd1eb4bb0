import ast
import doctest
import inspect
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch

import puma

SOURCE = Path(puma.__file__)


@pytest.mark.parametrize("name", puma.__all__)
def test_every_public_name_is_there_and_explains_itself(name: str) -> None:
    value = getattr(puma, name)
    assert value.__name__ == name
    written = inspect.getdoc(value)
    assert written
    assert not written.startswith(f"{name}(")  # what dataclasses write by themselves
    assert name in dir(puma)


def test_type_checkers_are_told_the_same_names() -> None:
    told = {
        alias.asname
        for node in ast.walk(ast.parse(SOURCE.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    assert told == set(puma.__all__)


def test_the_version_is_the_installed_one() -> None:
    assert puma.__version__ == version("puma-pruning")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = puma.nothing


def test_the_import_alone_waits_for_nothing() -> None:
    code = (
        "import sys, puma; print([name for name in ('torch', 'numpy', 'pyarrow', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", puma.__all__)
def test_the_example_of_every_public_name_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    value = getattr(puma, name)
    tests = finder.find(value, name, globs={"puma": puma, "torch": torch, "np": np})
    assert any(test.name == name and test.examples for test in tests), f"puma.{name} shows no example"
    for test in tests:
        runner.run(test, clear_globs=False)
    assert not runner.failures, capsys.readouterr().out
