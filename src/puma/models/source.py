"""A model from what a user types: a built-in name with weights, or a function of the user's own."""

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from puma.errors import PumaError
from puma.models.architectures import build
from puma.models.weights import load_weights


def load_model(
    source: str,
    num_classes: int,
    *,
    weights: str | Path | None = None,
    channels: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> nn.Module:
    """Return the model that ``source`` names, in eval mode.

    A folder is a run of ``puma train``; its averaged model is loaded, or other ``weights`` of the same net.
    ``module:function`` imports the module (the current folder counts) and calls the function without arguments; it
    must return an ``nn.Module`` that takes pixels in [0, 1] and gives logits. Anything else is the name of a
    built-in architecture. ``weights`` are loaded into either.
    """
    if Path(source).is_dir():
        return load_run(Path(source), num_classes, weights)
    if ":" in source:
        model = _call_user_function(source)
    else:
        model = build(source, num_classes, channels=channels, mean=mean, std=std)
        if weights is None:
            raise PumaError(f"model {source!r} needs trained weights; give them with --weights FILE.")
    if weights is not None:
        load_weights(model, weights)
    return model.eval()


def load_run(run: Path, num_classes: int, weights: str | Path | None = None) -> nn.Module:
    """Return the model that a run of ``puma train`` has made, in eval mode."""
    try:
        described = json.loads((run / "config.json").read_text(encoding="utf-8"))
        name, inputs = str(described["config"]["model"]), described["inputs"]
        trained_classes, channels = int(inputs["num_classes"]), int(inputs["channels"])
    except FileNotFoundError as error:
        raise PumaError(f"{run} is not a run of puma train: it has no config.json.") from error
    except (KeyError, TypeError, ValueError) as error:
        raise PumaError(f"{run / 'config.json'} is damaged ({error}).") from error
    if trained_classes != num_classes:
        raise PumaError(f"{run} was trained on {trained_classes} classes, {num_classes} are asked for.")
    if weights is None and not (run / "model.safetensors").is_file():
        raise PumaError(f"{run} has no model.safetensors yet; finish it with: puma train --resume {run}.")
    model = _call_user_function(name) if ":" in name else build(name, num_classes, channels=channels)
    return load_weights(model, weights or run / "model.safetensors").eval()


def _call_user_function(source: str) -> nn.Module:
    module_name, _, function_name = source.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, ValueError) as error:
        raise PumaError(f"cannot import {module_name!r} of model {source!r}: {error}.") from error
    except AttributeError as error:
        raise PumaError(f"module {module_name!r} has no {function_name!r}; expected module:function.") from error
    try:
        model = function()
    except Exception as error:  # somebody else's code can raise anything
        raise PumaError(f"{source} raised {type(error).__name__}: {error}.") from error
    if not isinstance(model, nn.Module):
        raise PumaError(f"{source} must return a torch.nn.Module, it returned {type(model).__name__}.")
    return model
