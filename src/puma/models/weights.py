"""Read weights, with the mean and std that belong to them, and write them; nothing in a file is ever executed."""

import hashlib
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from puma.errors import PumaError
from puma.files import CHECKSUM, name_natively, parse_json, replace_atomically
from puma.models.architectures import Normalize

_KEY = "puma"  # of our own metadata in a safetensors file
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.")  # left by DistributedDataParallel and torch.compile


class NormalizedModel(nn.Module):
    """A model behind the normalisation that it was trained with: it takes pixels in [0, 1]."""

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.normalize = Normalize(mean, std)
        self.model = model

    def forward(self, images: Tensor) -> Any:
        """Normalise and pass on."""
        return self.model(self.normalize(images))


def load_weights(
    model: nn.Module,
    path: str | Path,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> nn.Module:
    """Copy the weights in ``path`` into ``model`` and return it.

    ``.safetensors`` files, or a PyTorch state dict (also wrapped as ``{"state_dict": ...}``), read with
    ``weights_only=True``. Names and shapes must match. Only a built-in model's normalisation may be absent from the
    file: then ``mean`` and ``std`` in a safetensors file's metadata are taken, or else those it was built with stay.
    A model that has no normalisation of its own comes back within a ``NormalizedModel`` where the metadata, or the
    arguments, tell mean and std; what they tell is used, or contradicts the weights and raises.
    """
    weights, metadata = read_state_dict(Path(path))
    expected = model.state_dict()
    if not set(weights) & set(expected):
        weights = {_bare(name): value for name, value in weights.items()}
    told = _settle_statistics(metadata, mean, std, path)
    for name in ("mean", "std"):
        key = f"normalize.{name}"
        if key in expected and key not in weights:
            weights[key] = _shape_statistics(told[name], expected[key], path) if name in told else expected[key]
    _check_same_shapes(weights, expected, path)
    try:
        model.load_state_dict(weights)
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        reason = str(error).strip().splitlines()[-1].strip().rstrip(".")
        raise PumaError(f"{path} does not fit this model ({reason}); check the architecture.") from error
    return apply_statistics(model, told, str(path))


def apply_statistics(model: nn.Module, told: Mapping[str, Sequence[float]], source: str) -> nn.Module:
    """Put the normalisation by mean and std before a model that has none; one that has another raises."""
    if not told:
        return model
    own = [(name, values) for name in ("mean", "std") for values in _find_statistics(model, name)]
    for name, values in own:
        if name in told and not _agree(values, told[name]):
            raise PumaError(
                f"{source}: the model normalises with {name} {_write_numbers(values)}, "
                f"{_write_numbers(told[name])} is told beside it; which one it was trained with cannot be known."
            )
    if own:
        return model
    absent = [name for name in ("mean", "std") if name not in told]
    if absent:
        raise PumaError(f"{source} tells no {absent[0]}; mean and std go together.")
    mean, std = told["mean"], told["std"]
    if not mean or len(mean) != len(std) or min(std) <= 0:
        raise PumaError(f"{source}: mean and positive std go together, one each per channel, got {mean} and {std}.")
    return NormalizedModel(model, mean, std)


def _settle_statistics(
    metadata: Mapping[str, str], mean: Sequence[float] | None, std: Sequence[float] | None, path: str | Path
) -> dict[str, list[float]]:
    """Return mean and std as a file and its user tell them; where the two disagree it raises."""
    told: dict[str, list[float]] = {}
    for name, given in (("mean", mean), ("std", std)):
        if given is not None:
            told[name] = [float(value) for value in given]
        if name in metadata:
            found = _parse_statistics(metadata[name], name, path)
            if name in told and not _agree(found, told[name]):
                asked = _write_numbers(told[name])
                raise PumaError(f"{path} tells {name} {_write_numbers(found)}, {asked} is asked for; leave that out.")
            told[name] = found
    return told


def _parse_statistics(text: str, name: str, path: str | Path) -> list[float]:
    try:
        values = [float(word) for word in text.replace(",", " ").strip(" []()").split()]
    except ValueError:
        values = [math.nan]
    if not all(map(math.isfinite, values)):
        raise PumaError(f"{path}: {name} in its metadata must be numbers, got {text[:80]!r}.")
    return values


def _find_statistics(model: nn.Module, name: str) -> list[list[float]]:
    """Return what the parts of a model have of a normalisation's mean or std; BN's running ones have other names."""
    found: list[list[float]] = []
    for module in model.modules():
        for own in (name, f"_{name}"):
            value = getattr(module, own, None)
            if isinstance(value, Tensor) and value.is_floating_point() and not value.is_meta:
                found.append(value.detach().double().flatten().tolist())
            elif isinstance(value, list | tuple) and value and all(isinstance(number, float) for number in value):
                found.append([float(number) for number in value])
    return found


def _agree(one: Sequence[float], two: Sequence[float]) -> bool:
    return len(one) == len(two) and all(abs(a - b) <= 1e-4 for a, b in zip(one, two, strict=True))


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Path:
    """Write a safetensors file, whole or not at all, with a hash of its tensors and metadata in the latter."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    described = dict(metadata or {})
    with replace_atomically(path) as partial:
        # under one key: the library writes several in an order that changes from run to run
        save_file(plain, partial, {_KEY: json.dumps({**described, CHECKSUM: hash_tensors(plain, described)})})
    return path


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file; where it has a hash of them, that is verified."""
    try:
        with name_natively(path) as native, safe_open(native, "pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError) as error:
        raise PumaError(f"{path} is not a whole safetensors file ({error}).") from error
    if _KEY in metadata:
        metadata = {name: str(value) for name, value in parse_json(metadata[_KEY], str(path), "its metadata").items()}
    written = metadata.pop(CHECKSUM, None)
    if written is not None and written != hash_tensors(tensors, metadata):
        raise PumaError(f"{path} is damaged: its tensors have changed since they were written.")
    return tensors, metadata


def hash_tensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Return a hash of names, types, shapes and values of tensors on the CPU, and of metadata."""
    digest = hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()


def read_state_dict(path: Path) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    """Return the tensors by name and the file's metadata."""
    if not path.is_file():
        raise PumaError(f"no weights at {path}: expected a .safetensors file or a PyTorch state dict.")
    metadata: Mapping[str, str] = {}
    tensors: Any
    if path.suffix == ".safetensors":
        tensors, metadata = read_tensors(path)
    else:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tensors = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged or hostile file can raise anything
            raise PumaError(
                f"{path} cannot be read as plain weights; save model.state_dict(), better still as safetensors."
            ) from error
        wrapper = next((key for key in _WRAPPERS if isinstance(tensors, dict) and key in tensors), None)
        if wrapper:
            metadata = {
                name: _write_numbers(tensors[name]) for name in ("mean", "std") if tensors.get(name) is not None
            }
            tensors = tensors[wrapper]
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in tensors.items()
    ):
        raise PumaError(f"{path} does not hold a state dict: expected tensors by name.")
    return tensors, metadata


def _write_numbers(values: Any) -> str:
    """Write numbers as a safetensors file's metadata has them."""
    values = values.flatten().tolist() if isinstance(values, Tensor) else values
    return " ".join(f"{value:.6g}" if isinstance(value, float) else str(value) for value in values)


def _bare(name: str) -> str:
    while name.startswith(_PREFIXES):
        name = name.split(".", 1)[1]
    return name


def _shape_statistics(values: list[float], like: Tensor, path: str | Path) -> Tensor:
    if len(values) != like.numel():
        raise PumaError(f"{path}: mean and std must be {like.numel()} numbers, got {_write_numbers(values)!r}.")
    return torch.tensor(values).view_as(like)


def _check_same_shapes(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor], path: str | Path) -> None:
    missing = sorted(set(expected) - set(weights))
    extra = sorted(set(weights) - set(expected))
    other = [
        f"{name} is {tuple(weights[name].shape)}, expected {tuple(expected[name].shape)}"
        for name in expected
        if name in weights and weights[name].shape != expected[name].shape
    ]
    kinds = (("missing", missing), ("unknown", extra), ("shapes differ", other))
    found = [f"{kind}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}" for kind, names in kinds if names]
    if found:
        raise PumaError(f"{path} does not fit this model ({'; '.join(found)}); check the architecture.")
