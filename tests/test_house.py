"""The layout is the architecture: names mean one thing, a file format has one owner, and doors are few.

Which package may import which is checked by import-linter (``make layers``).
"""

import ast
import re
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import puma
from conftest import MakePool
from puma.training import loop, run

SOURCE = Path(puma.__file__).parent
MODULES = {path.relative_to(SOURCE): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")}
DOORS = 23  # imports between modules in a thousand lines; it was 40

# The names of files that are formats, and the packages that may spell each of them. A run, a generator and a perceptron
# study each have a config.json of their own, and a run and a generator metrics and weights.
OWNERS = {
    "pool.json": {"pools"},
    "images.npy": {"pools"},
    "labels.npy": {"pools"},
    "origin.npy": {"pools"},
    "config.json": {"training", "generation", "perceptron"},
    "metrics.jsonl": {"training", "generation"},
    "model.safetensors": {"training", "generation"},
    "best.safetensors": {"training"},
    "metrics.json": {"evaluation"},
    "experiment.json": {"report"},
    "points.jsonl": {"perceptron"},
}


def list_definitions(kind: type[ast.ClassDef] | type[ast.FunctionDef]) -> dict[str, list[str]]:
    found = defaultdict(list)
    for path, tree in MODULES.items():
        for node in tree.body:
            if isinstance(node, kind):
                found[node.name].append(str(path))
    return found


def list_literals(tree: ast.Module) -> Iterator[str]:
    """Strings that code uses: not docstrings, and not sentences, which may name a file to a reader."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            yield node.value


def list_imports(tree: ast.Module) -> set[str]:
    froms = (node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {module for module in froms if module.split(".")[0] == "puma"}


def list_passed_files(call: Callable[[], object]) -> set[str]:
    """The files of the package in which a call enters a function, in this thread and those that it starts."""
    passed: set[str] = set()

    def note(frame: object, event: str, _: object) -> None:
        if event == "call":
            passed.add(frame.f_code.co_filename)  # type: ignore[attr-defined]

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return {str(Path(name).relative_to(SOURCE)) for name in passed if Path(name).is_relative_to(SOURCE)}


def test_a_class_name_means_one_thing() -> None:
    assert {name: paths for name, paths in list_definitions(ast.ClassDef).items() if len(paths) > 1} == {}


def test_a_public_function_name_means_one_place() -> None:
    named = list_definitions(ast.FunctionDef).items()
    assert {name: paths for name, paths in named if len(paths) > 1 and not name.startswith("_")} == {}


def test_functions_are_no_bare_participles() -> None:
    names = list_definitions(ast.FunctionDef)
    bare = {name: paths for name, paths in names.items() if re.fullmatch(r"_*[a-z]+(ed|ing)", name)}
    assert bare == {}


def test_a_third_of_the_functions_at_most_is_named_by_one_word() -> None:
    names = [name for name, paths in list_definitions(ast.FunctionDef).items() for _ in paths]
    assert sum("_" not in name.strip("_") for name in names) <= len(names) / 3


@pytest.mark.parametrize("name", OWNERS)
def test_a_file_format_is_spelt_by_its_owner_alone(name: str) -> None:
    spelt = {
        str(path)
        for path, tree in MODULES.items()
        if name in {part for text in list_literals(tree) for part in text.split("/")}
    }
    assert spelt, f"nobody spells {name}: was it renamed?"
    assert {path for path in spelt if Path(path).parts[0] not in OWNERS[name]} == set()


def test_packages_use_each_other_by_their_front_doors() -> None:
    """What a package offers stands in its ``__init__``; its modules are imported by each other alone."""
    inside = {
        str(path): {name for name in list_imports(tree) if name.count(".") > 1 and name.split(".")[1] != path.parts[0]}
        for path, tree in MODULES.items()
    }
    assert {path: names for path, names in inside.items() if names} == {}


def test_packages_list_what_they_offer() -> None:
    for path, tree in MODULES.items():
        assigned = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
        if path.name == "__init__.py":
            assert "__all__" in map(ast.unparse, assigned), f"{path} lists no public names"


def test_doors_between_modules_are_few() -> None:
    lines = sum(len((SOURCE / path).read_text(encoding="utf-8").splitlines()) for path in MODULES)
    doors = sum(len(list_imports(tree)) for path, tree in MODULES.items() if path.name != "__init__.py")
    assert doors / lines * 1000 <= DOORS


def test_a_margin_passes_few_files(make_pool: MakePool) -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
    pool, measure = make_pool(shape=(8, 8, 1)), puma.measure_pool
    passed = list_passed_files(lambda: measure(model, pool))
    assert len(passed) <= 16, sorted(passed)


def test_a_training_step_passes_few_files(make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: set[str] = set()
    monkeypatch.setattr(
        run,
        "run_steps",
        lambda *values, **more: passed.update(list_passed_files(lambda: loop.run_steps(*values, **more))),
    )
    pool = make_pool(shape=(8, 8, 1))
    plan = puma.make_plan(pool, prune_random=0.2, eps=0.1)
    puma.train("small-8px", pool, plan=plan, recipe="small-digits", out=tmp_path / "run", samples_seen=256)
    assert "training/step.py" in passed
    assert len(passed) <= 22, sorted(passed)
