"""Pools in place: indexing, opening, decoding and batches at 224 px (``python -m benchmarks shards``).

Each figure comes from a process of its own, so that its peak memory is its own. Needs about 6 GB of disk. Pictures are
made from smooth noise, or from those in the tars of the folder that ``PUMA_PICTURES`` names (such as Imagenette's),
scaled up to the size of full ImageNet pictures.
"""

import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.pools import peak_memory_mb
from puma.files import read_json, write_json
from puma.pools import DecodePolicy, Pool, ShardOptions, index_tars
from puma.pools.decoding import decode_bytes
from puma.pools.shards import INDEX, KEYED, write_shards
from puma.pools.writer import NpyAppender

MILLION = 1_000_000
SIZES = ((500, 375), (640, 480), (800, 600), (1280, 960), (2000, 1500))


def main(count: int = MILLION) -> None:
    """Print one line per figure."""
    with tempfile.TemporaryDirectory(prefix="puma-bench-") as folder:
        for step in (
            "make_small",
            "read_small",
            "index_small",
            "open_10m",
            "make_large",
            "index_large",
            "compare_decoding",
            "decode_batches",
            "time_step",
        ):
            command = [sys.executable, "-m", "benchmarks.shards", step, folder, str(count)]
            print(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip(), flush=True)


