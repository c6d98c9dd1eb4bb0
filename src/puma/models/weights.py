"""Read a user's weights; nothing in the file is ever executed."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from puma.errors import PumaError

_WRAPPERS = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.")  # left by DistributedDataParallel and torch.compile


def load_weights(model: nn.Module, path: str | Path) -> nn.Module:
    """Copy the weights in ``path`` into ``model`` and return it.

    ``.safetensors`` files, or a PyTorch state dict (also wrapped as ``{"state_dict": ...}``), read with
    ``weights_only=True``. Names and shapes must match. Only a built-in model's normalisation may be absent from the
    file: then ``mean`` and ``std`` in a safetensors file's metadata are taken, or else those it was built with stay.
    """
    weights, metadata = read_state_dict(Path(path))
    expected = model.state_dict()
    if not set(weights) & set(expected):
        weights = {_bare(name): value for name, value in weights.items()}
    for name in ("mean", "std"):
        key = f"normalize.{name}"
        if key in expected and key not in weights:
            weights[key] = _statistics(metadata[name], expected[key], path) if name in metadata else expected[key]
    _check_same_shapes(weights, expected, path)
    model.load_state_dict(weights)
    return model


def read_state_dict(path: Path) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    """Return the tensors by name and the file's metadata."""
    if not path.is_file():
        raise PumaError(f"no weights at {path}: expected a .safetensors file or a PyTorch state dict.")
    metadata: Mapping[str, str] = {}
    tensors: Any
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise PumaError(f"{path} is not a whole safetensors file ({error}).") from error
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
        tensors = tensors[wrapper] if wrapper else tensors
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise PumaError(f"{path} does not hold a state dict: expected tensors by name.")
    return tensors, metadata


def _bare(name: str) -> str:
    while name.startswith(_PREFIXES):
        name = name.split(".", 1)[1]
    return name


def _statistics(text: str, like: Tensor, path: str | Path) -> Tensor:
    try:
        values = torch.tensor([float(word) for word in text.replace(",", " ").split()])
        return values.view_as(like)
    except (ValueError, RuntimeError) as error:
        raise PumaError(f"{path}: mean and std must be {like.numel()} numbers, got {text!r}.") from error


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
