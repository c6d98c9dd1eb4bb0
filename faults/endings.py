"""Commands that read or write Parquet, run to the very end of the interpreter, many times and several at once.

Threads of Arrow may still work when the interpreter ends, and abort a process whose work is done. So each command runs
in a child of a process that has imported everything, and ends there as any Python program does, never by ``os._exit``.
``python -m faults.endings`` is that process: a line of words in, an exit code out.
"""

import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from faults.commands import Bench
from faults.scenarios import FaultOutcome

_AT_ONCE = 4  # on two cores: threads are interrupted at any moment
_SMALL = (
    "data distort {base}/digits/train --count 48 --out {base}/small --force",
    "margins {base}/digits/train --model {base}/run --method fast --out {base}/fast.parquet",
)
_SHORT = "--samples-seen 64 --batch-size 32 --attack.steps 1"
VERBS = {
    "margins": "margins {base}/small --model {base}/run --out {out}/m.parquet",
    "margins show": "margins show {base}/m.parquet",
    "margins compare": "margins compare {base}/m.parquet {base}/fast.parquet --picture {out}/c.png",
    "margins export": "margins export {base}/m.parquet --pool {base}/digits/train --out {out}/s.csv",
    "scores cd": "scores cd {base}/run --out {out}/cd.parquet",
    "scores el2n": "scores el2n {base}/small --nets 1 --samples-seen 32 --runs {out}/nets --out {out}/e.parquet",
    "plan": "plan {base}/digits/train --margins {base}/m.parquet --prune-easy 0.2 --eps 0.1 --out {out}/p.parquet",
    "plan show": "plan show {base}/plan.parquet",
    "plan diff": "plan diff {base}/plan.parquet {base}/plan.parquet",
    "plan export": "plan export {base}/plan.parquet {out}/p.csv",
    "train": f"train {{base}}/digits/train {_SHORT} --plan {{base}}/plan.parquet --out {{out}}/run",
    "data filter": "data filter {base}/digits/train --margins {base}/m.parquet --band 0 9 --eps 0.1 --out {out}/pool",
    "iterate": f"iterate {{base}}/small {_SHORT} --rounds 1 --out {{out}}/rounds",
    "report": "report {base}/run {base}/plan.parquet {base}/m.parquet --out {out}/r.html",
    "trace": "trace {base}/plan.parquet",
    "perceptron": "perceptron --figures eps0 --seeds 1 --dimension 20 --alphas 2 --steps 20 --jobs 1 --out {out}/study",
}


def end_commands(bench: Bench, runs: int) -> Iterator[FaultOutcome]:
    """Run each verb so many times, several at once; every exit code must be 0."""
    for words in _SMALL:
        ended = bench.run(words)
        if ended.code:
            raise SystemExit(f"{words} fails undisturbed: {ended.said}")
    with ExitStack() as stack:
        servers = [stack.enter_context(start_server()) for _ in range(_AT_ONCE)]
        for name, words in VERBS.items():
            bench.clear()
            shares: list[list[str]] = [[] for _ in servers]
            for index in range(runs):
                (bench.out / str(index)).mkdir()
                shares[index % _AT_ONCE].append(words.format(base=bench.base, out=bench.out / str(index)))
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                codes = Counter(code for part in pool.map(run_in_children, servers, shares) for code in part)
            wrong = "" if codes == {"0": runs} else f"exits {dict(codes)}"
            yield FaultOutcome("end of the interpreter", name, f"{runs} runs, {_AT_ONCE} at once", wrong, cases=runs)


def start_server() -> subprocess.Popen[str]:
    """Start a process that runs commands in children."""
    words = [sys.executable, "-m", "faults.endings"]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def run_in_children(server: subprocess.Popen[str], commands: list[str]) -> list[str]:
    """Run commands one after the other, each in a child that ends by itself; return their exit codes."""
    assert server.stdin is not None
    assert server.stdout is not None
    codes = []
    for command in commands:
        server.stdin.write(f"{command}\n")
        server.stdin.flush()
        codes.append(server.stdout.readline().strip() or "none")
    return codes


def serve_commands() -> list[str]:
    """Fork a child for every line of standard input and tell its exit code; in the child return its words."""
    while line := sys.stdin.readline():
        process = os.fork()
        if not process:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(null, 1)
            return shlex.split(line)
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return []


if __name__ == "__main__":
    import matplotlib.figure  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import torch  # noqa: F401

    from puma.cli import evaluate, generate, main, margins, perceptron, plan, report, train  # noqa: F401

    given = serve_commands()
    if given:
        main(given)
