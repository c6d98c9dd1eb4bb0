"""What has been evaluated already, so that an evaluation cut short goes on where it was."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class State:
    """Flags per attack and how many samples it has done; kept in a file if there is a path.

    ``key`` names everything that the flags depend on: a file with another key is not used.
    """

    key: str = ""
    path: Path | None = None
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, key: str) -> "State":
        """Read a file, or start anew if there is none, it is damaged, or it has another key."""
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            entries = stored["entries"] if stored["key"] == key else {}
        except (OSError, ValueError, KeyError, TypeError):
            entries = {}
        return cls(key, path, entries)

    def get(self, name: str) -> tuple[Tensor, int] | None:
        """Return an attack's flags (n,) and how many of its samples are done."""
        entry = self.entries.get(name)
        if entry is None:
            return None
        return torch.tensor([letter == "1" for letter in entry["flags"]], dtype=torch.bool), int(entry["done"])

    def put(self, name: str, flags: Tensor, done: int) -> None:
        """Remember flags and progress; the file is replaced whole."""
        letters = "".join("1" if flag else "0" for flag in flags.tolist())
        self.entries[name] = {"flags": letters, "done": done}
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial = self.path.with_name(f".{self.path.name}.partial")
            partial.write_text(json.dumps({"key": self.key, "entries": self.entries}), encoding="utf-8")
            partial.replace(self.path)


def key_of(model: nn.Module, settings: Mapping[str, Any]) -> str:
    """Name a model's weights and the settings of an evaluation."""
    digest = hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode())
    digest.update(str(model).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