def make_small(folder: Path, count: int) -> str:
    """A hundred tars of JPEGs of 64 px."""
    pictures = [encode_jpeg(64, 64, seed) for seed in range(50)]
    total = write_tars(folder / "small", count // 100, 100, pictures)
    return f"made {count:,} JPEGs of 64 px in 100 tars, {total / 1e9:.2f} GB"


def make_large(folder: Path, count: int) -> str:
    """Ten tars of JPEGs of 500 x 375 px, a hundredth as many."""
    pictures = [encode_jpeg(500, 375, seed) for seed in range(30)]
    total = write_tars(folder / "large", count // 1000, 10, pictures)
    return f"made {count // 100:,} JPEGs of 500 x 375 px in 10 tars, {total / 1e9:.2f} GB"


def write_tars(folder: Path, pictures: int, tars: int, contents: list[bytes]) -> int:
    """Write tars of so many pictures each, by hand: tarfile would take minutes."""
    folder.mkdir()
    total = 0
    blocks = []
    for number in range(pictures):
        content = contents[number % len(contents)]
        member = tarfile.TarInfo(f"{number:07d}.jpg")
        member.size = len(content)
        blocks.append(member.tobuf() + content + bytes(-len(content) % 512))
    for tar in range(tars):
        with (folder / f"n{tar:08d}.tar").open("wb") as file:
            file.writelines(blocks)
            file.write(bytes(1024))
            total += file.tell()
    return total


def read_small(folder: Path, count: int) -> str:
    """Read every byte of the same files: the speed of the disk, or of the memory that holds it."""
    took = min(read_files(folder / "small") for _ in range(2))
    return f"plain reading of the tars of {count:,}: {took:.1f} s"


def read_files(folder: Path) -> float:
    begun = time.perf_counter()
    for path in sorted(folder.iterdir()):
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 20):
                pass
    return time.perf_counter() - begun


def index_small(folder: Path, count: int) -> str:
    """The import itself."""
    before, begun, computed = peak_memory_mb(), time.perf_counter(), time.process_time()
    index_tars(folder / "small", folder / "pool", ShardOptions(DecodePolicy(64)))
    took, computed = time.perf_counter() - begun, time.process_time() - computed
    return (
        f"index {count:,} pictures: {took:.1f} s, of which {computed:.1f} s on the processor, "
        f"peak memory {peak_memory_mb():.0f} MB ({before:.0f} MB before)"
    )


def index_large(folder: Path, count: int) -> str:
    """The import of pictures of a usual size, beside plain reading."""
    plain = min(read_files(folder / "large") for _ in range(2))
    begun = time.perf_counter()
    index_tars(folder / "large", folder / "pool-large", ShardOptions(DecodePolicy(224)))
    took = time.perf_counter() - begun
    return f"index {count // 100:,} pictures of 500 x 375 px: {took:.2f} s, plain reading of the tars {plain:.2f} s"


def open_10m(folder: Path, count: int) -> str:
    """Open a pool of ten times as many pictures in ten thousand shards, in a fresh process."""
    total, place = 10 * count, folder / "ten"
    place.mkdir()
    source = Pool.open(folder / "pool").stores[0].images
    shards = list(source.shards) * 100  # type: ignore[attr-defined]
    with NpyAppender(place / "index.npy", INDEX) as index:
        for _ in range(10):
            index.append(np.asarray(source.index))  # type: ignore[attr-defined]
    rows = np.arange(total)
    np.save(place / "sample_id.npy", KEYED + rows)
    np.save(place / "labels.npy", (rows % 100).astype(np.int32))
    np.save(place / "origin.npy", np.zeros(total, dtype=np.int8))
    write_shards(place, folder / "small", shards)
    described = read_json(folder / "pool/pool.json", "a pool")
    write_json(place / "pool.json", {**described, "count": total, "fingerprint": "0" * 64})
    command = [sys.executable, "-m", "benchmarks.shards", "open_only", str(folder), str(count)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def open_only(folder: Path, count: int) -> str:  # noqa: ARG001
    """In a fresh process, the first time and the fastest of five."""
    before, seconds, computed = peak_memory_mb(), [], time.process_time()
    for _ in range(5):
        begun = time.perf_counter()
        pool = Pool.open(folder / "ten")
        seconds.append(time.perf_counter() - begun)
    computed = (time.process_time() - computed) / 5
    begun = time.perf_counter()
    pool.stores[0].images[np.array([5, len(pool) - 1])]
    read = time.perf_counter() - begun
    shards = len(pool.stores[0].images.shards)  # type: ignore[attr-defined]
    return (
        f"open {len(pool):,} pictures in {shards:,} shards: {1000 * seconds[0]:.0f} ms, "
        f"then {1000 * min(seconds):.0f} ms ({1000 * computed:.0f} ms on the processor), "
        f"two pictures {1000 * read:.0f} ms, {peak_memory_mb() - before:.0f} MB"
    )


def compare_decoding(folder: Path, count: int) -> str:  # noqa: ARG001
    """One core: to 224 px by us and by plain Pillow, the medians of pairs that take turns."""
    lines = []
    for width, height in SIZES:
        pictures = [encode_jpeg(width, height, seed) for seed in range(20)]
        ours, plain = take_turns(
            lambda content: decode_bytes(content, DecodePolicy(224)), decode_plainly, pictures, rounds=5
        )
        lines.append(
            f"JPEG of {width} x {height} px to 224 px: {ours:.2f} ms, plain Pillow {plain:.2f} ms, "
            f"{plain / ours:.2f} times as fast"
        )
    return "\n".join(lines)


def take_turns(
    one: Callable[[bytes], object], two: Callable[[bytes], object], pictures: list[bytes], rounds: int
) -> tuple[float, float]:
    """Milliseconds a picture of processor time: the smallest of each over the rounds, summed over pictures."""
    best = np.full((2, len(pictures)), np.inf)
    for _ in range(rounds):
        for place, content in enumerate(pictures):
            for row, function in enumerate((one, two)):
                begun = time.process_time()
                function(content)
                best[row, place] = min(best[row, place], time.process_time() - begun)
    return float(best[0].mean() * 1000), float(best[1].mean() * 1000)


def decode_plainly(content: bytes) -> object:
    """As most loaders do it: decode, scale the shorter side, cut the middle."""
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    scale = 224 / min(picture.size)
    picture = picture.resize(
        (max(224, round(picture.width * scale)), max(224, round(picture.height * scale))), Image.Resampling.BILINEAR
    )
    left, top = (picture.width - 224) // 2, (picture.height - 224) // 2
    return np.asarray(picture.crop((left, top, left + 224, top + 224)))


def decode_batches(folder: Path, count: int) -> str:  # noqa: ARG001
    """Batches of 64 at 224 px from random places, by the decode workers."""
    pool, rng = Pool.open(folder / "pool-large"), np.random.default_rng(0)
    pool.batch(rng.integers(len(pool), size=64))
    seconds = []
    for _ in range(20):
        begun = time.perf_counter()
        pool.batch(rng.integers(len(pool), size=64))
        seconds.append(time.perf_counter() - begun)
    before = peak_memory_mb()
    for _ in range(40):
        pool.batch(rng.integers(len(pool), size=64))
    middle, high = np.percentile(seconds, [50, 95])
    return (
        f"a batch of 64 at 224 px from JPEGs of 500 x 375 px: {1000 * middle:.0f} ms (95 % below "
        f"{1000 * high:.0f} ms), {64 / middle:.0f} pictures a second; memory grows by "
        f"{peak_memory_mb() - before:.1f} MB over 40 more"
    )


def time_step(folder: Path, count: int) -> str:  # noqa: ARG001
    """Steps of the recipe imagenet21k-100 with fewer samples in a batch; how long they wait for their batches."""
    from dataclasses import replace

    import torch

    from puma.models import build
    from puma.processes import ProcessGroup
    from puma.training import find_recipe
    from puma.training.batches import load_samples, make_batch_source, prefetch_batches
    from puma.training.step import make_train_state, train_step

    samples, steps = 4, 3
    config = replace(find_recipe("imagenet21k-100"), batch_size=samples, held_out=0)
    pool = Pool.open(folder / "pool-large")
    group = ProcessGroup(0, 1, torch.device("cpu"))
    source = make_batch_source(config, load_samples(config, [pool], None), group)
    state = make_train_state(build(config.model, pool.num_classes), config, group)
    with prefetch_batches(source, range(steps + 1)) as batches:
        taken = iter(batches)
        train_step(state, next(taken), config)  # starts the workers
        batches.waited, begun = 0.0, time.perf_counter()
        for _ in range(steps):
            train_step(state, next(taken), config)
        took = (time.perf_counter() - begun) / steps
    return (
        f"a step of imagenet21k-100 on {samples} samples: {took:.1f} s, of which waiting for the batch "
        f"{1000 * batches.waited / steps:.1f} ms; a batch of 64 would take {took * 64 / samples:.0f} s"
    )


def encode_jpeg(width: int, height: int, seed: int) -> bytes:
    """A picture of a size, with detail as photographs have it."""
    file = io.BytesIO()
    make_picture(width, height, seed).save(file, "JPEG", quality=90)
    return file.getvalue()


def make_picture(width: int, height: int, seed: int) -> Image.Image:
    rng = np.random.default_rng(seed)
    place = os.environ.get("PUMA_PICTURES")
    if place:
        tars = sorted(Path(place).glob("*.tar"))
        with tarfile.open(tars[seed % len(tars)]) as tar:
            member = tar.getmembers()[seed // len(tars)]
            file = tar.extractfile(member)
            assert file is not None
            picture = Image.open(file).convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
        pixels = np.asarray(picture).astype(np.float32)
    else:
        pixels = np.zeros((height, width, 3), dtype=np.float32)
        for scale in (4, 16, 64):  # coarse shapes are strong, fine ones weak
            coarse = rng.normal(size=(max(2, height * scale // 256), max(2, width * scale // 256), 3)) / scale
            levels = ((coarse - coarse.min()) / np.ptp(coarse) * 255).astype(np.uint8)
            picture = Image.fromarray(levels).resize((width, height), Image.Resampling.BICUBIC)
            pixels += np.asarray(picture, dtype=np.float32) * (4 / scale) / 1.3125
    grain = rng.normal(0, 4, size=pixels.shape)  # a camera's noise, which scaling up has smoothed away
    return Image.fromarray(np.clip(pixels + grain, 0, 255).astype(np.uint8))


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(globals()[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3])))
    else:
        main()
