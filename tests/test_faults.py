"""The short form of ``make faults``: a few kills, a full disk and two at once, in the shortest commands."""

import os
import random
import signal
from typing import Any
from unittest import mock

import pytest
from faults import scenarios
from faults.commands import SETUP, Bench, Command
from faults.endings import VERBS, run_to_the_end
from faults.scenarios import FaultOutcome, find_command

from puma.cli import COMMANDS, find_verb
from puma.training.checkpoint import save_checkpoint

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="processes are forked and waited for as Linux can"
)
SHORT = ("train", "margins", "plan")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench(tmp_path_factory.mktemp("faults"))
    for words in SETUP[:4]:
        ended = made.run(words.replace("--samples-seen 1600", "--samples-seen 320"))
        assert ended.code == 0, ended.said
    return made


def shorten(command: Command) -> Command:
    words = command.words.replace("--samples-seen 1600", "--samples-seen 480").replace("-every 320", "-every 96")
    return Command(command.name, words, command.results, command.again, command.made)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "COMMANDS", tuple(shorten(find_command(name)) for name in SHORT))


def tell_lost(outcomes: list[FaultOutcome]) -> list[FaultOutcome]:
    assert outcomes
    return [outcome for outcome in outcomes if outcome.wrong and not outcome.skipped]


def test_a_kill_costs_nothing(bench: Bench) -> None:
    assert tell_lost(list(scenarios.kill_commands(bench, random.Random(1), 1))) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_training_that_is_asked_to_stop_saves_what_it_has(bench: Bench, number: signal.Signals) -> None:
    command = find_command("train")
    bench.clear()
    hear, say = os.pipe()

    def tell_checkpoints() -> None:
        def save_and_tell(*values: Any) -> Any:
            saved = save_checkpoint(*values)
            os.write(say, b".")
            return saved

        mock.patch("puma.training.loop.save_checkpoint", save_and_tell).start()

    process = bench.start(command.words.replace("--samples-seen 480", "--samples-seen 100000"), tell_checkpoints)
    os.close(say)
    assert os.read(hear, 1) == b"."  # nothing comes when the process has ended
    os.close(hear)
    os.kill(process, number)
    ended = bench.wait(process, 60)
    assert ended.code == 128 + number, ended.said
    assert "go on with: puma train --resume" in ended.said


def test_a_full_disk_is_one_sentence(bench: Bench) -> None:
    """Every write beyond some size fails, as where no file system can be mounted."""
    for name in ("train", "margins"):
        bench.clear()
        ended = bench.run(find_command(name).words, scenarios.limit_files(3000))
        assert scenarios.tell_refusal(ended) == "", ended
        assert bench.find_leftovers() == []


def test_two_at_once(bench: Bench) -> None:
    outcomes = list(scenarios.start_two(bench, random.Random(0), 1, ("margins", "plan")))
    assert tell_lost(outcomes) == []


def test_endings_are_told_as_they_are() -> None:
    assert run_to_the_end("--version").code == 0
    ended = run_to_the_end("plan show nowhere")
    assert (ended.code, "nowhere" in ended.said) == (2, True)
    assert {find_verb(words.split()) for words in VERBS.values()} <= set(COMMANDS)
