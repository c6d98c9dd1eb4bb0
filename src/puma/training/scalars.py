"""TensorBoard scalars, for those who have it installed."""

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Scalars:
    """Write numbers to ``RUN/tensorboard``; does nothing where TensorBoard is not installed."""

    def __init__(self, run: Path, *, enabled: bool) -> None:
        self.writer: Any = None
        if enabled and importlib.util.find_spec("tensorboard"):
            module = importlib.import_module("torch.utils.tensorboard")
            self.writer = module.SummaryWriter(str(run / "tensorboard"))

    def write(self, line: Mapping[str, Any]) -> None:
        """Add every number of a line of metrics at its count of samples."""
        if self.writer is not None:
            for name in line.keys() - {"step", "samples"}:
                self.writer.add_scalar(name, line[name], line["samples"])

    def __enter__(self) -> "Scalars":
        return self

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:
            self.writer.close()
