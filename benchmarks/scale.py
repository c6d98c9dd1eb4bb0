"""Margins of two million images: is throughput steady, is memory flat (``python -m benchmarks scale``).

Images of 8 x 8 pixels and a tiny net, so that what is not the net's own work shows. ``--count`` takes another number,
and further flags go to ``puma margins``, such as ``--measure 0.02``.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil

from puma.pools.writer import Chunk, PoolPart, new_folder, write_pool

COUNT = 2_000_000
SIDE = 8
CLASSES = 10
MODEL = f"""
import torch
def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear({SIDE * SIDE}, 32), torch.nn.ReLU(),
                               torch.nn.Linear(32, {CLASSES}))
"""
_CHUNK = 100_000


def main(count: int = COUNT, flags: tuple[str, ...] = ()) -> None:
    """Make the pool, measure it in a process of its own, and watch that."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=count)
    asked, rest = parser.parse_known_args() if __name__ == "__main__" else (argparse.Namespace(count=count), [])
    with tempfile.TemporaryDirectory(prefix="puma-bench-") as place:
        folder = Path(place)
        with new_folder(folder / "pool", force=False) as pool:
            names = [str(label) for label in range(CLASSES)]
            write_pool(pool, PoolPart(make_images(asked.count), names, asked.count, 0))
        (folder / "tiny.py").write_text(MODEL)
        out = folder / "margins.parquet"
        command = [
            sys.executable,
            "-m",
            "puma",
            "margins",
            str(folder / "pool"),
            "--model",
            f"{folder / 'tiny.py'}:make",
        ]
        watch_command([*command, "--out", str(out), "--batch-size", "1024", *flags, *rest], asked.count, out)


def make_images(count: int) -> Iterator[Chunk]:
    """Yield random images and labels."""
    random = np.random.default_rng(0)
    for start in range(0, count, _CHUNK):
        size = min(_CHUNK, count - start)
        yield random.integers(256, size=(size, SIDE, SIDE, 1), dtype=np.uint8), random.integers(CLASSES, size=size)


def watch_command(command: list[str], count: int, out: Path) -> None:
    """Run a command and print, ten times on its way, what is done, its own processor time and its memory."""
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    parts = out.with_name(f"{out.name}.parts")
    told, last, peak = 0, (0, 0.0), 0
    print(f"{'parts':>8}{'samples':>12}{'samples per processor second':>30}{'memory, own MiB':>18}", flush=True)
    begun = time.perf_counter()
    total = -(-count // 8192)
    while process.poll() is None:
        time.sleep(0.2)
        try:
            spent, memory = sum(process.cpu_times()[:2]), process.memory_info()
        except psutil.Error:
            break
        own = memory.rss - memory.shared  # mapped files are the system's to drop
        peak = max(peak, own)
        done = len(list(parts.glob("part-*.parquet"))) if parts.is_dir() else 0
        if done >= told * total / 10 and done > last[0]:
            speed = (done - last[0]) * 8192 / max(spent - last[1], 1e-9)
            print(f"{done:8}{min(done * 8192, count):12,}{speed:30,.0f}{own / 2**20:18.0f}", flush=True)
            told, last = told + 1, (done, spent)
    process.wait()
    size = out.stat().st_size if out.exists() else 0
    print(
        f"exit {process.returncode}, {time.perf_counter() - begun:.0f} s, {last[1]:.0f} s of the processor, "
        f"peak {peak / 2**20:.0f} MiB of its own, file {size / 2**20:.1f} MiB = {size / count:.1f} bytes a sample"
    )


if __name__ == "__main__":
    main()
