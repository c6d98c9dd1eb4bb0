"""Sample images from a generator into a pool: each from a seed of its own, in parts that survive an interruption."""

import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from puma.attacks import find_norm
from puma.errors import Interrupted, PumaError, tell_missing
from puma.files import Link, check_writable, lock, read_json, replace_atomically, write_checked_json, write_links
from puma.generation.edm import SolverConfig, denoise, list_levels, solve_heun
from puma.generation.generator_folder import Generator, GeneratorFolder, derive_seed, load_generator
from puma.generation.guidance import Guide, check_guide
from puma.generation.unet import Condition, UNet
from puma.models import fingerprint_model
from puma.pools import Chunk, Origin, Pool, PoolPart, write_parts
from puma.processes import ProcessGroup, catch_signals, join_processes
from puma.progress import progress_bar
from puma.training import load_model

BLOCK = 64  # images that pass the net together: enough to keep a core busy, few enough for its cache
_PART_BLOCKS = 4  # blocks of one file of a sampling under way: what an interruption loses at most
_IMAGE, _TARGET = 2, 3  # keep the seeds of an image's noise and of its target margin apart


@dataclass(frozen=True)
class SampleConfig:
    """What to sample; the same settings give the same images, whatever the number of processes.

    Attributes:
        seed: another seed makes other images; image i depends on (seed, i) alone.
        block: images that pass the net together. Sums over a batch of another size are rounded otherwise, so that
            other blocks give other last bits.
        band: ask for margins from here to there, in multiples of eps: of a generator that was trained with margins, or
            by a guide.
        guide: a classifier (a run's folder, or as for puma margins) whose margins lead the sampler to the band.
        eps: see band, for a guide.
        guide_spread: how far from the margin asked for an image may stay, as a standard deviation in multiples of eps.
        norm: which margins the guide measures.
        precision: of the passes through the net; bf16 uses autocast.
        solver: the noise levels.
    """

    seed: int = 0
    block: int = BLOCK
    band: tuple[float, float] | None = None
    guide: str | None = None
    eps: float | None = None
    guide_spread: float = 0.5
    norm: Literal["linf", "l2"] = "linf"
    precision: Literal["fp32", "bf16"] = "fp32"
    solver: SolverConfig = field(default_factory=SolverConfig)

    @property
    def part_size(self) -> int:
        """Images of one file of a sampling under way."""
        return _PART_BLOCKS * self.block


def draw_noise(seed: int, indices: NDArray[np.int64] | range, image_shape: tuple[int, int, int]) -> Tensor:
    """Return the noise (n, channels, height, width) that the images of these indices begin as."""
    height, width, channels = image_shape
    noise = torch.empty(len(indices), channels, height, width)
    for row, index in enumerate(indices):
        generator = torch.Generator().manual_seed(derive_seed(seed, _IMAGE, int(index)))
        torch.randn(noise.shape[1:], generator=generator, out=noise[row])
    return noise


def label_images(indices: NDArray[np.int64] | range, num_classes: int) -> NDArray[np.int64]:
    """Return the class of each index: the classes take turns, so that any number of images is balanced."""
    return np.asarray(indices, dtype=np.int64) % num_classes


