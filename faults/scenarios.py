"""What can happen to a command while it works: each scenario yields one outcome per disturbance."""

import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from faults.commands import COMMANDS, Bench, Command, Ended, wait_for_end

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_SAID = {signal.SIGTERM: 143, signal.SIGINT: 130}


@dataclass(frozen=True)
class FaultOutcome:
    """One disturbance: of what, which, and what went wrong with it; nothing if it was survived."""

    scenario: str
    command: str
    disturbance: str
    wrong: str = ""
    skipped: bool = False
    cases: int = 1


def find_command(name: str) -> Command:
    """Look a command up."""
    return next(command for command in COMMANDS if command.name == name)


def make_reference(bench: Bench, command: Command) -> tuple[dict[str, str], float]:
    """Run a command undisturbed; return what came out and how long it took."""
    bench.clear()
    ended = bench.run(command.words)
    if ended.code:
        raise SystemExit(f"{command.name} fails undisturbed: {ended.said}")
    found = bench.digest(command.results)
    lacking = [pattern for pattern in (*command.results, *command.made) if not list(bench.out.glob(pattern))]
    if lacking:
        raise SystemExit(f"{command.name} did not make {lacking}")
    return found, ended.seconds


def finish_command(bench: Bench, command: Command, reference: dict[str, str]) -> str:
    """Type the command again until it is done, as a user would; return what is wrong then."""
    words = command.again if command.again and _was_begun(bench, command) else command.words
    ended = bench.run(words)
    if ended.code == 2 and words != command.words:  # nothing was begun yet
        ended = bench.run(command.words)
    if ended.code:
        return f"exit {ended.code} when taken up again: {ended.said[-300:]}"
    if "Traceback" in ended.said:
        return f"a traceback when taken up again: {ended.said[-300:]}"
    found = bench.digest(command.results)
    other = [name for name in {*found, *reference} if found.get(name) != reference.get(name)]
    if other:
        return f"other bytes than undisturbed: {', '.join(sorted(other)[:3])}"
    lacking = [pattern for pattern in command.made if not list(bench.out.glob(pattern))]
    leftovers = bench.find_leftovers()
    return f"{lacking} is missing" if lacking else f"left behind: {leftovers[:3]}" if leftovers else ""


def _was_begun(bench: Bench, command: Command) -> bool:
    folder = bench.split(command.again)[-1]
    return (Path(folder) / "config.json").is_file()


def tell_bad_end(ended: Ended, number: signal.Signals) -> str:
    """Return what is wrong with how a command ended that was sent a signal."""
    if "Traceback" in ended.said:
        return f"a traceback: {ended.said[-400:]}"
    if ended.code in (0, -number):
        return ""  # it was done before, or had not yet begun to listen
    if number != signal.SIGKILL and ended.code == _SAID[number]:
        return "" if len(ended.said.strip()) or number == signal.SIGTERM else "no word"
    return f"exit {ended.code}: {ended.said[-300:]}"


def kill_commands(bench: Bench, draw: random.Random, kills: int) -> Iterator[FaultOutcome]:
    """Kill every command at random moments by every signal, and take it up again: the same bytes come out."""
    for command in COMMANDS:
        reference, seconds = make_reference(bench, command)
        for index in range(kills):
            number = SIGNALS[index % len(SIGNALS)]
            bench.clear()
            moment = draw.uniform(0.02, 1.05) * seconds
            ended = bench.kill_after(command.words, moment, number)
            wrong = tell_bad_end(ended, number)
            if not wrong and draw.random() < 0.3:  # once more while it is taken up
                again = command.again if command.again and _was_begun(bench, command) else command.words
                wrong = tell_bad_end(bench.kill_after(again, draw.uniform(0.02, 0.9) * seconds, number), number)
            wrong = wrong or finish_command(bench, command, reference)
            yield FaultOutcome("kill", command.name, f"{number.name} after {moment:.2f} of {seconds:.2f} s", wrong)


@contextmanager
def mount_small(place: Path, size: str) -> Iterator[bool]:
    """Mount a small file system; False where that is not allowed."""
    place.mkdir(exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    mounted = subprocess.run(words, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], check=False)


def limit_files(size: int) -> Callable[[], None]:
    """Return what makes every write beyond a size fail, where no file system can be mounted."""

    def prepare() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return prepare


