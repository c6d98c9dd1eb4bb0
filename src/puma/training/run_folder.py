"""The folder of a run, and the only reader and writer of its config.json, metrics.jsonl and model.safetensors."""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from puma.errors import PumaError
from puma.files import (
    LINKS_KEY,
    UNKNOWN_HASH,
    Link,
    hash_file,
    lock,
    open_regular,
    read_json,
    read_links,
    write_checked_json,
    write_links,
    write_text,
)
from puma.models import (
    ARCHITECTURES,
    build,
    call_model_function,
    check_code,
    load_named_model,
    load_weights,
    normalize_model,
    read_state_dict,
)
from puma.models import trust_code as trusting
from puma.pools import is_pool
from puma.training.config import TrainConfig, config_from_dict, config_to_dict

FORMAT = "puma-run-1"
SNAPSHOT = "step-{}.safetensors"
IN_MEMORY = "<{}>"  # how config.json names a net that was given as a module, by its architecture or class


@dataclass(frozen=True)
class RunInputs:
    """Where a run's images come from, and what they were when it began; ``links`` tell all it was made from.

    ``pools`` is empty for images in memory.
    """

    pools: tuple[str, ...]
    plan: str | None
    pool_fingerprint: str
    plan_fingerprint: str | None
    num_classes: int
    channels: int
    image_size: tuple[int, int] | None = field(default=None, compare=False)  # height, width; older runs do not say
    links: tuple[Link, ...] = field(default=(), compare=False)

    def same_images(self, other: "RunInputs") -> bool:
        """Tell whether pools and plan are the same, wherever they lie."""
        return replace(self, pools=(), plan=None) == replace(other, pools=(), plan=None)