def sample_block(
    net: UNet,
    noise: Tensor,
    condition: Condition,
    sigma_data: float,
    solver: SolverConfig,
    *,
    precision: str = "fp32",
    guide: Guide | None = None,
) -> NDArray[np.uint8]:
    """Turn noise into images (n, height, width, channels), guided or not."""
    device = noise.device

    def pass_net(scaled: Tensor, c_noise: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            residual: Tensor = net(scaled, c_noise, condition)
        return residual.float()

    def pass_denoiser(noisy: Tensor, sigma: Tensor) -> Tensor:
        denoised = denoise(pass_net, noisy, sigma, sigma_data)
        return denoised if guide is None else guide.move(denoised, sigma, sigma_data)

    images = solve_heun(pass_denoiser, noise.contiguous(memory_format=torch.channels_last), list_levels(solver))
    pixels = images.clamp(-1, 1).add(1).mul(127.5).round().to(torch.uint8)
    return pixels.permute(0, 2, 3, 1).cpu().numpy()


def pick_targets(
    told: tuple[NDArray[np.int32], NDArray[np.float32]],
    band: tuple[float, float],
    seed: int,
    labels: NDArray[np.int64],
    indices: NDArray[np.int64] | range,
) -> NDArray[np.float32]:
    """Return a margin (in multiples of eps) to ask for, for each index: one that a training image of its class had.

    A class without any in the band borrows from the others; a band that no training image lies in raises.
    """
    classes, margins = told
    inside = (margins >= band[0]) & (margins <= band[1])
    if not inside.any():
        low, high = np.quantile(margins, (0.01, 0.99))
        raise PumaError(
            f"no training image has a margin from {band[0]:g} to {band[1]:g} eps; "
            f"98 % of them lie from {low:.2g} to {high:.2g}: choose another --band."
        )
    own = {label: margins[inside & (classes == label)] for label in np.unique(labels).tolist()}
    targets = np.empty(len(labels), dtype=np.float32)
    for row, (label, index) in enumerate(zip(labels.tolist(), indices, strict=True)):
        choices = own[label] if len(own[label]) else margins[inside]
        targets[row] = choices[derive_seed(seed, _TARGET, int(index)) % len(choices)]
    return targets


def sample_pool(
    source: str | Path,
    count: int,
    out: str | Path,
    config: SampleConfig | None = None,
    *,
    device: str = "cpu",
    npz: str | Path | None = None,
    force: bool = False,
    show: bool = True,
) -> Path:
    """Sample ``count`` images from the generator in ``source`` into the pool ``out``.

    What an interrupted call has sampled lies in a hidden folder beside ``out`` and is taken up by the next. Under
    torchrun the processes share the work.
    """
    config, out = config or SampleConfig(), Path(out)
    check_sampling(count, config)
    if out.exists() and not force:
        raise PumaError(f"{out} exists already; choose another --out, or give --force to replace it.")
    if npz is not None:
        if Path(npz).resolve().is_relative_to(out.resolve()):
            raise PumaError(f"--npz {npz} lies in the pool --out {out}; choose another place for it.")
        check_writable(npz)
    with join_processes(device, patient=True) as group:
        generator = load_generator(source, group.device)
        guide = _load_guide(generator, config, group.device)
        described = {"generator": generator.fingerprint, **asdict(config)}
        if guide is not None:
            described["guide"] = fingerprint_model(guide, generator.inputs.image_shape)
        parts = out.with_name(f".{out.name}.parts")
        work = SampleWork(generator, config, parts, group, guide)
        if config.band is not None and guide is None:
            work.targets(range(1))  # a band that cannot be asked for raises before anything is written
        if not group.writes:
            group.barrier()
            _sample_parts(work, count, show=False)
            group.barrier()
            return out
        with lock(out, busy=f"another process is sampling into {out}; wait for it, or give another --out."):
            _open_parts(parts, described)
            group.barrier()
            _sample_parts(work, count, show=show)
            group.barrier()
            links = [Link("generator", "generator", generator.fingerprint, str(generator.path.resolve()))]
            if guide is not None:
                links.append(Link("guide", "model", described["guide"], str(config.guide)))
            description = {"generator": described, "links": write_links(links)}
            class_names = generator.inputs.class_names
            part = PoolPart(work.read_chunks(count), class_names, count, Origin.GENERATED, True, description)
            write_parts({"": part}, out, force=force)
            if npz is not None:
                write_npz(out, npz)
            shutil.rmtree(parts)
    return out


def check_sampling(count: int, config: SampleConfig) -> None:
    """Raise where settings cannot be sampled with."""
    if count < 1:
        raise PumaError(f"--count must be at least 1, got {count}.")
    if config.seed < 0 or config.block < 1 or config.solver.steps < 2:
        raise PumaError("seed must not be negative, block at least 1 and solver.steps at least 2.")
    if not 0 < config.solver.sigma_min < config.solver.sigma_max or config.solver.rho <= 0:
        raise PumaError("solver.sigma_min must lie between 0 and solver.sigma_max, and solver.rho be positive.")
    if config.band is not None and not config.band[0] <= config.band[1]:
        raise PumaError(f"a band goes from a lower to a higher margin, got {config.band[0]:g} to {config.band[1]:g}.")
    check_guide(config.guide, config.eps, config.band, config.guide_spread)


def _load_guide(generator: Generator, config: SampleConfig, device: torch.device) -> nn.Module | None:
    """Return the classifier that guides, ready to be asked; one that does not fit the images raises."""
    if config.guide is None:
        return None
    inputs = generator.inputs
    height, width, channels = inputs.image_shape
    model = load_model(config.guide, len(inputs.class_names)).to(device).eval().requires_grad_(False)
    try:
        shape = tuple(model(torch.zeros(1, channels, height, width, device=device)).shape)
    except RuntimeError as error:
        raise PumaError(
            f"{config.guide} cannot take the generator's images of {height} x {width} x {channels}; "
            "guide by a model that was trained on such images."
        ) from error
    if shape != (1, len(inputs.class_names)):
        raise PumaError(f"{config.guide} knows {shape[-1]} classes, the generator {len(inputs.class_names)}.")
    return model


def _open_parts(parts: Path, described: dict[str, Any]) -> None:
    """Make the folder of a sampling under way, or find one of the same images."""
    place = parts / "sampling.json"
    if place.is_file():
        wanted, found = read_json_form(described), read_json(place, "a sampling's settings")
        if found != wanted:
            changed = ", ".join(sorted(name for name in wanted if found.get(name) != wanted[name]))
            raise PumaError(
                f"{parts} holds images that were begun with another {changed}; delete it, or give another --out."
            )
        return
    write_checked_json(place, described)


def read_json_form(value: dict[str, Any]) -> dict[str, Any]:
    """Return a value as JSON gives it back: tuples are lists."""
    return {
        name: list(entry) if isinstance(entry, tuple) else read_json_form(entry) if isinstance(entry, dict) else entry
        for name, entry in value.items()
    }


@dataclass(frozen=True, eq=False)
class SampleWork:
    """The parts of one sampling: each a file of whole blocks, whoever makes it."""

    generator: Generator
    config: SampleConfig
    parts: Path
    group: ProcessGroup
    guide: nn.Module | None = None

    @property
    def part_size(self) -> int:
        """Images of a part."""
        return self.config.part_size

    def place(self, part: int) -> Path:
        """Return the file of a part."""
        return self.parts / f"images-{part:08d}.npy"

    def targets(self, indices: range) -> Tensor | None:
        """Return the margins to ask for, None if the generator is asked for any."""
        if self.config.band is None or self.guide is not None:
            return None
        if self.generator.inputs.margins_hash is None:
            raise PumaError(
                f"{self.generator.path} was trained without margins, so it cannot be asked for a band; "
                "train one with --margins FILE, or give --guide MODEL."
            )
        told = GeneratorFolder(self.generator.path).read_conditions()
        labels = label_images(indices, len(self.generator.inputs.class_names))
        return torch.from_numpy(pick_targets(told, self.config.band, self.config.seed, labels, indices))

    def make_guide(self, indices: range, labels: Tensor) -> Guide | None:
        """Return the guide of these images; each has a margin of its own to reach, drawn evenly from the band."""
        if self.guide is None or self.config.band is None or self.config.eps is None:
            return None
        low, high = self.config.band
        shares = [derive_seed(self.config.seed, _TARGET, index) / 2**63 for index in indices]
        targets = torch.tensor([low + share * (high - low) for share in shares], device=labels.device)
        eps = self.config.eps
        norm = find_norm(self.config.norm)
        return Guide(self.guide, labels, targets.float() * eps, self.config.guide_spread * eps, norm)

    def sample(self, start: int) -> NDArray[np.uint8]:
        """Return the block of images from index ``start``; always a whole one, so that its bits never change."""
        indices = range(start, start + self.config.block)
        inputs, device = self.generator.inputs, self.group.device
        labels = torch.from_numpy(label_images(indices, len(inputs.class_names))).to(device)
        margin = self.targets(indices)
        return sample_block(
            self.generator.net,
            draw_noise(self.config.seed, indices, inputs.image_shape).to(device),
            Condition(labels, None if margin is None else margin.to(device)),
            self.generator.config.noise.sigma_data,
            self.config.solver,
            precision=self.config.precision,
            guide=self.make_guide(indices, labels),
        )

    def read_chunks(self, count: int) -> Iterator[Chunk]:
        """Yield the first ``count`` images with their labels, part by part."""
        for part, start in enumerate(range(0, count, self.part_size)):
            images = np.load(self.place(part))[: count - start]
            indices = range(start, start + len(images))
            yield images, label_images(indices, len(self.generator.inputs.class_names))


def _sample_parts(work: SampleWork, count: int, *, show: bool) -> None:
    """Sample this process's share of the parts that are not there yet."""
    starts = list(range(0, count, work.part_size))[work.group.rank :: work.group.count]
    left = [start for start in starts if not work.place(start // work.part_size).is_file()]
    with (
        catch_signals() as flag,
        progress_bar("sample", len(left) * work.part_size, unit="images", enabled=show) as advance,
    ):
        for start in left:
            blocks = []
            for first in range(start, start + work.part_size, work.config.block):
                blocks.append(work.sample(first))
                advance(work.config.block)
            with replace_atomically(work.place(start // work.part_size)) as partial, partial.open("wb") as file:
                np.save(file, np.concatenate(blocks))
            if flag.number is not None:
                done = "what is sampled is kept; run the same command again to go on"
                raise Interrupted(f"interrupted; {done}.", flag.number)


def write_npz(pool: Path, path: str | Path) -> Path:
    """Write a pool as the public files of generated images are: ``image`` uint8 NHWC and ``label`` int64."""
    (store,) = Pool.open(pool).stores
    with replace_atomically(path) as partial, partial.open("wb") as file:
        np.savez(file, image=np.asarray(store.images), label=store.labels.astype(np.int64))
    return Path(path)


def draw_image_grid(pixels: NDArray[np.uint8], path: Path, *, columns: int, cell: int = 48) -> Path:
    """Write images (n, height, width, channels) as a PNG grid, row by row."""
    with tell_missing("data"):
        from PIL import Image
    rows = -(-len(pixels) // columns)
    grid = Image.new("RGB", (columns * cell, rows * cell), "white")
    for place, image in enumerate(pixels):
        picture = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
        resized = picture.resize((cell - 2, cell - 2), Image.Resampling.NEAREST)
        grid.paste(resized, (place % columns * cell + 1, place // columns * cell + 1))
    with replace_atomically(path) as partial:
        grid.save(partial, format="PNG")
    return path
