"""The folder of a generator: its settings, metrics, checkpoints, pictures, conditions and weights."""

import dataclasses
import hashlib
import json
import os
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from puma.errors import PumaError, unknown_name
from puma.files import Link, hash_file, hash_json, read_json, write_checked_json, write_links, write_text
from puma.generation.edm import NoiseConfig
from puma.generation.unet import UNet, UNetConfig
from puma.models import EmaConfig, load_weights, read_tensors, save_tensors
from puma.tables import read_columns, write_table

FORMAT = "puma-generator-1"
_COLUMNS: dict[str, pa.DataType] = {"label": pa.int32(), "margin": pa.float32()}
_CONDITIONS = pa.schema(_COLUMNS)
_KEPT_CHECKPOINTS = 2  # the newest, and one to go back to if it is damaged


@dataclass(frozen=True)
class GeneratorConfig:
    """A generator's training, but for where the images come from; lengths are samples seen.

    Attributes:
        samples_seen: length of training.
        batch_size: over all processes together.
        lr: learning rate of Adam after the warm-up.
        lr_end: share of it that is left at the end, along a cosine; 1 keeps it constant, as EDM does.
        warmup: samples over which it rises from zero.
        augment: probability that an image is mirrored or moved; the net is told, so that samples are neither.
        shift: an image is moved by at most so many pixels.
        mirror: mirror images; off for digits and letters.
        margin_dropout: share of images whose margin is not told, so that the net can do without.
        eps: margins are told in multiples of it; needed with margins.
        precision: of the passes through the net; bf16 uses autocast.
        device: such as cpu or cuda; under torchrun each process takes its own GPU.
        checkpoint_every: samples between two checkpoints.
        grid_every: samples between two pictures of samples; 0 draws none.
        log_every: steps between two lines of metrics.jsonl.
        seed: of weights, batches and noise.
    """

    samples_seen: int = 1_000_000
    batch_size: int = 64
    lr: float = 1e-3
    lr_end: float = 0.02
    warmup: int = 10_000
    augment: float = 0.12
    shift: int = 1
    mirror: bool = True
    margin_dropout: float = 0.1
    eps: float | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    device: str = "cpu"
    checkpoint_every: int = 50_000
    grid_every: int = 100_000
    log_every: int = 50
    seed: int = 0
    net: UNetConfig = field(default_factory=UNetConfig)
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    average: EmaConfig = field(default_factory=lambda: EmaConfig(decay=0.9995))

    @property
    def steps(self) -> int:
        """Number of optimizer steps; the last batch is always full."""
        return -(-self.samples_seen // self.batch_size)


RECIPES: dict[str, GeneratorConfig] = {
    # 1,433 digits: at 300,000 samples it begins to copy them
    "digits-8px": GeneratorConfig(samples_seen=160_000, mirror=False, net=UNetConfig(width=32)),
    "digits-8px-tiny": GeneratorConfig(samples_seen=120_000, lr=2e-3, mirror=False, net=UNetConfig(width=16)),
    "fashion-14px": GeneratorConfig(samples_seen=560_000),
    "cifar10-32px": GeneratorConfig(
        samples_seen=200_000_000,
        batch_size=512,
        warmup=10_000_000,
        lr_end=1.0,
        shift=4,
        precision="bf16",
        device="cuda",
        checkpoint_every=2_000_000,
        grid_every=2_000_000,
        net=UNetConfig(width=128, growth=2, blocks=4),
        average=EmaConfig(decay=0.9993),  # a half-life of half a million samples, EDM's for CIFAR-10
    ),
    "imagenet-64px": GeneratorConfig(
        samples_seen=1_000_000_000,
        batch_size=2048,
        lr=1e-4,
        lr_end=1.0,
        warmup=10_000_000,
        augment=0.0,
        precision="bf16",
        device="cuda",
        checkpoint_every=10_000_000,
        grid_every=10_000_000,
        net=UNetConfig(width=192, growth=3, blocks=3),
        average=EmaConfig(decay=0.99997),
    ),
}


def find_generator_recipe(name: str) -> GeneratorConfig:
    """Look a recipe up by name."""
    if name not in RECIPES:
        raise unknown_name("generator recipe", name, list(RECIPES))
    return RECIPES[name]


@dataclass(frozen=True)
class GeneratorInputs:
    """What a generator is trained on, and what it was when training began."""

    pools: tuple[str, ...]
    pool_fingerprint: str
    image_shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    margins: str | None = None
    margins_hash: str | None = None

    @property
    def links(self) -> list[Link]:
        """What the generator was made from."""
        links = [Link("images", "pool", self.pool_fingerprint, os.pathsep.join(self.pools))]
        if self.margins_hash is not None:
            links.append(Link("condition", "margins", self.margins_hash, self.margins or ""))
        return links


def check_generator_config(config: GeneratorConfig) -> None:
    """Raise one error that lists everything wrong with a configuration."""
    rules = {
        "samples_seen and batch_size must be positive": min(config.samples_seen, config.batch_size) > 0,
        "lr must be positive": config.lr > 0,
        "lr_end must lie in [0, 1]": 0 <= config.lr_end <= 1,
        "warmup, shift, grid_every and seed must not be negative": min(
            config.warmup, config.shift, config.grid_every, config.seed
        )
        >= 0,
        "augment must lie in [0, 1] and margin_dropout in [0, 1)": 0 <= config.augment <= 1
        and 0 <= config.margin_dropout < 1,
        "eps must be positive": config.eps is None or config.eps > 0,
        "checkpoint_every and log_every must be positive": min(config.checkpoint_every, config.log_every) > 0,
        "net.width must be a positive multiple of 8": config.net.width > 0 and config.net.width % 8 == 0,
        "net.growth and net.blocks must be positive": min(config.net.growth, config.net.blocks) > 0,
        "noise.sigma_data and noise.log_std must be positive": min(config.noise.sigma_data, config.noise.log_std) > 0,
        "average.decay must lie in [0, 1]": 0 <= config.average.decay <= 1,
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    if broken:
        raise PumaError(f"the generator cannot be trained so: {'; '.join(broken)}.")


def list_generator_differences(saved: GeneratorConfig, asked: GeneratorConfig) -> list[str]:
    """Say where two configurations differ."""
    before, after = asdict(saved), asdict(asked)
    return [f"{name}: {before[name]} before, {after[name]} asked" for name in before if before[name] != after[name]]


def _read_group(kind: Any, values: Mapping[str, Any]) -> Any:
    """Make a dataclass, and those inside it, from plain values; unknown names raise a TypeError."""
    hints = typing.get_type_hints(kind)
    return kind(
        **{
            name: _read_group(hints[name], value)
            if dataclasses.is_dataclass(hints.get(name))
            else tuple(value)
            if isinstance(value, list)
            else value
            for name, value in values.items()
        }
    )


@dataclass(frozen=True, eq=False)
class Generator:
    """A trained generator: its net in eval mode, what it was trained on, and the hash of all that."""

    net: UNet
    config: GeneratorConfig
    inputs: GeneratorInputs
    fingerprint: str
    path: Path


@dataclass(frozen=True)
class GeneratorFolder:
    """Paths in a generator's folder and how its files are read and written."""

    path: Path

    @property
    def model(self) -> Path:
        """The averaged net, there once training has ended."""
        return self.path / "model.safetensors"

    @property
    def metrics(self) -> Path:
        """One JSON object per line."""
        return self.path / "metrics.jsonl"

    @property
    def samples(self) -> Path:
        """Folder of the pictures that are drawn while it trains."""
        return self.path / "samples"

    @property
    def has_config(self) -> bool:
        """Whether a training was begun here."""
        return (self.path / "config.json").is_file()

    def create(self, config: GeneratorConfig, inputs: GeneratorInputs) -> None:
        """Make the folder and config.json; a folder that holds anything already raises."""
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            resume = f"continue it with: puma generate train --resume {self.path}"
            raise PumaError(f"{self.path} is not empty; {resume if self.has_config else 'choose another --out'}.")
        described = {"format": FORMAT, "inputs": asdict(inputs), "config": asdict(config)}
        write_checked_json(self.path / "config.json", {**described, "links": write_links(inputs.links)})

    def read(self) -> tuple[GeneratorConfig, GeneratorInputs]:
        """Return what the training was begun with."""
        place = self.path / "config.json"
        if not self.has_config:
            raise PumaError(f"{self.path} is not a generator: it has no config.json; make one: puma generate train.")
        described = read_json(place, "a generator's config.json")
        if described.get("format") != FORMAT:
            raise PumaError(f"{place} has format {described.get('format')!r}, a generator's is {FORMAT!r}.")
        try:
            config: GeneratorConfig = _read_group(GeneratorConfig, described["config"])
            inputs: GeneratorInputs = _read_group(GeneratorInputs, described["inputs"])
            check_generator_config(config)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PumaError(f"{place} is damaged ({error}); train the generator again.") from error
        return config, inputs

    def write_conditions(self, labels: NDArray[Any], margins: NDArray[Any]) -> None:
        """Write the labels and margins (in multiples of eps) that the net was told."""
        columns: list[pa.Array[Any]] = [pa.array(labels, pa.int32()), pa.array(margins, pa.float32())]
        table = pa.Table.from_arrays(columns, schema=_CONDITIONS)
        write_table(self.path / "conditions.parquet", _CONDITIONS, [table], {"format": FORMAT})

    def read_conditions(self) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the labels and margins (in multiples of eps) that the net was told."""
        columns = read_columns(self.path / "conditions.parquet", _COLUMNS, "a generator's conditions")
        return columns["label"], columns["margin"]

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def forget_metrics_after(self, step: int) -> None:
        """Drop the lines that a resumed training will write again, and a last line that was cut short."""
        if not self.metrics.is_file():
            return
        kept = []
        for line in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
            except (ValueError, KeyError, TypeError):
                continue
        write_text(self.metrics, "".join(kept))

    def list_checkpoints(self) -> list[Path]:
        """Return the checkpoints, newest first."""
        return sorted((self.path / "checkpoint").glob("step-*.safetensors"), reverse=True)

    def save_checkpoint(self, step: int, tensors: Mapping[str, Tensor]) -> Path:
        """Write a checkpoint, then delete those older than the last two."""
        path = save_tensors(self.path / "checkpoint" / f"step-{step:010d}.safetensors", tensors, {"step": str(step)})
        for old in self.list_checkpoints()[_KEPT_CHECKPOINTS:]:
            old.unlink()
        return path

    def load_checkpoint(self) -> tuple[int, dict[str, Tensor]] | None:
        """Return step and tensors of the newest checkpoint that is whole; None if there is none at all."""
        found = self.list_checkpoints()
        for path in found:
            try:
                tensors, metadata = read_tensors(path)
                return int(metadata["step"]), tensors
            except (KeyError, ValueError, OSError):  # a PumaError is a ValueError
                continue
        if found:
            raise PumaError(f"none of the {len(found)} checkpoints in {self.path} can be read; start again.")
        return None

    def save_model(self, net: UNet, step: int) -> None:
        """Write the averaged net."""
        save_tensors(self.model, net.state_dict(), {"step": str(step)})


def make_unet(config: GeneratorConfig, inputs: GeneratorInputs) -> UNet:
    """Build the net for these images, with weights from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(config.seed))
        return UNet(config.net, inputs.image_shape, len(inputs.class_names), margins=inputs.margins_hash is not None)


def load_generator(path: str | Path, device: torch.device | str = "cpu") -> Generator:
    """Return the trained generator in a folder."""
    folder = GeneratorFolder(Path(path))
    config, inputs = folder.read()
    if not folder.model.is_file():
        raise PumaError(f"{path} has no model.safetensors yet; finish it: puma generate train --resume {path}.")
    net = make_unet(config, inputs)
    load_weights(net, folder.model)
    net = net.to(device, memory_format=torch.channels_last).eval().requires_grad_(False)  # type: ignore[call-overload]
    told: dict[str, Any] = {"net": asdict(config.net), "noise": asdict(config.noise), "eps": config.eps}
    told |= {"image_shape": inputs.image_shape, "class_names": inputs.class_names, "weights": hash_file(folder.model)}
    return Generator(net, config, inputs, hash_json({"format": FORMAT, **told}), folder.path)


def derive_seed(*numbers: int) -> int:
    """Mix whole numbers into a seed: near numbers give seeds that have nothing in common."""
    text = ",".join(str(number) for number in numbers).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1
