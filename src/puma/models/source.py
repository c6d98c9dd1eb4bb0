"""A model from what a user types: a built-in name with weights, or a function of the user's own."""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from puma.errors import PumaError
from puma.models.build import build
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

    ``module:function`` imports the module (the current folder counts) and calls the function without arguments; it
    must return an ``nn.Module`` that takes pixels in [0, 1] and gives logits. Anything else is the name of a
    built-in architecture. ``weights`` are loaded into either.
    """
    if ":" in source:
        model = _call_user_function(source)
    else:
        model = build(source, num_classes, channels=channels, mean=mean, std=std)
        if weights is None:
            raise PumaError(f"model {source!r} needs trained weights; give them with --weights FILE.")
    if weights is not None:
        load_weights(model, weights)
    return model.eval()


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
    model = function()
    if not isinstance(model, nn.Module):
        raise PumaError(f"{source} must return a torch.nn.Module, it returned {type(model).__name__}.")
    return model
