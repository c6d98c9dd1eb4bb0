"""The generator's checks at full size (``make generator``): fails unless its images are nearly as good as real ones.

Digits need nothing; Fashion-MNIST needs DATA/fashion-mnist-14px (``puma data import fashion-mnist FOLDER --pool 2``)
and is left out without it. Generators and their images are kept in a folder: the same command goes on where it stopped.
The digits take five minutes of one core, Fashion-MNIST 40.
"""

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from puma.files import write_json
from puma.generation import (
    AssessmentConfig,
    GeneratorFolder,
    SampleConfig,
    assess_images,
    find_generator_recipe,
    resume_generator,
    sample_pool,
    train_generator,
)
from puma.pools import Pool, PoolPart, is_pool, read_digits, write_parts


@dataclass(frozen=True)
class Check:
    """A data set, its generator, and what its images must be worth."""

    recipe: str
    net: str
    real: int
    images: int
    least: float = 0.0
    gap: float = 1.0
    both_win: bool = False


CHECKS = {
    "digits": Check("digits-8px", "small-8px", real=1433, images=1433, least=0.93),
    "fashion-mnist-14px": Check("fashion-14px", "small-14px", real=7000, images=6000, gap=0.025, both_win=True),
}


def take_real(folder: Path, count: int, out: Path) -> Path:
    """Write the first images of a fixed random order as a pool, those that experiments call the real ones."""
    pool = Pool.open(folder)
    if count >= len(pool):
        return folder
    if not is_pool(out):
        rows = np.sort(np.random.default_rng(0).permutation(len(pool))[:count])
        batch = pool.batch(rows)
        part = PoolPart([(batch.images.permute(0, 2, 3, 1).numpy(), batch.labels.numpy())], pool.class_names, count)
        write_parts({"": part}, out)
    return out


def find_generator(recipe: str, real: Path, out: Path, samples_seen: int | None) -> Path:
    """Train a generator, or go on with its training."""
    config = find_generator_recipe(recipe)
    folder = GeneratorFolder(out)
    if not folder.has_config:
        train_generator(replace(config, samples_seen=samples_seen or config.samples_seen), [real], out)
    elif not folder.model.is_file():
        resume_generator(out)
    return out


def check_dataset(name: str, check: Check, data: Path, work: Path, samples_seen: int | None) -> list[str]:
    """Train, sample and assess; print what was found, and return the goals that were missed."""
    if name == "digits" and not is_pool(work / name / "train"):
        write_parts(read_digits(), work / name)
    source = (work if name == "digits" else data) / name
    real = take_real(source / "train", check.real, work / f"{name}-real")
    generator = find_generator(check.recipe, real, work / f"{name}-generator", samples_seen)
    images = work / f"{name}-generated"
    if not is_pool(images):
        sample_pool(generator, check.images, images, SampleConfig())
    config = AssessmentConfig(check.net, images=check.images)
    found = assess_images(Pool.open(real), Pool.open(images), Pool.open(source / "test"), config)
    for kind, values in found.accuracy.items():
        seeds = ", ".join(f"{value:.2%}" for value in values)
        print(f"{name}: a net trained on {kind} images: {fmean(values):.2%} ({seeds})")
    print(f"{name}: called something else by a net of real images: {found.doubted_share:.1%}")
    print(
        f"{name}: median distance to the nearest real image: {found.nearest[0]:.3f}, test images {found.nearest[1]:.3f}"
    )
    print(f"{name}: Frechet distance to test images: {found.frechet[0]:.4f}, real images {found.frechet[1]:.4f}")
    misses = found.list_misses(least=check.least, gap=check.gap, both_win=check.both_win)
    write_json(work / f"{name}.json", {"found": vars(found) | {"accuracy": dict(found.accuracy)}, "missed": misses})
    return [f"{name}: {miss}" for miss in misses]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("datasets", nargs="*", metavar="NAME", help=f"of {', '.join(CHECKS)}; all by default")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with fashion-mnist-14px")
    parser.add_argument("--out", type=Path, default=Path("generator-output"), help="folder for generators and images")
    parser.add_argument("--samples-seen", type=int, help="length of a generator's training, instead of the recipe's")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    misses: list[str] = []
    for name in asked.datasets or CHECKS:
        if name not in CHECKS:
            sys.exit(f"unknown data set {name!r}; known: {', '.join(CHECKS)}.")
        if name != "digits" and not is_pool(asked.data / name / "train"):
            print(f"{name}: left out, since there is no pool at {asked.data / name}.")
            continue
        misses += check_dataset(name, CHECKS[name], asked.data, asked.out, asked.samples_seen)
    for miss in misses:
        print(f"MISSED {miss}")
    sys.exit(1 if misses else 0)


if __name__ == "__main__":
    main()
