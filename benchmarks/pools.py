"""Import, opening and batches of large pools: time and memory (``python -m benchmarks pools``).

Each figure comes from a process of its own, so that its peak memory is its own. Needs about 7 GB of disk.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from puma.pools import MixedSampler, Origin, Pool
from puma.pools.writer import FORMAT, NpyAppender

MILLION = 1_000_000


def main(count: int = MILLION) -> None:
    """Print one line per figure."""
    with tempfile.TemporaryDirectory(prefix="puma-bench-") as folder:
        for step in ("write_npz", "copy_file", "import_npz", "open_10m", "mixed_batch"):
            command = [sys.executable, "-m", "benchmarks.pools", step, folder, str(count)]
            print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip(), flush=True)


def write_npz(folder: Path, count: int) -> str:
    """Make an .npz as large as the public file of a million generated images."""
    rng = np.random.default_rng(0)
    images = np.frombuffer(rng.bytes(count * 3072), dtype=np.uint8).reshape(count, 32, 32, 3)
    np.savez(folder / "x.npz", image=images, label=rng.integers(10, size=count))
    return f"made an .npz of {count:,} images, {(folder / 'x.npz').stat().st_size / 1e9:.2f} GB"


def copy_file(folder: Path, count: int) -> str:  # noqa: ARG001
    """Read the file and write it again: the speed of the disk."""
    begun = time.perf_counter()
    with (folder / "x.npz").open("rb") as source, (folder / "copy").open("wb") as target:
        while chunk := source.read(1 << 24):
            target.write(chunk)
        target.flush()
        import os

        os.fsync(target.fileno())
    (folder / "copy").unlink()
    return f"plain copy of the file: {time.perf_counter() - begun:.1f} s"


def import_npz(folder: Path, count: int) -> str:  # noqa: ARG001
    """The import command itself."""
    from puma.pools.npz import read_npz
    from puma.pools.writer import write_parts

    before = peak_memory_mb()
    begun = time.perf_counter()
    write_parts({"": read_npz(folder / "x.npz", origin=1, class_names=None)}, folder / "pool")
    took = time.perf_counter() - begun
    return f"import of the .npz: {took:.1f} s, peak memory {peak_memory_mb():.0f} MB ({before:.0f} MB before)"


def open_10m(folder: Path, count: int) -> str:
    """Open a pool of ten times as many images (a sparse file: only what is read takes disk)."""
    large = folder / "large"
    large.mkdir()
    total = 10 * count
    with NpyAppender(large / "images.npy", np.uint8) as images:
        images.append(np.zeros((1, 32, 32, 3), dtype=np.uint8))
        images.count = total
    with (large / "images.npy").open("r+b") as file:
        file.truncate(128 + total * 3072)
    np.save(large / "labels.npy", np.arange(total, dtype=np.int32) % 10)
    np.save(large / "origin.npy", np.ones(total, dtype=np.int8))
    described = {"format": FORMAT, "count": total, "image_shape": [32, 32, 3], "fingerprint": "0" * 64, "checksum": 0}
    described["class_names"] = [str(label) for label in range(10)]
    (large / "pool.json").write_text(json.dumps(described))
    command = [sys.executable, "-m", "benchmarks.pools", "open_only", str(folder), str(count)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def open_only(folder: Path, count: int) -> str:  # noqa: ARG001
    """Open it in a fresh process."""
    before = peak_memory_mb()
    begun = time.perf_counter()
    pool = Pool.open(folder / "large")
    pool.batch([5, len(pool) - 1])
    took = 1000 * (time.perf_counter() - begun)
    return f"open a pool of {len(pool):,} and read two images: {took:.1f} ms, {peak_memory_mb() - before:.1f} MB"


def mixed_batch(folder: Path, count: int) -> str:
    """Batches of 512, 30 % real, from the imported pool and as many real images again."""
    pool = Pool.open(folder / "pool")
    half = np.arange(count) < count // 20
    real, generated = np.flatnonzero(half), np.flatnonzero(~half)
    assert len(pool.positions_of(Origin.GENERATED)) == count
    sampler = MixedSampler(real, generated, 512, 0.7, 512 * 300)
    seconds = []
    for positions in (sampler.positions(step) for step in range(100)):
        pool.batch(positions)  # brings the file into memory
    for step in range(300):
        begun = time.perf_counter()
        pool.batch(sampler.positions(step))
        seconds.append(time.perf_counter() - begun)
    middle, high = np.percentile(seconds, [50, 95]) * 1000
    return f"a mixed batch of 512 from {count:,}: {middle:.2f} ms (95 % below {high:.2f} ms)"


def peak_memory_mb() -> float:
    """Highest resident memory of this process so far; mapped pages of files count too."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(globals()[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3])))
    else:
        main()
