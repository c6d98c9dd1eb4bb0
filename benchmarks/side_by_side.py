"""Time several ways of doing the same work in turns, so that a noisy machine disturbs all of them alike.

Seconds are processor time of one thread: what else runs on the machine counts little.
"""

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from types import ModuleType

import torch


def interleaved(ways: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, list[float]]:
    """Call each way once per round, the order rotating; return the seconds of every call."""
    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for way in ways.values():
        way()  # warm up
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            begun = time.process_time()
            ways[name]()
            seconds[name].append(time.process_time() - begun)
    return seconds


def ratio(seconds: Mapping[str, list[float]], name: str, base: str) -> tuple[float, float, float]:
    """Median, lowest and highest of the rounds' ratios."""
    ratios = [one / two for one, two in zip(seconds[name], seconds[base], strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def print_table(title: str, seconds: Mapping[str, list[float]], base: str) -> None:
    """Print median seconds and the ratio to the base."""
    print(f"\n{title} (ratio to '{base}': median [lowest, highest] of {len(seconds[base])} rounds)")
    for name, values in seconds.items():
        middle, low, high = ratio(seconds, name, base)
        print(f"  {name:<34}{statistics.median(values):9.4f} s   x {middle:.3f} [{low:.3f}, {high:.3f}]")


def stand_in(*names: str) -> None:
    """Put empty modules where a library imports something that its measured part never uses."""

    class Anything(ModuleType):
        def __getattr__(self, name: str) -> object:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

    for name in names:
        sys.modules.setdefault(name, Anything(name))
