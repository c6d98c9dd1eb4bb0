"""A plan for fifty million samples: time and peak memory (``python -m benchmarks plan``)."""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from puma.pools.writer import FORMAT, NpyAppender

COUNT = 50_000_000
SIDE = 2  # pixels: planning never reads an image


def main(count: int = COUNT) -> None:
    """Write margins of random samples, then run the command in a process of its own for each strategy."""
    with tempfile.TemporaryDirectory(prefix="puma-bench-") as folder:
        make_inputs(Path(folder), count)
        for flags in (["--prune-easy", "0.2"], ["--prune-easy", "0.2", "--within", "class"]):
            command = [sys.executable, "-m", "benchmarks.plan", folder, *flags]
            print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip(), flush=True)


def make_inputs(folder: Path, count: int) -> None:
    """A pool without pixels to speak of, and its margins."""
    pool = folder / "pool"
    pool.mkdir()
    with NpyAppender(pool / "images.npy", np.uint8) as images:
        images.append(np.zeros((1, SIDE, SIDE, 1), dtype=np.uint8))
        images.count = count
    with (pool / "images.npy").open("r+b") as file:
        file.truncate(128 + count * SIDE * SIDE)
    np.save(pool / "labels.npy", np.arange(count, dtype=np.int32) % 10)
    np.save(pool / "origin.npy", np.ones(count, dtype=np.int8))
    described = {
        "format": FORMAT,
        "count": count,
        "image_shape": [SIDE, SIDE, 1],
        "fingerprint": "0" * 64,
        "checksum": 0,
    }
    described["class_names"] = [str(label) for label in range(10)]
    (pool / "pool.json").write_text(json.dumps(described))
    margin = np.random.default_rng(0).normal(0.05, 0.04, size=count).astype(np.float32)
    table = pa.table({"sample_id": np.arange(count), "margin": margin})
    footer = {"puma": json.dumps({"pool_fingerprint": "0" * 64})}
    pq.write_table(table.replace_schema_metadata(footer), folder / "margins.parquet")


def run_command(folder: Path, flags: list[str]) -> str:
    """Plan once in this process."""
    from puma.cli import main as puma

    begun = time.perf_counter()
    margins, out = str(folder / "margins.parquet"), str(folder / "plan.parquet")
    puma(["plan", str(folder / "pool"), "--margins", margins, "--out", out, "--force", *flags])
    took, peak = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return f"plan {' '.join(flags)}: {took:.1f} s, peak memory {peak:.2f} GB"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(run_command(Path(sys.argv[1]), sys.argv[2:]).splitlines()[-1])
    else:
        main()
