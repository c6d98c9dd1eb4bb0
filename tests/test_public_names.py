import ast
import inspect
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

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