@dataclass(frozen=True)
class RunFolder:
    """Paths in a run's folder and how its small files are read and written."""

    path: Path

    @property
    def config(self) -> Path:
        """What the run was begun with."""
        return self.path / "config.json"

    @property
    def checkpoint(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoint"

    @property
    def metrics(self) -> Path:
        """One JSON object per line."""
        return self.path / "metrics.jsonl"

    @property
    def model(self) -> Path:
        """The averaged model, there once training has ended."""
        return self.path / "model.safetensors"

    @property
    def best(self) -> Path:
        """The averaged model that was best on held-out images so far."""
        return self.path / "best.safetensors"

    @property
    def snapshots(self) -> Path:
        """Folder of averaged models that were kept during training."""
        return self.path / "snapshots"

    def list_snapshots(self) -> list[Path]:
        """Return the averaged models that were kept, in the order of time."""
        return sorted(self.snapshots.glob(f"{SNAPSHOT.format('*')}"))

    @property
    def precision(self) -> Path:
        """What ``compute.precision auto`` chose."""
        return self.path / "precision.json"

    @property
    def plan(self) -> Path:
        """The plan, where it was not given as a file."""
        return self.path / "plan.parquet"

    @property
    def has_config(self) -> bool:
        """Whether a run was begun here."""
        return self.config.is_file()

    def is_run(self) -> bool:
        """Tell whether config.json is of a run: other programs have files of that name."""
        if not self.has_config:
            return False
        with open_regular(self.config) as file:
            return b'"puma-run-' in file.read(1000)

    def link_to(self, role: str) -> Link:
        """Return the link of something that is made from the run: by its model, unknown while it has none."""
        known = hash_file(self.model) if self.model.is_file() else UNKNOWN_HASH
        return Link(role, "run", known, str(self.path.resolve()))

    def check_free(self) -> None:
        """Raise if the folder holds anything but what a killed process left."""
        there = self.path.iterdir() if self.path.is_dir() else ()
        held = [path for path in there if not path.name.startswith(".") and path != self.plan]
        if held or (self.path.exists() and not self.path.is_dir()):
            hint = f"continue it with: puma train --resume {self.path}" if self.has_config else "choose another --out"
            hint = "it is a run that is finished; choose another --out" if self.model.is_file() else hint
            raise PumaError(f"{self.path} is not empty; {hint}.")

    def create(self, config: TrainConfig, inputs: RunInputs) -> None:
        """Make the folder; one that holds anything already raises."""
        self.check_free()
        self.describe(config, inputs)

    def describe(self, config: TrainConfig, inputs: RunInputs) -> None:
        """Write config.json, whole or not at all."""
        values = {name: value for name, value in asdict(inputs).items() if name != "links"}
        described = {"format": FORMAT, "inputs": values, LINKS_KEY: write_links(inputs.links)}
        write_checked_json(self.config, {**described, "config": config_to_dict(config)})

    def lock(self) -> AbstractContextManager[int]:
        """Keep another process from training the same run at the same time."""
        return lock(self.path / "run", busy=f"another process is training {self.path}; wait for it, or stop it first.")

    def read(self) -> tuple[TrainConfig, RunInputs]:
        """Return what the run was begun with."""
        described = self._read_config()
        try:
            if described["format"] != FORMAT:
                raise PumaError(f"run {self.path} has format {described['format']!r}, this version reads {FORMAT!r}.")
            inputs = _read_inputs(described)
            return config_from_dict(described["config"]), inputs
        except PumaError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PumaError(f"{self.config} is damaged ({error}); start again.") from error

    def read_net(self) -> tuple[str, int, int]:
        """Return the name of the run's net, its classes and its channels; settings of other versions do not matter."""
        described = self._read_config()
        try:
            inputs = described["inputs"]
            return str(described["config"]["model"]), int(inputs["num_classes"]), int(inputs["channels"])
        except (KeyError, TypeError, ValueError) as error:
            raise PumaError(f"{self.config} is damaged ({error}); start again.") from error

    def check_images(self, image_shape: tuple[int, int, int]) -> None:
        """Raise unless images of this (height, width, channels) are like those that the run was trained on."""
        size = self._read_config().get("inputs", {}).get("image_size")
        trained = (*size, self.read_net()[2]) if isinstance(size, list) else (*image_shape[:2], self.read_net()[2])
        if tuple(trained) != tuple(image_shape):
            told, came = (" x ".join(map(str, shape)) for shape in (trained, image_shape))
            raise PumaError(
                f"{self.path} was trained on images of {told} (height, width, channels), these have {came}; "
                f"import them at the same size."
            )

    def check_code(self) -> None:
        """Raise if the run's net is made by code that the user does not trust."""
        described = self._read_config()
        config = described.get("config")
        name = str(config.get("model")) if isinstance(config, dict) else ""
        if ":" in name and not name.startswith("<"):
            recorded = [link.hash for link in read_links(described) or () if link.kind == "code"]
            check_code(name, self.path, recorded[0] if recorded else UNKNOWN_HASH)

    def _read_config(self) -> dict[str, Any]:
        if not self.has_config:
            raise PumaError(f"{self.path} is not a run of puma train: it has no config.json.")
        return read_json(self.config, "a run's config.json")

    def write_precision(self, choice: Mapping[str, Any]) -> None:
        """Write down what ``compute.precision auto`` chose, so that a resumed run computes as it began."""
        write_checked_json(self.precision, dict(choice))

    def read_precision(self) -> Literal["fp32", "bf16"] | None:
        """Return what ``compute.precision auto`` chose; None before it did."""
        if not self.precision.is_file():
            return None
        chosen = read_json(self.precision, "a run's precision.json").get("precision")
        if chosen not in ("fp32", "bf16"):
            raise PumaError(f"{self.precision} is damaged: it names precision {chosen!r}; delete it to choose again.")
        return "bf16" if chosen == "bf16" else "fp32"

    def append_metrics(self, values: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl; one that is being written, or was cut short, is passed over."""
        if not self.metrics.is_file():
            raise PumaError(f"{self.path} is not a run: it has no metrics.jsonl.")
        with open_regular(self.metrics, "a run's metrics.jsonl") as file:
            lines = [_parse_line(text) for text in file]
        return [line for line in lines if line is not None]

    def forget_metrics_after(self, step: int) -> None:
        """Drop the lines that a resumed run will write again, and a last line that was cut short."""
        if self.metrics.is_file():
            kept = [json.dumps(line) + "\n" for line in self.read_metrics() if line.get("step", 0) <= step]
            write_text(self.metrics, "".join(kept))


def _read_inputs(described: Mapping[str, Any]) -> RunInputs:
    values = described["inputs"]
    size = values.get("image_size")
    known = {**values, "pools": tuple(values["pools"]), "image_size": None if size is None else tuple(size)}
    inputs = RunInputs(**known)
    links = read_links(described)
    if links is None:  # a run of an older version tells its images as a whole only
        hashes = [inputs.pool_fingerprint if len(inputs.pools) == 1 else UNKNOWN_HASH] * len(inputs.pools)
        links = tuple(Link("pool", "pool", known, path) for known, path in zip(hashes, inputs.pools, strict=True))
        links += (Link("plan", "plan", inputs.plan_fingerprint or UNKNOWN_HASH, inputs.plan),) if inputs.plan else ()
    return replace(inputs, links=links)


def _parse_line(text: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) and isinstance(line.get("samples"), int) else None


def load_model(
    source: str | Path | nn.Module,
    num_classes: int | None = None,
    *,
    weights: str | Path | None = None,
    channels: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    image_shape: tuple[int, int, int] | None = None,
    trust_code: bool = False,
) -> nn.Module:
    """Return the model that ``source`` names, in eval mode: it takes pixels in [0, 1] and gives logits.

    Examples:
        >>> pool = puma.Pool.from_tensors(torch.rand(64, 1, 8, 8), torch.arange(64) % 4)
        >>> run = puma.train("small-8px", pool, out="run", samples_seen=128, batch_size=64)
        >>> puma.load_model("run")(torch.rand(2, 1, 8, 8)).shape
        torch.Size([2, 4])
        >>> net = puma.load_model("small-8px", 4, channels=1, weights="run/model.safetensors")

    Args:
        source: the folder of a run of ``puma train``, whose averaged model is loaded; ``module:function``, called
            without arguments (the current folder counts); the name of a built-in architecture; or a net of your own,
            to load ``weights`` into.
        num_classes: needed for a built-in architecture; a run with another number raises.
        weights: a .safetensors file, a state dict or a run to load, also into the net of another run.
        channels: of the images, for a built-in architecture.
        mean: per channel, what images are normalised with before the model, or in a built-in one. Needed only where
            neither the weights nor their file's metadata tell it; to contradict them raises.
        std: see ``mean``.
        image_shape: (height, width, channels) of the images it is for; a run that was trained on others raises.
        trust_code: import the code that a run names, such as ``module:function`` of its author's. Code that you have
            named yourself on this machine, and that is as it was then, is trusted already.
    """
    if image_shape is not None:
        channels = channels or image_shape[2]
    if weights is not None and Path(weights).is_dir():
        weights = _find_trained(RunFolder(Path(weights)))
    if isinstance(source, nn.Module):
        return normalize_model(source, weights, mean, std, type(source).__name__)
    if not isinstance(source, str | Path):
        raise PumaError(f"a model is a run's folder, a name, module:function or a net, got {type(source).__name__}.")
    if Path(source).is_dir():
        folder = RunFolder(Path(source))
        if image_shape is not None:
            folder.check_images(image_shape)
        with trusting(trust_code):
            model, file = _build_run_model(folder, num_classes, weights)
        return normalize_model(model, file, mean, std, str(source))
    if num_classes is None and ":" not in str(source):
        raise PumaError(f"say how many classes model {str(source)!r} has with num_classes.")
    return load_named_model(str(source), num_classes or 0, weights=weights, channels=channels, mean=mean, std=std)


def _build_run_model(
    folder: RunFolder, num_classes: int | None, weights: str | Path | None
) -> tuple[nn.Module, str | Path]:
    """Return the net of a run with fresh weights, and the file of those that belong into it."""
    name, trained_classes, channels = folder.read_net()
    if num_classes not in (None, trained_classes):
        raise PumaError(f"{folder.path} was trained on {trained_classes} classes, {num_classes} are asked for.")
    file = weights or _find_trained(folder)
    if name.strip("<>") in ARCHITECTURES:  # a built-in net, by name or as a module
        return build(name.strip("<>"), trained_classes, channels=channels), file
    if name.startswith("<"):
        raise PumaError(
            f"the net {name} of {folder.path} was given as a module; build it as then and load its weights: "
            f"puma.load_model(net, weights={str(folder.path)!r})."
        )
    folder.check_code()
    return make_net(name, trained_classes, channels), file


def _find_trained(folder: RunFolder) -> Path:
    if not folder.model.is_file():
        hint = f"finish it with: puma train --resume {folder.path}" if folder.has_config else "it is no run"
        raise PumaError(f"{folder.path} has no model.safetensors yet; {hint}.")
    return folder.model


def find_init(init: str) -> Path:
    """Return the file of the weights that a run begins with: that file, or the model of another run."""
    place = Path(init)
    if place.is_dir() and not RunFolder(place).model.is_file():
        raise PumaError(f"--init {init} has no model.safetensors; give a finished run or a file of weights.")
    if not place.exists():
        raise PumaError(f"--init {init} is not there; give a finished run or a file of weights.")
    return RunFolder(place).model if place.is_dir() else place


def load_init(model: nn.Module, path: Path, *, replace_head: bool) -> None:
    """Copy weights into a net; with ``replace_head`` its last linear layer stays as it is."""
    heads = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not replace_head or not heads:
        try:
            _load_in_place(model, path)
        except PumaError as error:
            hint = "--init-head replace gives the net a new last layer"
            raise PumaError(f"{str(error).rstrip('.')}; {hint}.") from error
        return
    parent_name, _, own = heads[-1].rpartition(".")
    parent, head = model.get_submodule(parent_name), model.get_submodule(heads[-1])
    weights = next(
        (value for name, value in read_state_dict(path)[0].items() if name.endswith(f"{heads[-1]}.weight")), None
    )
    if weights is None or weights.dim() != 2:
        raise PumaError(f"{path} has no last layer {heads[-1]!r} to replace; check the architecture.")
    with torch.random.fork_rng(devices=[]):
        setattr(parent, own, nn.Linear(weights.shape[1], weights.shape[0], bias=head.bias is not None))
    try:
        _load_in_place(model, path)
    finally:
        setattr(parent, own, head)


def _load_in_place(model: nn.Module, path: Path) -> None:
    """Copy weights into a net that is to be trained as it is; a normalisation that it lacks raises."""
    if load_weights(model, path) is not model:
        raise PumaError(f"{path} tells mean and std, the net has no place for them; normalise in its forward.")


def make_net(name: str, num_classes: int, channels: int) -> nn.Module:
    """Build the net that a configuration names, with fresh weights."""
    if name.startswith("<"):
        raise PumaError(f"the net {name} of this run was given as a module; call puma.train with it again.")
    return call_model_function(name) if ":" in name else build(name, num_classes, channels=channels)


def check_place_of_runs(flag: str, folder: Path) -> None:
    """Raise where runs cannot have their folders: in a pool or another run, which stay as they are, or in a file."""
    kind = "a pool" if is_pool(folder) else "a run" if RunFolder(folder).is_run() else ""
    kind = "a file" if folder.exists() and not folder.is_dir() else kind
    if kind:
        raise PumaError(f"{flag} {folder} is {kind}; choose another folder for the runs.")
