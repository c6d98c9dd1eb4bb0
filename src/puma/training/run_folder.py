"""The folder of a run: config.json, metrics.jsonl, checkpoint/, model.safetensors."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from puma.errors import PumaError
from puma.training.config import TrainConfig, config_from_dict, config_to_dict

FORMAT = "puma-run-1"


@dataclass(frozen=True)
class RunInputs:
    """Where a run's images come from, and what they were when it began."""

    pools: tuple[str, ...]
    plan: str | None
    pool_fingerprint: str
    plan_fingerprint: str | None
    num_classes: int
    channels: int

    def same_images(self, other: "RunInputs") -> bool:
        """Tell whether pools and plan are the same, wherever they lie."""
        return replace(self, pools=(), plan=None) == replace(other, pools=(), plan=None)


@dataclass(frozen=True)
class RunFolder:
    """Paths in a run's folder and how its small files are read and written."""

    path: Path

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

    def create(self, config: TrainConfig, inputs: RunInputs) -> None:
        """Make the folder; one that holds anything already raises."""
        if self.path.exists() and any(self.path.iterdir()):
            hint = f"continue it with: puma train --resume {self.path}" if self.has_config else "choose another --out"
            raise PumaError(f"{self.path} is not empty; {hint}.")
        self.describe(config, inputs)

    def describe(self, config: TrainConfig, inputs: RunInputs) -> None:
        """Write config.json, whole or not at all."""
        self.path.mkdir(parents=True, exist_ok=True)
        described = {"format": FORMAT, "inputs": asdict(inputs), "config": config_to_dict(config)}
        partial = self.path / ".config.json.partial"
        partial.write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
        partial.replace(self.path / "config.json")

    @property
    def has_config(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "config.json").is_file()

    def read(self) -> tuple[TrainConfig, RunInputs]:
        """Return what the run was begun with."""
        if not self.has_config:
            raise PumaError(f"{self.path} is not a run: it has no config.json.")
        try:
            described = json.loads((self.path / "config.json").read_text(encoding="utf-8"))
            if described["format"] != FORMAT:
                raise PumaError(f"run {self.path} has format {described['format']!r}, this version reads {FORMAT!r}.")
            values = described["inputs"]
            inputs = RunInputs(**{**values, "pools": tuple(values["pools"])})
            return config_from_dict(described["config"]), inputs
        except (KeyError, TypeError, ValueError) as error:
            raise PumaError(f"{self.path / 'config.json'} is damaged ({error}); start again.") from error

    def append_metrics(self, values: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def forget_metrics_after(self, step: int) -> None:
        """Drop the lines that a resumed run will write again, and a last line that was cut short."""
        if not self.metrics.is_file():
            return
        kept = []
        for line in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
            except (ValueError, KeyError, TypeError):
                continue
        partial = self.path / f".metrics.{os.getpid()}"
        partial.write_text("".join(kept), encoding="utf-8")
        partial.replace(self.metrics)
