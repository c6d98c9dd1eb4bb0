"""A model from what a user types: a built-in name with weights, or a function of the user's own."""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from torch import nn

from puma.errors import PumaError, unknown_name
from puma.models.architectures import build
from puma.models.trust import remember_code
from puma.models.weights import apply_statistics, load_weights


def load_named_model(
    source: str,
    num_classes: int,
    *,
    weights: str | Path | None = None,
    channels: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> nn.Module:
    """Return the model that ``source`` names, in eval mode.

    ``module:function`` imports the module (the current folder counts) and calls the function without arguments; it
    must return an ``nn.Module`` that takes pixels in [0, 1] and gives logits. Anything else is the name of a
    built-in architecture. ``weights`` are loaded into either, and ``mean`` and ``std`` put before either.
    """
    if ":" in source:
        model = call_model_function(source)
    else:
        model = build(source, num_classes, channels=channels, mean=mean, std=std)
        if weights is None:
            raise PumaError(f"model {source!r} needs trained weights; give them with --weights FILE.")
    return normalize_model(model, weights, mean, std, source)


def normalize_model(
    model: nn.Module,
    weights: str | Path | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    source: str,
) -> nn.Module:
    """Load weights, if any, and put a normalisation before a model that has none of its own; in eval mode."""
    if weights is not None:
        return load_weights(model, weights, mean=mean, std=std).eval()
    told = {name: values for name, values in (("mean", mean), ("std", std)) if values is not None}
    return apply_statistics(model, told, f"model {source}").eval()


def call_model_function(source: str) -> nn.Module:
    """Import what ``module:function`` or ``path/to/file.py:function`` names; return the net that the function makes."""
    module_name, _, function_name = source.rpartition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = _import_file(module_name) if module_name.endswith(".py") else importlib.import_module(module_name)
    except (ImportError, ValueError, AttributeError) as error:
        raise PumaError(f"cannot import {module_name!r} of model {source!r}: {error}.") from error
    function = getattr(module, function_name, None)
    if function is None:
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise unknown_name(f"class or function of {module_name}", function_name, own)
    try:
        model = function()
    except Exception as error:  # somebody else's code can raise anything
        raise PumaError(f"{source} raised {type(error).__name__}: {error}.") from error
    remember_code(source)
    if not isinstance(model, nn.Module):
        raise PumaError(f"{source} must return a torch.nn.Module, it returned {type(model).__name__}.")
    return model


def _import_file(path: str) -> ModuleType:
    """Import a Python file by its path; what lies beside it can be imported by it."""
    if not Path(path).is_file():
        raise ImportError(f"there is no file {path}")
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
