"""``make fuzz``: damaged files of every kind, each read by the reader that is meant for it.

A case is a reader and a seed, so every one can be repeated alone. A reader may refuse (one PumaError), or accept what
it was meant to read: where the format has checksums, exactly what was written. Everything else is a failure: another
exception, another result, more than ``SECONDS`` or more than ``MEMORY`` beyond what the process had before.
"""

import argparse
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

SECONDS = 10
MEMORY = 1 << 30
CORPUS = Path(__file__).resolve().parents[1] / "tests" / "corpus"


@dataclass(frozen=True)
class Outcome:
    """What became of one case: ``refused``, ``same``, ``accepted`` (no checksum in the format) or a failure."""

    reader: str
    seed: int
    damage: str
    result: str
    detail: str = ""

    @property
    def failed(self) -> bool:
        """Whether the case must not end so."""
        return self.result not in ("refused", "same", "accepted")


class TooSlowError(Exception):
    """A case that took longer than it may."""


def _raise_alarm(_signal: int, _frame: FrameType | None) -> None:
    raise TooSlowError


def limit_memory(more: int = MEMORY) -> None:
    """Let this process map only so much more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        limit = pages * os.sysconf("SC_PAGE_SIZE") + more
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


class ReaderCases:
    """The cases of one reader: a sample that is written once, and what it reads as."""

    def __init__(self, name: str, place: Path) -> None:
        from faults.readers import ANEW, READERS

        self.reader = next(reader for reader in READERS if reader.name == name)
        self.sample, self.copy = place / "sample", place / "copy"
        self.sample.mkdir(parents=True)
        self.reader.write(self.sample)
        self.expected = self.read_copy()
        self.accepted = {self.expected, ANEW}

    def fresh_copy(self) -> Path:
        """Return a copy of the sample, in the same place every time."""
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.sample, self.copy)
        return self.copy

    def read_copy(self) -> str:
        """Read an undamaged copy."""
        return self.reader.read(self.fresh_copy())

    def damage_copy(self, seed: int) -> tuple[str, bool]:
        """Damage a fresh copy; return how, and whether a checksum in it was left out too, as a hostile hand would."""
        from faults.damage import damage_file

        draw = random.Random(f"{self.reader.name} {seed}")
        files = sorted(path for path in self.fresh_copy().rglob("*") if path.is_file())
        path = draw.choice([path for path in files if not path.name.startswith(".")])
        hostile = path.suffix == ".json" and draw.random() < 0.5
        if hostile:
            described = json.loads(path.read_text())
            described.pop("sha256", None)
            path.write_text(json.dumps(described, indent=1))
        return f"{path.relative_to(self.copy)}: {damage_file(path, draw, text=self.reader.text)}", hostile

    def run(self, seed: int) -> Outcome:
        """Damage a copy by a seed and read it."""
        damage, hostile = self.damage_copy(seed)
        return self.judge(seed, damage, hostile=hostile)

    def judge(self, seed: int, damage: str, *, hostile: bool) -> Outcome:
        """Read the damaged copy and say what became of it."""
        from puma.errors import PumaError

        name = self.reader.name
        signal.signal(signal.SIGALRM, _raise_alarm)
        signal.alarm(SECONDS)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = self.reader.read(self.copy)
        except PumaError as error:
            signal.alarm(0)
            if "\n" in str(error).strip():
                return Outcome(name, seed, damage, "not one sentence", str(error))
            return Outcome(name, seed, damage, "refused")
        except TooSlowError:
            return Outcome(name, seed, damage, "too slow", traceback.format_exc(limit=-4))
        except MemoryError:
            return Outcome(name, seed, damage, "too much memory", traceback.format_exc(limit=-4))
        except BaseException as error:
            return Outcome(name, seed, damage, type(error).__name__, traceback.format_exc(limit=-4))
        finally:
            signal.alarm(0)
        if found in self.accepted:
            return Outcome(name, seed, damage, "same")
        if self.reader.checked and not hostile:
            return Outcome(name, seed, damage, "another result")
        return Outcome(name, seed, damage, "accepted")


def run_worker(name: str, seeds: range, say: Connection) -> None:
    """Run cases of one reader in a process of its own; tells each seed, then its outcome."""
    with tempfile.TemporaryDirectory(prefix="puma-fuzz-") as place:
        cases = ReaderCases(name, Path(place))
        limit_memory()
        for seed in seeds:
            say.send(seed)
            say.send(cases.run(seed))


def run_reader(name: str, seeds: range) -> Iterator[Outcome]:
    """Run the cases of a reader in processes; one that dies costs its case, and the next goes on behind it."""
    start, context = seeds.start, multiprocessing.get_context("fork")  # what is imported is there at once
    while start < seeds.stop:
        hear, say = context.Pipe(duplex=False)
        process = context.Process(target=run_worker, args=(name, range(start, seeds.stop), say))
        process.start()
        say.close()
        begun = None
        with suppress(EOFError):
            while True:
                said = hear.recv()
                if isinstance(said, Outcome):
                    begun, start = None, said.seed + 1
                    yield said
                else:
                    begun = said
        process.join()
        if begun is not None:
            yield Outcome(name, begun, "", f"the process died ({process.exitcode})")
            start = begun + 1
        elif process.exitcode:
            raise SystemExit(f"the reader {name!r} fails on its own sample")


def keep_case(outcome: Outcome) -> Path:
    """Add the damaged sample of a case to the corpus that ``make test`` reads."""
    CORPUS.mkdir(parents=True, exist_ok=True)
    path = CORPUS / f"{outcome.reader.replace(' ', '-')}-{outcome.seed}.zip"
    with tempfile.TemporaryDirectory() as place, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        cases = ReaderCases(outcome.reader, Path(place))
        cases.damage_copy(outcome.seed)
        for file in sorted(cases.copy.rglob("*")):
            if file.is_file() and not file.name.startswith("."):
                original = cases.sample / file.relative_to(cases.copy)
                if not original.is_file() or original.read_bytes() != file.read_bytes():
                    archive.write(file, file.relative_to(cases.copy))
    return path


def main() -> None:
    """Fuzz every reader and print a table; the exit code is 1 if anything failed."""
    from faults.readers import READERS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_500, help="over all readers")
    parser.add_argument("--seed", type=int, default=0, help="of the first case of each reader")
    parser.add_argument("--reader", default=None, help="only this one")
    parser.add_argument("--keep", action="store_true", help="add failures to tests/corpus")
    asked = parser.parse_args()
    names = [reader.name for reader in READERS if asked.reader in (None, reader.name)]
    each = -(-asked.cases // len(names))
    begun, failures, total = time.monotonic(), [], Counter[str]()
    print(f"{'reader':<18}{'cases':>8}{'refused':>9}{'same':>7}{'accepted':>10}{'failed':>8}")
    for name in names:
        counts = Counter[str]()
        for outcome in run_reader(name, range(asked.seed, asked.seed + each)):
            kind = "failed" if outcome.failed else outcome.result
            counts[kind] += 1
            if outcome.failed:
                failures.append(outcome)
                if asked.keep:
                    keep_case(outcome)
        total += counts
        print(f"{name:<18}{sum(counts.values()):>8}{counts['refused']:>9}{counts['same']:>7}{counts['accepted']:>10}"
              f"{counts['failed']:>8}", flush=True)  # fmt: skip
    print(f"{'all':<18}{sum(total.values()):>8}{total['refused']:>9}{total['same']:>7}{total['accepted']:>10}"
          f"{total['failed']:>8}   in {time.monotonic() - begun:.0f} s")  # fmt: skip
    for outcome in failures:
        print(f"\nFAILED {outcome.reader} seed {outcome.seed} ({outcome.damage}): {outcome.result}\n{outcome.detail}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