def fill_disk(bench: Bench, draw: random.Random, kills: int) -> Iterator[FaultOutcome]:
    """Let the disk be full at some point of every command that writes; then there is room, and it is typed again."""
    names = ("data import", "data distort", "train", "margins", "scores cd", "plan", "plan export", "evaluate",
             "iterate", "generate train", "generate sample", "demo", "run")  # fmt: skip
    for name in names:
        command = find_command(name)
        reference, _ = make_reference(bench, command)
        used = sum(path.stat().st_size for path in bench.out.rglob("*") if path.is_file())
        for _ in range(max(1, kills // 3)):
            bench.clear()
            room = int(used * draw.uniform(0.05, 0.95))
            with mount_small(bench.out, f"{max(room, 4096)}") as mounted:
                kind = f"{room:,} of {used:,} bytes of room" if mounted else f"files of at most {room // 8:,} bytes"
                ended = bench.run(command.words, None if mounted else limit_files(max(room // 8, 512)))
                wrong = tell_refusal(ended, allow_done=True)
                leftovers = bench.find_leftovers()
                if not wrong and leftovers:
                    wrong = f"left behind: {leftovers[:3]}"
                if mounted and not wrong:
                    grow = ["mount", "-o", f"remount,size={4 * used + (64 << 20)}", str(bench.out)]
                    subprocess.run(grow, check=True)
                wrong = wrong or finish_command(bench, command, reference)
            yield FaultOutcome("full disk", name, kind, wrong)


def tell_refusal(ended: Ended, *, allow_done: bool = False) -> str:
    """Return what is wrong with how a command ended that could not do what it was asked for."""
    if allow_done and ended.code == 0:
        return ""
    if ended.code == 2 and ended.said.strip().splitlines()[-1:] and "Traceback" not in ended.said:
        return ""
    return f"exit {ended.code}: {ended.said[-500:]}"


def make_read_only(bench: Bench, _draw: random.Random, _kills: int) -> Iterator[FaultOutcome]:
    """Let the folder of results be read-only: one sentence, exit 2."""
    for command in COMMANDS:
        bench.clear()
        with mount_small(bench.out, "1m") as mounted:
            if not mounted:
                yield FaultOutcome("read-only", command.name, "", "no file system can be mounted here", skipped=True)
                continue
            subprocess.run(["mount", "-o", "remount,ro", str(bench.out)], check=True)
            ended = bench.run(command.words)
        yield FaultOutcome("read-only", command.name, "read-only --out", tell_refusal(ended))


def damage_between(bench: Bench, draw: random.Random, kills: int) -> Iterator[FaultOutcome]:
    """Kill a command, remove, cut or flip a file that it left, and take it up again: same bytes, or one sentence."""
    for name in ("train", "margins", "evaluate", "iterate", "generate train", "generate sample"):
        command = find_command(name)
        reference, seconds = make_reference(bench, command)
        for index in range(kills):
            bench.clear()
            bench.kill_after(command.words, draw.uniform(0.3, 0.9) * seconds, signal.SIGKILL)
            files = [path for path in sorted(bench.out.rglob("*")) if path.is_file() and path.stat().st_size]
            if not files:
                continue
            path, kind = draw.choice(files), ("removed", "cut short", "a bit flipped")[index % 3]
            content = bytearray(path.read_bytes())
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
            cut = draw.randrange(len(content))
            if kind == "removed":
                path.unlink()
            else:
                path.write_bytes(content[:cut] if kind == "cut short" else content)
            shown = f"{path.relative_to(bench.out)} {kind}"
            words = command.again if command.again and _was_begun(bench, command) else command.words
            ended = bench.run(words)
            if ended.code == 0:
                found = bench.digest(command.results)
                other = [key for key in {*found, *reference} if found.get(key) != reference.get(key)]
                logged = path.suffix == ".jsonl" or path.name.endswith(".lock") or path.suffix in (".png", ".html")
                wrong = "" if not other or logged else f"other bytes than undisturbed: {other[:3]}"
            else:
                wrong = tell_refusal(ended)
            yield FaultOutcome("file damaged in between", name, shown, wrong)


_AT_ONCE = ("train", "margins", "generate train", "generate sample", "iterate", "run", "plan", "data import")


def start_two(
    bench: Bench, _draw: random.Random, _kills: int, names: tuple[str, ...] = _AT_ONCE
) -> Iterator[FaultOutcome]:
    """Type a command twice at once: one does it, the other waits or is told; the bytes are the same."""
    for name in names:
        command = find_command(name)
        reference, seconds = make_reference(bench, command)
        bench.clear()
        one = bench.start(command.words)
        wait_for_end(one, 0.3 * seconds)
        words = command.again if command.again and _was_begun(bench, command) else command.words
        two = bench.start(words)
        ends = [bench.wait(two), bench.wait(one)]
        codes = sorted(ended.code for ended in ends)
        wrong = "" if codes in ([0, 0], [0, 2]) else f"exits {codes}: {ends[0].said[-400:]}"
        wrong = wrong or ("a traceback" if any("Traceback" in ended.said for ended in ends) else "")
        wrong = wrong or finish_command(bench, command, reference)
        yield FaultOutcome("two at once", name, f"exits {codes}", wrong)


def jump_clock(bench: Bench, draw: random.Random, _kills: int) -> Iterator[FaultOutcome]:
    """Let the clock jump by days, forth and back, at every look at it: the bytes are the same."""

    def prepare() -> None:
        real = time.time
        time.time = lambda: real() + draw.choice((-1, 1)) * draw.uniform(0, 30 * 86400)
        time.time_ns = lambda: int(time.time() * 1e9)

    for name in ("train", "margins", "evaluate", "iterate", "generate train", "generate sample", "run"):
        command = find_command(name)
        reference, seconds = make_reference(bench, command)
        bench.clear()
        process = bench.start(command.words, prepare)
        if not wait_for_end(process, 0.5 * seconds):
            os.killpg(process, signal.SIGKILL)
        bench.wait(process)
        for path in bench.out.rglob("*"):
            if path.is_file() and draw.random() < 0.5:
                os.utime(path, (0, draw.choice((0, 2**32))))
        yield FaultOutcome("clock jumps", name, "days forth and back", finish_command(bench, command, reference))


SCENARIOS: dict[str, Callable[[Bench, random.Random, int], Iterator[FaultOutcome]]] = {
    "kill": kill_commands,
    "full-disk": fill_disk,
    "read-only": make_read_only,
    "damaged": damage_between,
    "two-at-once": start_two,
    "clock": jump_clock,
}
