"""``puma generate``: train a generator on a pool, and make a pool of its images."""

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from tyro.conf import Positional, arg

from puma.cli.flags import check_output, find_value, format_settings
from puma.errors import PumaError
from puma.generation import GeneratorConfig, GeneratorFolder, SampleConfig, SelectionConfig, find_generator_recipe
from puma.pools import Pool
from puma.processes import measure_peak_memory
from puma.progress import format_bytes, format_seconds

DEFAULT_RECIPE = "fashion-14px"
_FILES = 8  # copies of the weights on disk: two checkpoints of net, average and Adam's moments


def make_generator_verb(words: Sequence[str]) -> Callable[..., None]:
    """Make the verb: its settings default to those of the recipe, or of the generator to resume, that words name."""
    begun_in = find_value("--resume", words)
    begun = (
        GeneratorFolder(Path(begun_in)).read()[0]
        if begun_in
        else find_generator_recipe(find_value("--recipe", words) or DEFAULT_RECIPE)
    )

    def train(
        pools: Positional[tuple[Path, ...]] = (),
        /,
        *,
        out: Path | None = None,
        recipe: str = DEFAULT_RECIPE,
        margins: Path | None = None,
        resume: Path | None = None,
        dry_run: bool = False,
        settings: Annotated[GeneratorConfig, arg(name="")] = begun,
    ) -> None:
        """Train a class-conditional EDM. Under torchrun (-m puma generate train ...) all processes train it together.

        Args:
            pools: folders made by puma data import; several are put together in this order.
            out: folder of the new generator.
            recipe: the settings to begin with: digits-8px, digits-8px-tiny, fashion-14px, cifar10-32px or
                imagenet-64px.
            margins: margins.parquet of these pools: the net is told each image's margin and can be asked for a band.
            resume: folder of a generator to take up where its last checkpoint left it; nothing else has to be given.
            dry_run: print the settings and what training and sampling would cost; train nothing.
        """
        from puma.generation import resume_generator, train_generator

        del recipe  # it has chosen the defaults of the settings
        if resume is not None:
            if dry_run or pools or out is not None or margins is not None:
                raise PumaError("--resume alone is enough; leave pools, --out, --margins and --dry-run out.")
            _tell_trained(resume_generator(resume, settings))
        elif not pools:
            raise PumaError("name the pool to learn from, such as: puma generate train POOL --out DIR.")
        elif dry_run:
            _print_cost(settings, pools, margins)
        elif out is None:
            raise PumaError("say where the generator goes with --out DIR.")
        else:
            _tell_trained(train_generator(settings, pools, out, margins=margins))

    return train


def _print_cost(settings: GeneratorConfig, pools: tuple[Path, ...], margins: Path | None) -> None:
    from puma.generation import estimate_generator_cost, read_images

    cost = estimate_generator_cost(settings, read_images(settings, pools, margins))
    samples = settings.steps * settings.batch_size
    names = " and ".join(map(str, pools)) or "a pool yet to be named"
    print(f"This would train a generator of images like those of {names}. Nothing was written.")
    print(format_settings(asdict(settings)))
    print(f"parameters   {cost.parameters:,}")
    print(f"length       {samples:,} samples = {settings.steps:,} steps of {settings.batch_size}")
    print(f"passes       1 forward and 1 backward per sample, {2 * samples:.3g} in all")
    memory = measure_peak_memory(torch.device(cost.device))
    print(f"memory       about {format_bytes(memory)} in one process, images included")
    print(f"disk         about {format_bytes(_FILES * 4 * cost.parameters)} for checkpoints and the generator")
    print(f"time         about {format_seconds(cost.seconds_per_sample * samples)} on one {cost.device}")
    print(f"sampling     about {1 / cost.seconds_per_image:,.3g} images/s at 18 noise levels (35 passes)")


