"""Processes: what the environment says is checked, and signals end work in good order."""

import os
import signal

import pytest
import torch

from puma.errors import PumaError
from puma.processes import catch_signals, join_processes, resolve_device


def test_alone_without_torchrun() -> None:
    with join_processes("cpu") as group:
        assert (group.rank, group.count, group.device) == (0, 1, torch.device("cpu"))
        assert group.writes
        assert group.mean(3.0) == 3.0


@pytest.mark.parametrize(
    ("variables", "told"),
    [({"WORLD_SIZE": "2"}, "RANK"), ({"WORLD_SIZE": "two"}, "WORLD_SIZE must be"), ({"RANK": "3"}, "RANK is 3 of")],
)
def test_half_an_environment_is_told(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], told: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PumaError, match=told), join_processes():
        pass


@pytest.mark.parametrize("name", ["gpu", "cuda", "cuda:99", "xpu", ""])
def test_a_device_that_is_not_there_is_told(name: str) -> None:
    if name.startswith("cuda") and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(PumaError, match="device"):
        resolve_device(name)


def test_signals_set_a_flag_and_the_second_interrupt_is_real() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with catch_signals() as flag:
        os.kill(os.getpid(), signal.SIGTERM)
        assert flag.number == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) == before
