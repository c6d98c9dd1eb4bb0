"""Fixtures that several test files use."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from puma.cli import main
from puma.pools import Pool
from puma.pools.writer import PoolPart, new_folder, write_pool

torch.set_num_threads(1)  # tests run side by side


@pytest.fixture(autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what tests trust out of the user's home."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))


@pytest.fixture(scope="session")
def robust_nets() -> Path:
    path = os.environ.get("PUMA_ROBUST_NETS")
    if not path:
        pytest.skip("needs PUMA_ROBUST_NETS=DIR with robust_cifar10_eps2.safetensors and _eps8; see CONTRIBUTING.md")
    return Path(path)


@pytest.fixture(scope="session")
def cifar10_test() -> Pool:
    path = os.environ.get("PUMA_CIFAR10")
    if not path:
        pytest.skip("needs PUMA_CIFAR10=DIR, where DIR was written by: puma data import cifar10")
    return Pool.open(Path(path) / "test")


MakePool = Callable[..., Pool]


@pytest.fixture
def make_pool(tmp_path: Path) -> MakePool:
    """Return a function that writes a pool of random images; calls with other names give other pools."""

    def make(
        name: str = "pool",
        count: int = 50,
        *,
        shape: tuple[int, int, int] = (6, 5, 3),
        num_classes: int = 4,
        origin: int = 0,
        seed: int = 0,
    ) -> Pool:
        rng = np.random.default_rng(seed)
        images = rng.integers(256, size=(count, *shape)).astype(np.uint8)
        labels = np.arange(count) % num_classes
        part = PoolPart([(images, labels)], [f"class{index}" for index in range(num_classes)], count, origin)
        with new_folder(tmp_path / name, force=False) as folder:
            write_pool(folder, part)
        return Pool.open(tmp_path / name)

    return make


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def puma(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command in this process: exit code, standard output, standard error."""

    def run(*words: str) -> tuple[int, str, str]:
        try:
            main(words)
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
