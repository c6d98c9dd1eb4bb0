"""The short form of ``make fuzz``: every reader on a few damaged files, on what is no file, and on what once failed."""

import zipfile
from pathlib import Path

import pytest
from faults.damage import KINDS, replace_file
from faults.fuzz import CORPUS, ReaderCases
from faults.readers import READERS

NAMES = [reader.name for reader in READERS]


@pytest.mark.parametrize("name", NAMES)
def test_damage_is_told_or_does_not_matter(name: str, tmp_path: Path) -> None:
    cases = ReaderCases(name, tmp_path)
    for seed in range(1_000_000, 1_000_006):  # not those of make fuzz
        outcome = cases.run(seed)
        assert not outcome.failed, outcome


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_file_is_told(name: str, tmp_path: Path) -> None:
    """A pipe would block for ever, a loop of links and a folder raise something else."""
    cases = ReaderCases(name, tmp_path)
    for kind in KINDS:
        files = sorted(path for path in cases.fresh_copy().rglob("*") if path.is_file() and path.name[0] != ".")
        outcome = cases.judge(0, replace_file(files[-1], kind), hostile=True)
        assert not outcome.failed, outcome


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.zip")), ids=lambda path: path.stem)
def test_what_once_failed_does_not_fail_again(path: Path, tmp_path: Path) -> None:
    name = next(name for name in NAMES if path.stem.rpartition("-")[0] == name.replace(" ", "-"))
    cases = ReaderCases(name, tmp_path)
    with zipfile.ZipFile(path) as archive:
        archive.extractall(cases.fresh_copy())
    outcome = cases.judge(0, path.stem, hostile=True)
    assert not outcome.failed, outcome
