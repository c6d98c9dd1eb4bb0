"""Commands to disturb, each with what must come out of it to the last bit, and how they are run in a process."""

import hashlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Command:
    """A verb with its flags; ``{base}`` is the folder of its inputs, ``{out}`` where its results go.

    ``again`` is what is typed after an interruption, the same unless given. ``results`` are the files, as patterns
    below ``{out}``, that are the same bytes however often it was disturbed; ``made`` must be there at least.
    """

    name: str
    words: str
    results: tuple[str, ...]
    again: str = ""
    made: tuple[str, ...] = ()


_SHORT = "--samples-seen 1600 --batch-size 32 --checkpoint-every 320 --log-every 5"
_TRAIN = f"{_SHORT} --attack.steps 3"
_GENERATOR = "--samples-seen 640 --batch-size 32 --checkpoint-every 128 --log-every 5 --net.width 8 --net.blocks 1"

COMMANDS: tuple[Command, ...] = (
    Command("data import", "data import digits --out {out}/pool --force", ("pool/*/*.npy", "pool/*/pool.json")),
    Command("data distort", "data distort {base}/digits/train --count 600 --out {out}/pool --force",
            ("pool/*.npy", "pool/pool.json")),
    Command("train", f"train {{base}}/digits/train {_TRAIN} --out {{out}}/run", ("run/model.safetensors",),
            "train --resume {out}/run"),
    Command("train with a plan", f"train {{base}}/digits/train {_TRAIN} --plan {{base}}/plan.parquet --held-out 100 "
            "--evaluate-every 640 --out {out}/run", ("run/model.safetensors",), "train --resume {out}/run"),
    Command("margins", "margins {base}/digits/train --model {base}/run --part-size 128 --out {out}/m.parquet",
            ("m.parquet",)),
    Command("scores cd", "scores cd {base}/run --out {out}/cd.parquet --force", ("cd.parquet",)),
    Command("scores el2n", "scores el2n {base}/digits/train --nets 2 --samples-seen 640 --runs {out}/nets "
            "--out {out}/el2n.parquet --force", ("el2n.parquet", "nets/*/model.safetensors")),
    Command("plan", "plan {base}/digits/train --margins {base}/m.parquet --prune-easy 0.2 --eps 0.1 "
            "--out {out}/p.parquet --force", ("p.parquet",)),
    Command("plan export", "plan export {base}/plan.parquet {out}/p.csv --force", ("p.csv",)),
    Command("evaluate", "evaluate {base}/run {base}/digits/test --eps 0.1 --attacks clean cw pgd20 --batch-size 32 "
            "--masking-samples 16 --curve-samples 32 --out {out}/evaluation", ("evaluation/metrics.json",)),
    Command("iterate", f"iterate {{base}}/digits/train {_TRAIN} --rounds 1 --out {{out}}/rounds",
            ("rounds/*/model.safetensors", "rounds/*.parquet")),
    Command("generate train", f"generate train {{base}}/digits/train {_GENERATOR} --out {{out}}/generator",
            ("generator/model.safetensors",), "generate train --resume {out}/generator"),
    Command("generate sample", "generate sample {base}/generator --count 200 --out {out}/pool --solver.steps 4 --force",
            ("pool/*.npy", "pool/pool.json")),
    Command("data filter", "data filter {base}/digits/train --agree-with {base}/run --out {out}/pool --force",
            ("pool/*.npy", "pool/pool.json")),
    Command("report", "report {base}/run {base}/plan.parquet {base}/m.parquet --out {out}/r.html", (),
            made=("r.html",)),
    Command("demo", "demo --samples-seen 640 --seeds 1 --out {out}/demo",
            ("demo/**/model.safetensors", "demo/**/*.npy"), made=("demo/**/*.html",)),
    Command("run", "run tab-summary --preset smoke --rows TRADES --samples-seen 640 --work {out}/work "
            "--out {out}/results --data {out}/data", ("work/**/model.safetensors",), made=("results/tab-summary.csv",)),
    Command("perceptron", "perceptron --figures eps0 --seeds 2 --dimension 50 --alphas 2 3 --out {out}/study",
            (), made=("study/results.parquet",)),
)  # fmt: skip

