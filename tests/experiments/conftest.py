from pathlib import Path

import pytest

from puma.experiments.presets import Setting, setting_for
from puma.experiments.workspace import Workspace


@pytest.fixture(scope="session")
def shared_work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of stages that all tests share, also those of other workers: what one trained the others find."""
    return tmp_path_factory.getbasetemp().parent / "puma-smoke-stages"


@pytest.fixture
def setting() -> Setting:
    return setting_for("smoke")


@pytest.fixture
def workspace(shared_work: Path, setting: Setting, tmp_path: Path) -> Workspace:
    return Workspace(shared_work, setting, tmp_path / "data")
