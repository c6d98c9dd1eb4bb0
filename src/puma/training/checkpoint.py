"""Checkpoints: one safetensors file each, written whole or not at all; the last two are kept."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from puma.errors import PumaError
from puma.models import read_tensors, save_tensors
from puma.training.optimizer import momentum_buffers, restore_momentum

KEPT = 2  # should the newest be damaged, the one before it is there
_PREFIX, _SUFFIX = "step-", ".safetensors"


class _MismatchError(PumaError):
    """A checkpoint of another model: the one before it would be no better."""


@dataclass(frozen=True)
class TrainProgress:
    """What a resumed run has to know besides tensors."""

    step: int
    best_robust: float = -1.0
    scaler: dict[str, float] = field(default_factory=dict)
    online_threshold: float | None = None
    online_class_thresholds: tuple[float, ...] | None = None


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    average: nn.Module,
    optimizer: torch.optim.SGD,
    progress: TrainProgress,
    losses: Tensor | None = None,
) -> Path:
    """Write a checkpoint, then delete those older than the last two; ``losses`` is the table of soft pruning."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        **{f"model/{name}": tensor for name, tensor in model.state_dict().items()},
        **{f"average/{name}": tensor for name, tensor in average.state_dict().items()},
        **{f"momentum/{name}": tensor for name, tensor in momentum_buffers(optimizer, model).items()},
        **({} if losses is None else {"samples/losses": losses}),
    }
    path = folder / f"{_PREFIX}{progress.step:010d}{_SUFFIX}"
    save_tensors(path, tensors, {"progress": json.dumps(asdict(progress))})
    for old in list_checkpoints(folder)[KEPT:]:
        old.unlink()
    return path


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, newest first."""
    return sorted(folder.glob(f"{_PREFIX}*{_SUFFIX}"), reverse=True)


def load_newest(
    folder: Path,
    model: nn.Module,
    average: nn.Module,
    optimizer: torch.optim.SGD,
    losses: Tensor | None = None,
    *,
    tell: Callable[[str], None],
) -> TrainProgress | None:
    """Restore the newest checkpoint that is whole and return its progress; None if there is none at all.

    A checkpoint that cannot be read is passed over for the one before it, which ``tell`` is told.
    """
    found = list_checkpoints(folder)
    for path in found:
        try:
            return load_checkpoint(path, model, average, optimizer, losses)
        except _MismatchError:
            raise
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            reason = str(error).rstrip(".")
            tell(f"checkpoint {path} is damaged ({reason}); going back to the one before it.")
    if found:
        raise PumaError(
            f"none of the {len(found)} checkpoints in {folder} can be read; start again with another --out."
        )
    return None


def load_checkpoint(
    path: Path,
    model: nn.Module,
    average: nn.Module,
    optimizer: torch.optim.SGD,
    losses: Tensor | None = None,
) -> TrainProgress:
    """Restore one checkpoint, all of it or nothing."""
    tensors, metadata = read_tensors(path)
    described = json.loads(metadata["progress"])
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "average": {}, "momentum": {}, "samples": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition("/")
        parts[part][rest] = tensor
    try:
        model.load_state_dict(parts["model"])
        average.load_state_dict(parts["average"])
    except RuntimeError as error:
        raise _MismatchError(f"{path} does not fit the model in config.json; was either replaced?") from error
    restore_momentum(optimizer, model, parts["momentum"])
    if losses is not None:
        losses.copy_(parts["samples"]["losses"])
    if described.get("online_class_thresholds") is not None:
        described["online_class_thresholds"] = tuple(described["online_class_thresholds"])
    return TrainProgress(**described)
