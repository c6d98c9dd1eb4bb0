import os
from pathlib import Path

import pytest

from puma.experiments.presets import ExperimentSetting, find_setting
from puma.experiments.workspace import Workspace


@pytest.fixture(scope="session")
def shared_work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of stages that all tests of a session share, also those of other workers of it."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "puma-smoke-stages"


@pytest.fixture
def setting() -> ExperimentSetting:
    return find_setting("smoke")


@pytest.fixture
def workspace(shared_work: Path, setting: ExperimentSetting, tmp_path: Path) -> Workspace:
    return Workspace(shared_work, setting, tmp_path / "data")
