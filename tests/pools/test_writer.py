import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from puma.errors import PumaError
from puma.pools import Pool
from puma.pools.writer import NpyAppender, PoolPart, write_parts

IMAGES = np.zeros((4, 2, 2, 1), dtype=np.uint8)
LABELS = np.array([0, 1, 0, 1])


def part(images: NDArray[np.generic] = IMAGES, labels: NDArray[np.generic] = LABELS) -> PoolPart:
    return PoolPart([(images, labels)], ["a", "b"], len(images))


def test_npy_of_unknown_length_is_a_plain_npy(tmp_path: Path) -> None:
    rows = np.arange(60, dtype=np.int64).reshape(20, 3)
    with NpyAppender(tmp_path / "x.npy", np.int64) as file:
        for start in (0, 7, 14):
            file.append(rows[start : start + 7])
    assert np.array_equal(np.load(tmp_path / "x.npy"), rows)
    assert np.array_equal(np.load(tmp_path / "x.npy", mmap_mode="r"), rows)


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (part(labels=np.array([0, 1, 0, 2])), r"labels must lie in 0..1, got 0..2"),
        (part(labels=np.array([0, 1, 0, -1])), r"got -1..1"),
        (part(labels=np.array([0.0, 1, 0, 1])), "labels must be integers"),
        (part(labels=np.array([0, 1, 0])), "as many labels as images, got 3 labels for 4 images"),
        (part(labels=np.zeros(4, dtype=int)), "no image of class b; complete the source"),
        (part(images=IMAGES.astype(np.float32)), r"images must be uint8 from 0 to 255 \(got float32\)"),
        (part(images=np.full((4, 2, 2, 1), np.nan)), "NaN among them"),
        (part(images=np.zeros((4, 3, 32, 32), dtype=np.uint8)), r"1 or 3 channels\), got shape \(4, 3, 32, 32\)"),
        (part(images=np.zeros((4, 2, 2), dtype=np.uint8)), r"got shape \(4, 2, 2\)"),
        (PoolPart([(IMAGES, LABELS), (IMAGES[:, :1], LABELS)], ["a", "b"], 8), "images must all be"),
        (PoolPart([], ["a"], 0), "holds no images"),
        (PoolPart([(IMAGES, LABELS)], ["a", "a"], 4), "class names must differ"),
        (part(images=np.zeros((4, 0, 2, 1), dtype=np.uint8)), r"got shape \(4, 0, 2, 1\)"),
    ],
)
def test_bad_content_leaves_nothing_behind(tmp_path: Path, broken: PoolPart, sentence: str) -> None:
    with pytest.raises(PumaError, match=sentence):
        write_parts({"train": part(), "test": broken}, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_middle_leaves_nothing_behind(tmp_path: Path) -> None:
    def chunks() -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
        yield IMAGES, LABELS
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_parts({"": PoolPart(chunks(), ["a", "b"], 8)}, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_replaced_only_on_request(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_parts({"": part()}, out)
    with pytest.raises(PumaError, match="exists already; choose another --out, or give --force"):
        write_parts({"": part()}, out)
    write_parts({"": part(IMAGES + 1)}, out, force=True)
    assert Pool.open(out).batch([0]).images.max() == 1
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(PumaError, match="holds something else than pools, so --force does not replace it"):
        write_parts({"": part()}, mine, force=True)
    assert (mine / "thesis.txt").exists()
    write_parts({"": part()}, mine / "pool")
    with pytest.raises(PumaError, match="holds something else than pools"):
        write_parts({"train": part()}, mine, force=True)
    assert (mine / "thesis.txt").exists()
    both = tmp_path / "both"
    write_parts({"train": part(), "test": part()}, both)
    write_parts({"train": part(IMAGES + 2)}, both, force=True)
    assert [path.name for path in both.iterdir()] == ["train"]


@pytest.mark.parametrize("out", [".", ".."])
def test_the_current_folder_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    inner = tmp_path / "inner"
    write_parts({"train": part()}, inner)
    monkeypatch.chdir(inner)
    with pytest.raises(PumaError, match="is the current folder or above it"):
        write_parts({"": part()}, Path(out), force=True)
    assert Pool.open(inner / "train")


def test_a_folder_that_appears_meanwhile_is_not_touched(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def chunks() -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
        yield IMAGES, LABELS
        out.mkdir()
        (out / "thesis.txt").write_text("years of work")

    with pytest.raises(PumaError, match="exists already"):
        write_parts({"": PoolPart(chunks(), ["a", "b"], 4)}, out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (out / "thesis.txt").exists()


def test_what_a_killed_import_left_is_cleaned_up(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f".out.partial-{dead.pid}").mkdir()
    alive = tmp_path / f".out.partial-{os.getppid()}"
    alive.mkdir()
    write_parts({"": part()}, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == [alive.name, "out"]


def test_a_pool_that_a_killed_import_had_moved_away_comes_back(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    write_parts({"": part()}, tmp_path / "out")
    old = tmp_path / f".out.old-{dead.pid}"
    (tmp_path / "out").rename(old)
    assert len(Pool.open(tmp_path / "out")) == 4
    (tmp_path / "out").rename(old)
    with pytest.raises(PumaError, match="exists already"):
        write_parts({"": part()}, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("exchange", [True, False])
def test_a_replaced_pool_is_there_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    """Killed before any rename of a forced import, there is the old pool or the new one when it is opened next."""
    write_parts({"": part()}, tmp_path / "out")
    if not exchange:
        monkeypatch.setattr("puma.pools.writer._exchange", lambda one, two: False)
    renamed: list[int] = []
    rename = Path.rename

    def look_and_rename(self: Path, target: Path) -> Path:
        if self.parent != tmp_path:
            return rename(self, target)
        snapshot = tmp_path.with_name(f"{tmp_path.name}-{len(renamed)}")
        shutil.copytree(tmp_path, snapshot)  # what a kill at this moment would leave, of a process that is gone
        for path in list(snapshot.glob(".out.*")):
            rename(path, path.with_name(path.name.replace(str(os.getpid()), "99999999")))
        assert len(Pool.open(snapshot / "out")) == 4
        renamed.append(1)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", look_and_rename)
    write_parts({"": part()}, tmp_path / "out", force=True)
    assert len(renamed) == (1 if exchange else 2)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_failed_replacement_keeps_the_old_pool(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_parts({"": part()}, out)
    with pytest.raises(PumaError):
        write_parts({"": part(labels=np.array([0, 1, 0, 7]))}, out, force=True)
    assert len(Pool.open(out)) == 4


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on file size stands in for the full disk: the same failing write, where the test needs no rights."""
    np.savez(tmp_path / "x.npz", image=np.zeros((3000, 8, 8, 3), dtype=np.uint8), label=np.zeros(3000, dtype=int))

    def limit() -> None:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    command = [sys.executable, "-m", "puma", "data", "import", "npz", "x.npz", "--out", "out"]
    done = subprocess.run(command, cwd=tmp_path, preexec_fn=limit, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("puma: File too large")
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]
