"""Files: whole or not at all, read without trust."""

import errno
import multiprocessing
import os
from pathlib import Path

import pytest

from puma.errors import PumaError
from puma.files import (
    hash_file,
    hash_json,
    lock,
    open_regular,
    read_json,
    replace_atomically,
    write_checked_json,
    write_json,
    write_text,
)


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", "old")
    with pytest.raises(AssertionError), replace_atomically(path) as partial:
        assert partial.write_text("new") == 0
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "x"),
        Exception("I/O error (os error 28)"),
        Exception("I/O error: x (os error 27)"),
        Exception('IoError(Os { code: 27, kind: FileTooLarge, message: "File too large" })'),  # safetensors before 0.5
    ],
)
def test_a_full_disk_is_one_sentence(tmp_path: Path, error: Exception) -> None:
    with (
        pytest.raises(PumaError, match=r"cannot write .*a\.txt: (No space left|File too large)"),
        replace_atomically(tmp_path / "a.txt"),
    ):
        raise error


def test_leftovers_of_dead_processes_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    with replace_atomically(tmp_path / "a.txt") as partial:
        partial.write_text("1")
        head, _, _ = partial.name.rpartition("-")
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join()
    dead, living = (tmp_path / f"{head}-{pid}.partial" for pid in (process.pid, os.getppid()))
    dead.touch()
    living.touch()
    write_text(tmp_path / "a.txt", "2")
    assert not dead.exists()
    assert living.exists()


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(PumaError, match=r"regular file|cannot read"):
            open_regular(path)
    with pytest.raises(PumaError, match="no file at"):
        open_regular(tmp_path / "absent")


@pytest.mark.parametrize("text", [b"{", b"[" * 200_000, b"[]", b"\xff\xfe{}", b"{'a': 1}", b""])
def test_damaged_json_is_one_sentence(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(PumaError, match="damaged"):
        read_json(tmp_path / "a.json", "a config")


def test_json_comes_back_and_hashes_do_not_depend_on_order(tmp_path: Path) -> None:
    path = write_json(tmp_path / "sub" / "a.json", {"b": 1, "a": [2]})
    assert read_json(path, "a config") == {"a": [2], "b": 1}
    assert hash_json({"b": 1, "a": [2]}) == hash_json({"a": [2], "b": 1}) != hash_json({"a": [3], "b": 1})
    assert hash_file(write_text(tmp_path / "empty", "")).startswith("e3b0c44298fc1c14")  # SHA-256 of nothing


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    with lock(tmp_path / "x"), pytest.raises(PumaError, match="busy"), lock(tmp_path / "x", busy="busy"):
        pass
    with lock(tmp_path / "x"):
        pass


def test_a_checked_object_that_was_changed_is_told(tmp_path: Path) -> None:
    path = write_checked_json(tmp_path / "a.json", {"one": 1, "two": (0.1, None)})
    assert read_json(path, "an object") == {"one": 1, "two": [0.1, None]}
    path.write_text(path.read_text().replace("0.1", "0.2"))
    with pytest.raises(PumaError, match="it has changed since it was written; if that was meant, remove 'sha256'"):
        read_json(path, "an object")
    path.write_text('{"one": 2}')
    assert read_json(path, "an object") == {"one": 2}
