"""Code that a run names is imported only when its user trusts it, and only as it was trained with."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import puma as library
from conftest import MakePool, Run
from puma.errors import PumaError
from puma.models import trust
from puma.models.trust import find_code, remember_code
from puma.training.run_folder import RunFolder

NET = """
from pathlib import Path
from torch import nn
Path("trace").write_text("executed")
def make(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
"""


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder, a home and an interpreter that trust nothing yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(trust, "_TRUSTED_HERE", set())
    before = list(sys.path)
    yield
    sys.path[:] = before
    sys.modules.pop("nets", None)


def send_to_somebody(monkeypatch: pytest.MonkeyPatch, home: str = "another") -> None:
    """Forget what was trusted, as another user on another machine."""
    monkeypatch.setenv("XDG_STATE_HOME", home)
    monkeypatch.setattr(trust, "_TRUSTED_HERE", set())
    sys.modules.pop("nets", None)
    Path("trace").unlink(missing_ok=True)


@pytest.fixture
def run(make_pool: MakePool) -> Path:
    Path("nets.py").write_text(NET)
    pool = make_pool(shape=(8, 8, 1), num_classes=3)
    library.train("nets:make", pool, out="run", samples_seen=50, batch_size=50, checkpoint_every=50)
    return Path("run")


def test_ones_own_run_needs_no_flag(run: Path) -> None:
    assert library.load_model(run)(torch.rand(2, 1, 8, 8)).shape == (2, 3)
    (link,) = [link for link in RunFolder(run).read()[1].links if link.kind == "code"]
    assert link.path == str(Path("nets.py").resolve())
    trust._TRUSTED_HERE.clear()  # another process
    assert library.load_model(run)(torch.rand(2, 1, 8, 8)).shape == (2, 3)


def test_somebody_elses_run_is_not_imported(run: Path, puma: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    send_to_somebody(monkeypatch)
    pool, out = str(Path("pool")), "m.parquet"
    Path("nets.py").write_text(NET)
    for words in (
        ("evaluate", "run", pool, "--eps", "0.1"),
        ("margins", pool, "--model", "run", "--out", out),
        ("train", "--resume", "run"),
        ("iterate", pool, "--first", "run", "--out", "rounds"),
        ("data", "filter", pool, "--agree-with", "run", "--out", "kept"),
    ):
        code, _, error = puma(*words)
        assert code == 2, error
        assert f"would import {Path('nets.py').resolve()}" in error.splitlines()[-1]
        assert "--trust-code" in error
        assert not Path("trace").exists()
    with pytest.raises(PumaError, match="that can do anything"):
        library.load_model("run")
    code, _, error = puma("margins", pool, "--model", "run", "--out", out, "--trust-code")
    assert code == 0, error
    assert Path("trace").exists()
    assert library.load_model("run") is not None  # its file is trusted from now on
    send_to_somebody(monkeypatch, "a-third")
    assert library.load_model("run", trust_code=True) is not None


def test_a_run_cannot_vouch_for_itself(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a hash in the run's config, nor modules that are no files, help."""
    config = json.loads((run / "config.json").read_text())
    del config["sha256"]
    for name in ("posix:abort", "os:abort", "builtins:breakpoint", "nets:make", "gone:make", "a.b.c:d", "nets.py:make"):
        config["config"]["model"] = name
        (run / "config.json").write_text(json.dumps(config))
        send_to_somebody(monkeypatch)
        with pytest.raises(PumaError, match="names code to build its model"):
            library.load_model(run)
        assert not Path("trace").exists()


def test_code_that_has_changed_since_is_told(run: Path) -> None:
    Path("nets.py").write_text(NET + "# a comment\n")
    remember_code("nets:make")
    with pytest.raises(PumaError, match=r"nets.py has changed since run was trained with it"):
        library.load_model(run)
    assert library.load_model(run, trust_code=True) is not None


def test_code_is_found_without_being_imported() -> None:
    package = Path("pack/deep")
    package.mkdir(parents=True)
    for place in ("pack/__init__.py", "pack/deep/__init__.py", "pack/deep/nets.py", "single.py"):
        Path(place).write_text("raise SystemExit")
    assert find_code("pack.deep.nets:make") == (package / "nets.py").resolve()
    assert find_code("pack:make") == Path("pack/__init__.py").resolve()
    assert find_code("single.py:make") == Path("single.py").resolve()
    assert find_code("gone:make") is find_code("pack.gone:make") is find_code("gone.py:make") is None
    assert "pack" not in sys.modules


def test_a_home_that_cannot_be_written_to_costs_a_flag_only(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").write_text("")
    send_to_somebody(monkeypatch, "file/below")
    assert library.load_model("nets:make", 3) is not None
    assert library.load_model(run) is not None  # within the process that was told
    trust._TRUSTED_HERE.clear()
    with pytest.raises(PumaError, match="trust-code"):
        library.load_model(run)
