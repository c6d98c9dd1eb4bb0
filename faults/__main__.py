"""``make faults``: disturb every verb and see that nothing is lost."""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from faults.commands import SETUP, Bench
from faults.endings import end_accesses, end_commands
from faults.hosts import disturb_ranks, use_two_hosts
from faults.scenarios import SCENARIOS, FaultOutcome

_ALONE = ("rank", "hosts", "endings", "accesses")

_TIMES = 5  # as many accesses of tables as ends of commands: they take a tenth of the time


def run_scenarios(names: list[str], bench: Bench, seed: int, kills: int, runs: int) -> Iterator[FaultOutcome]:
    """Run scenarios one after the other."""
    for name in names:
        draw = random.Random(f"{name} {seed}")
        if name == "rank":
            yield from disturb_ranks(bench.base, bench.base.parent)
        elif name == "hosts":
            yield from use_two_hosts(bench.base, bench.base.parent)
        elif name == "endings":
            yield from end_commands(bench, runs)
        elif name == "accesses":
            yield from end_accesses(bench, _TIMES * runs)
        else:
            yield from SCENARIOS[name](bench, draw, kills)


def main() -> None:
    """Run what is asked for and print a table; the exit code is 1 if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    known = [*SCENARIOS, *_ALONE]
    parser.add_argument("scenarios", nargs="*", default=[], help=f"any of {', '.join(known)}; all by default")
    parser.add_argument("--kills", type=int, default=6, help="of each command")
    parser.add_argument("--runs", type=int, default=200, help="of each command to the end of the interpreter")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    asked = parser.parse_args()
    unknown = set(asked.scenarios) - set(known)
    if unknown:
        parser.error(f"unknown {', '.join(sorted(unknown))}; known: {', '.join(known)}")

    begun, lost = time.monotonic(), []
    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="puma-faults-") as place:
        bench = Bench(Path(place))
        for words in SETUP:
            ended = bench.run(words)
            if ended.code:
                raise SystemExit(f"{words} fails undisturbed: {ended.said}")
        for outcome in run_scenarios(asked.scenarios or known, bench, asked.seed, asked.kills, asked.runs):
            state = "skipped" if outcome.skipped else "lost" if outcome.wrong else "survived"
            counts.setdefault(outcome.scenario, Counter())[state] += outcome.cases
            if state == "lost":
                lost.append(outcome)
            note = f": {outcome.wrong}" if outcome.wrong else ""
            print(f"{state:<9}{outcome.scenario}, {outcome.command}, {outcome.disturbance}{note}", flush=True)
    print(f"\n{'scenario':<26}{'cases':>7}{'survived':>10}{'lost':>6}{'skipped':>9}")
    for name, counted in counts.items():
        print(f"{name:<26}{counted.total():>7}{counted['survived']:>10}{counted['lost']:>6}{counted['skipped']:>9}")
    print(f"in {time.monotonic() - begun:.0f} s")
    sys.exit(bool(lost))


if __name__ == "__main__":
    main()
