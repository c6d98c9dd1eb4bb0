"""Reports on large files: time, memory and size of the page (``python -m benchmarks report``).

Fifty thousand images (150 MB of pixels) with margins and a plan; five million rows of margins, and two such files.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from puma.margins import Margins
from puma.planning import PruneRule, StrengthRule, build_plan
from puma.pools import Pool
from puma.pools.writer import PoolPart, new_folder, write_pool
from puma.scores.score_table import open_scores

COUNT, SIDE, CHUNK, ROWS = 50_000, 32, 5_000, 5_000_000
_SCRIPT = """
import resource, sys
from puma.cli import main
try:
    main(sys.argv[1:])
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def main(count: int = COUNT, rows: int = ROWS) -> None:
    """Write the files, then run the command in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="puma-bench-") as name:
        folder = Path(name)
        make_inputs(folder, count)
        for most in (2_000, 10_000):
            measure_report(f"{count:,} images of {SIDE} px, {most:,} shown", folder, folder, "--max-samples", str(most))
    with tempfile.TemporaryDirectory(prefix="puma-bench-") as name:
        folder = Path(name)
        files = [write_rows(folder / f"margins{seed}.parquet", rows, seed) for seed in (0, 1)]
        measure_report(f"{rows:,} margins", folder, files[0])
        measure_report(f"{rows:,} margins twice, compared", folder, *files)


def measure_report(what: str, folder: Path, *words: str | Path) -> None:
    """Run the command and print what it took."""
    out = folder / "report.html"
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    begun = time.perf_counter()
    command = [sys.executable, "-c", _SCRIPT, "report", *map(str, words), "--out", str(out)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    took, worked = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    memory = int(said.split()[-1]) / 1e6
    size = out.stat().st_size / 1e6
    print(
        f"report on {what}: {took:.1f} s ({worked:.1f} s of work), {memory:.1f} GB, page of {size:.1f} MB", flush=True
    )


def write_rows(path: Path, count: int, seed: int) -> Path:
    """Write margins of ten classes without a pool, some of them wrong."""
    rng = np.random.default_rng(seed)
    values = torch.from_numpy(rng.normal(0.03, 0.03, size=count).astype(np.float32))
    labels = torch.from_numpy(np.random.default_rng(9).integers(10, size=count))
    prediction = torch.where(values < 0, (labels + 1 + torch.from_numpy(rng.integers(9, size=count))) % 10, labels)
    none = torch.zeros(count, dtype=torch.int32)
    made_from = {"pool_fingerprint": "none", "norm": "linf", "method": "deepfool"}
    ids = torch.arange(count)
    return Margins(values, none.to(torch.int8), labels, prediction, prediction, none, none, ids, made_from).save(path)


def make_inputs(folder: Path, count: int) -> None:
    """Images with the detail of photographs: noise of eight pixels across, some finer."""
    rng = np.random.default_rng(0)
    chunks = []
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        coarse = rng.integers(256, size=(size, SIDE // 8, SIDE // 8, 3)).repeat(8, axis=1).repeat(8, axis=2)
        fine = rng.normal(0, 12, size=(size, SIDE, SIDE, 3))
        chunks.append(((coarse + fine).clip(0, 255).astype(np.uint8), np.arange(start, start + size) % 10))
    with new_folder(folder / "pool", force=False) as place:
        write_pool(place, PoolPart(chunks, [f"class {label}" for label in range(10)], count, 0))
    pool = Pool.open(folder / "pool")
    margin = rng.normal(0.02, 0.05, size=count).astype(np.float32)
    labels, other = torch.from_numpy(pool.labels), (torch.from_numpy(pool.labels) + 1) % 10
    values, none = torch.from_numpy(margin), torch.zeros(count, dtype=torch.int32)
    prediction = torch.where(values < 0, other, labels)
    made_from = {"pool_fingerprint": pool.fingerprint, "norm": "linf", "method": "deepfool"}
    Margins(values, none.to(torch.int8), labels, prediction, other, none, none, torch.arange(count), made_from).save(
        folder / "margins.parquet"
    )
    scores = open_scores(folder / "margins.parquet")
    build_plan(pool, PruneRule(easy=0.2), StrengthRule("margin"), margin=scores).save(folder / "plan.parquet")


if __name__ == "__main__":
    main()