def _print_sampling_cost(generator: Path, count: int, settings: SampleConfig, device: str) -> None:
    """Sample a part for a trial and count on to all images."""
    from puma.generation import sample_pool

    with tempfile.TemporaryDirectory(prefix="puma-") as folder:
        whole = settings.part_size  # so many are made, however few are asked for
        few = min(count, whole)
        sample_pool(generator, few, Path(folder) / "warm", settings, device=device)
        begun = time.perf_counter()
        made = sample_pool(generator, few, Path(folder) / "trial", settings, device=device)
        seconds = (time.perf_counter() - begun) * -(-count // whole)
        pixels = int(np.prod(Pool.open(made).image_shape))
    print(f"This would sample {count:,} images of {generator}. Nothing was written.")
    print(f"images       {count:,} into a pool of {format_bytes(count * (pixels + 5))}, twice that while it is written")
    passes = settings.solver.passes
    print(f"passes       {passes} forward per image, {passes * count:.3g} in all, guides not counted")
    print(f"memory       about {format_bytes(measure_peak_memory(torch.device(device)))} in one process")
    print(f"time         about {format_seconds(seconds)} on one {device}, by a short trial")


def _tell_trained(folder: Path) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(f"generator: {folder}")
        print(f"sample it with: puma generate sample {folder} --count N --out POOL")


def sample_images(
    generator: Positional[Path],
    /,
    *,
    count: int,
    out: Path,
    npz: Path | None = None,
    device: str = "cpu",
    force: bool = False,
    trust_code: bool = False,
    dry_run: bool = False,
    settings: Annotated[SampleConfig, arg(name="")] = SampleConfig(),  # noqa: B008
) -> None:
    """Sample images into a pool of origin generated; an interrupted call is taken up by the same command.

    Args:
        generator: folder made by puma generate train.
        count: how many images; the classes take turns.
        out: folder of the new pool.
        npz: also write the images as an .npz with image and label, as the public files are.
        device: such as cpu or cuda; under torchrun each process takes its own GPU and its share of the images.
        force: replace an existing pool.
        trust_code: import the code that the run of --guide names as its model; see docs/security.md.
        dry_run: sample a few images into nowhere and say what all of them would cost.
    """
    from puma.generation import sample_pool
    from puma.models import trust_code_from_now_on

    trust_code_from_now_on(trust_code)
    if npz is not None:
        check_output("--npz", npz, ".npz")
    if dry_run:
        _print_sampling_cost(generator, count, settings, device)
        return
    sample_pool(generator, count, out, settings, device=device, npz=npz, force=force)
    if os.environ.get("RANK", "0") == "0":
        print(f"pool: {out} ({count:,} images)")
        print(f"look at it with: puma data show {out}")


def show_generator(generator: Positional[Path], /) -> None:
    """Print what a generator was trained on and how far, and where its pictures are.

    Args:
        generator: folder made by puma generate train.
    """
    folder = GeneratorFolder(generator)
    config, inputs = folder.read()
    height, width, channels = inputs.image_shape
    names = inputs.class_names
    told = f" and margins in multiples of {config.eps:g}" if config.eps and inputs.margins_hash else ""
    print(f"{generator}: {height} x {width} x {channels}, {len(names)} classes ({', '.join(names[:5])}, ...){told}")
    print(f"trained on: {', '.join(inputs.pools)}, fingerprint {inputs.pool_fingerprint[:16]}")
    lines = folder.metrics.read_text(encoding="utf-8").splitlines() if folder.metrics.is_file() else []
    if lines:
        last = json.loads(lines[-1])
        print(f"samples seen: {last['samples']:,} of {config.samples_seen:,}, loss {last['loss']:.4f}")
    if folder.model.is_file():
        from puma.generation import load_generator

        print(f"fingerprint: {load_generator(generator).fingerprint[:16]}")
    else:
        print(f"not finished; go on with: puma generate train --resume {generator}")
    pictures = sorted(folder.samples.glob("*.png"))
    if pictures:
        print(f"picture: {pictures[-1]}")


def filter_images(
    source: Positional[Path],
    /,
    *,
    out: Path,
    force: bool = False,
    trust_code: bool = False,
    settings: Annotated[SelectionConfig, arg(name="")] = SelectionConfig(),  # noqa: B008
) -> None:
    """Keep some images of a pool as a pool of its own, and say how many each step dropped.

    Args:
        source: the pool, for instance one of generated images.
        out: folder of the new pool.
        force: replace an existing pool.
        trust_code: import the code that a run names as its model; see docs/security.md.
    """
    from puma.generation import filter_pool
    from puma.models import trust_code_from_now_on

    trust_code_from_now_on(trust_code)
    for line in filter_pool(source, out, settings, force=force):
        print(line)
    print(f"pool: {out}")
