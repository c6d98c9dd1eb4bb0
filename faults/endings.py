"""Commands that read or write Parquet, run to the very end of the interpreter, many times and several at once.

Threads of Arrow may still work when the interpreter ends, and abort a process whose work is done. Every run is a fresh
interpreter, as a user's is: children forked from a process that had imported everything never showed the fault where
fresh ones did.

An interpreter that does no more than read or write one table is ten times as fast, and shows the fault as often. So the
functions by which tables are read, and most of them written, are run many more times, and then what was done before,
until it aborts.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from faults.commands import Bench
from faults.scenarios import FaultOutcome

_AT_ONCE = 4  # on two cores: threads are interrupted at any moment
_SHORT = "--samples-seen 64 --batch-size 32 --attack.steps 1"
_GENERATOR = "--recipe digits-8px --samples-seen 32 --batch-size 16 --net.width 8 --net.blocks 1"
_SMALL = (
    "data distort {base}/digits/train --count 48 --out {base}/small --force",
    "margins {base}/digits/train --model {base}/run --method fast --out {base}/fast.parquet",
    "train {base}/small --samples-seen 96 --batch-size 32 --attack.steps 1 --snapshot-every 32 --out {base}/kept",
    f"generate train {{base}}/digits/train {_GENERATOR} --margins {{base}}/m.parquet --eps 0.1 --out {{base}}/told",
    "plan export {base}/plan.parquet {base}/pictures --to parquet --pool {base}/digits/train",
)
VERBS = {
    "margins": "margins {base}/small --model {base}/run --out {out}/m.parquet",
    "margins show": "margins show {base}/m.parquet --picture {out}/m.png",
    "margins compare": "margins compare {base}/m.parquet {base}/fast.parquet --picture {out}/c.png",
    "margins export": "margins export {base}/m.parquet --pool {base}/digits/train --out {out}/s.csv",
    "scores cd": "scores cd {base}/run --out {out}/cd.parquet",
    "scores dynamics": "scores dynamics {base}/kept --window 2 --out {out}/d.parquet",
    "scores el2n": "scores el2n {base}/small --nets 1 --samples-seen 32 --runs {out}/nets --out {out}/e.parquet",
    "plan": "plan {base}/digits/train --margins {base}/m.parquet --prune-easy 0.2 --eps 0.1 --out {out}/p.parquet",
    "plan show": "plan show {base}/plan.parquet",
    "plan diff": "plan diff {base}/plan.parquet {base}/plan.parquet",
    "plan export": "plan export {base}/plan.parquet {out}/p.csv",
    "plan export to parquet": "plan export {base}/plan.parquet {out}/p --to parquet --pool {base}/digits/train",
    "train": f"train {{base}}/digits/train {_SHORT} --plan {{base}}/plan.parquet --out {{out}}/run",
    "data import parquet": "data import parquet {base}/pictures --size 8 --channels 1 --out {out}/pool",
    "data filter": "data filter {base}/digits/train --margins {base}/m.parquet --band 0 9 --eps 0.1 --out {out}/pool",
    "data subset": "data subset {base}/digits/train --kept-by {base}/plan.parquet --out {out}/pool",
    "generate train": f"generate train {{base}}/digits/train {_GENERATOR} --margins {{base}}/m.parquet --eps 0.1 "
    "--out {out}/generator",
    "generate sample": "generate sample {base}/told --count 8 --band 0 2 --solver.steps 2 --out {out}/pool",
    "iterate": f"iterate {{base}}/small {_SHORT} --rounds 1 --out {{out}}/rounds",
    "report": "report {base}/run {base}/plan.parquet {base}/m.parquet --out {out}/r.html",
    "trace": "trace {base}/plan.parquet",
    "perceptron": "perceptron --figures eps0 --seeds 1 --dimension 20 --alphas 2 --steps 20 --jobs 1 --out {out}/study",
    "run": "run tab-summary --preset smoke --rows TRADES --samples-seen 64 --test-samples 32 --work {out}/work "
    "--out {out}/results --data {out}/data",
    "demo": "demo --samples-seen 64 --seeds 1 --out {out}/demo",
}

_MOST_FORMERLY = 1000  # one in forty aborted
_COLUMNS = "{'sample_id': pa.int64(), 'margin': pa.float32(), 'status': pa.int8()}"
_HEAD = "import sys, pyarrow as pa; from pathlib import Path; path, out = sys.argv[1:]; from puma import tables; "
ACCESSES = {
    "read_head": "tables.read_head(path, 'margins')",
    "read_columns": f"tables.read_columns(path, {_COLUMNS}, 'margins')",
    # never closed
    "open_table": "opened = tables.open_table(Path(path), 'margins'); table = opened.__enter__().read()",
    "write_table": f"read = tables.read_columns(path, {_COLUMNS}, 'margins'); table = pa.table(read); "
    "tables.write_table(out, table.schema, [table], {})",
}
FORMERLY = "import pyarrow.parquet as pq; file = open(path, 'rb'); table = pq.read_table(file)"


@dataclass(frozen=True)
class _Ending:
    code: int
    said: str


def end_commands(bench: Bench, runs: int, verbs: dict[str, str] | None = None) -> Iterator[FaultOutcome]:
    """Run each verb so many times in interpreters of their own, several at once; every exit code must be 0."""
    for words in _SMALL:
        ended = bench.run(words)
        if ended.code:
            raise SystemExit(f"{words} fails undisturbed: {ended.said}")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for name, words in (verbs or VERBS).items():
            bench.clear()
            for index in range(runs):
                (bench.out / str(index)).mkdir()
            lines = [words.format(base=bench.base, out=bench.out / str(index)) for index in range(runs)]
            ends = list(pool.map(run_to_the_end, lines))
            failed = [end for end in ends if end.code]
            wrong = f"exits {dict(Counter(end.code for end in ends))}: {failed[0].said}" if failed else ""
            yield FaultOutcome("end of the interpreter", name, f"{runs} runs, {_AT_ONCE} at once", wrong, cases=runs)


def end_accesses(bench: Bench, runs: int) -> Iterator[FaultOutcome]:
    """Run each way to reach a table so many times in interpreters that do nothing else."""
    bench.clear()
    with ThreadPoolExecutor(2 * _AT_ONCE) as pool:

        def end_all(code: str) -> tuple[dict[int, int], str]:
            lines = [[_HEAD + code, str(bench.base / "m.parquet"), str(bench.out / str(i))] for i in range(runs)]
            ends = list(pool.map(lambda words: _end_interpreter("-c", *words), lines))
            return dict(Counter(end.code for end in ends)), next((end.said for end in ends if end.code), "")

        for name, code in ACCESSES.items():
            counts, said = end_all(code)
            wrong = "" if counts == {0: runs} else f"exits {counts}: {said}"
            yield FaultOutcome("table accesses", name, f"{runs} runs, {2 * _AT_ONCE} at once", wrong, cases=runs)
        seen: Counter[int] = Counter()
        while -signal.SIGABRT not in seen and seen.total() < _MOST_FORMERLY:
            seen.update(end_all(FORMERLY)[0])
        shows = f"exits {dict(seen)}{'' if -signal.SIGABRT in seen else ': nothing aborts here, so nothing is shown'}"
        yield FaultOutcome("table accesses", "as before", shows, skipped=-signal.SIGABRT not in seen, cases=0)


def run_to_the_end(words: str) -> _Ending:
    """Run a command in an interpreter of its own until that has ended by itself."""
    return _end_interpreter("-m", "puma", *words.split())


def _end_interpreter(*words: str) -> _Ending:
    ended = subprocess.run(
        [sys.executable, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
        check=False,
    )
    return _Ending(ended.returncode, ended.stderr.decode(errors="replace")[-300:])
