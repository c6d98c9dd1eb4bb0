"""A report on fifty thousand samples: time and size of the page (``python -m benchmarks report``)."""

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

COUNT, SIDE, CHUNK = 50_000, 32, 5_000


def main(count: int = COUNT) -> None:
    """Write a pool of smooth random images with margins and a plan, then run the command in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="puma-bench-") as folder:
        make_inputs(Path(folder), count)
        for most in (2_000, 10_000):
            out = Path(folder) / "report.html"
            command = [sys.executable, "-m", "puma", "report", folder, "--out", str(out), "--max-samples", str(most)]
            begun = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            took, size = time.perf_counter() - begun, out.stat().st_size / 1e6
            print(f"report on {count:,} images of {SIDE} px, {most:,} shown: {took:.1f} s, {size:.1f} MB", flush=True)


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