SETUP = (
    "data import digits --out {base}/digits",
    f"train {{base}}/digits/train {_TRAIN} --out {{base}}/run",
    "margins {base}/digits/train --model {base}/run --out {base}/m.parquet",
    "plan {base}/digits/train --margins {base}/m.parquet --prune-easy 0.2 --eps 0.1 --out {base}/plan.parquet",
    f"generate train {{base}}/digits/train {_GENERATOR} --out {{base}}/generator",
)


@dataclass
class Ended:
    """How a process ended: exit code (negative for a signal), and what it said on standard error."""

    code: int
    said: str
    seconds: float


def wait_for_end(process: int, seconds: float) -> bool:
    """Wait until a child has ended, at most so many seconds; it stays to be waited for."""
    handle = os.pidfd_open(process)
    try:
        ended, _, _ = select.select([handle], [], [], seconds)
    finally:
        os.close(handle)
    return bool(ended)


class Bench:
    """Two folders, inputs and outputs, and processes that are forked from this one: they begin to work at once."""

    def __init__(self, place: Path) -> None:
        self.base, self.out, self.logs = place / "base", place / "out", place / "logs"
        for folder in (self.base, self.out, self.logs):
            folder.mkdir(parents=True, exist_ok=True)

    def split(self, words: str) -> list[str]:
        """Return the words of a command with the folders filled in."""
        return [word.format(base=self.base, out=self.out) for word in words.split()]

    def start(self, words: str, prepare: Callable[[], None] | None = None) -> int:
        """Fork a process that runs a command; ``prepare`` is called in it first."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        process = os.fork()
        if process:
            return process
        code = 1
        try:  # the child: nothing of it may return to the caller
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            log = os.open(self.logs / str(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            for target, source in ((0, null), (1, null), (2, log)):
                os.dup2(source, target)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)  # whoever had replaced them
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            if prepare is not None:
                prepare()
            from puma.cli import main

            main(self.split(words))
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(bool(stop.code))
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def wait(self, process: int, seconds: float = 600.0) -> Ended:
        """Wait for a process; one that hangs is killed and told."""
        begun = time.monotonic()
        hung = not wait_for_end(process, seconds)
        if hung:
            os.killpg(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        log = self.logs / str(process)
        said = log.read_text(errors="replace") if log.exists() else ""
        log.unlink(missing_ok=True)
        code = -1000 if hung else os.waitstatus_to_exitcode(status)
        return Ended(code, f"it hung: {said}" if hung else said, time.monotonic() - begun)

    def run(self, words: str, prepare: Callable[[], None] | None = None) -> Ended:
        """Run a command to its end."""
        return self.wait(self.start(words, prepare))

    def kill_after(self, words: str, seconds: float, number: signal.Signals) -> Ended:
        """Run a command and send it a signal after so many seconds."""
        process = self.start(words)
        wait_for_end(process, seconds)
        try:
            if number == signal.SIGKILL:
                os.killpg(process, number)
            else:
                os.kill(process, number)
        except ProcessLookupError:
            pass
        return self.wait(process)

    def clear(self) -> None:
        """Empty the folder of results."""
        subprocess.run(["rm", "-rf", str(self.out)], check=True)
        self.out.mkdir()

    def digest(self, patterns: Sequence[str]) -> dict[str, str]:
        """Return a hash of every file that the patterns name."""
        found: dict[str, str] = {}
        for pattern in patterns:
            places = [path for path in sorted(self.out.glob(pattern)) if path.is_file()]
            if not places:
                found[pattern] = "nothing"
            for path in places:
                if not any(part.startswith(".") for part in path.relative_to(self.out).parts):
                    found[str(path.relative_to(self.out))] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found

    def find_leftovers(self) -> list[str]:
        """Return temporary files that lie about once no process works any more."""
        return [str(path.relative_to(self.out)) for path in self.out.rglob(".*.partial")]
