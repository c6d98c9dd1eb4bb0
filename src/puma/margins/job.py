"""What a margins file was made from: written into its footer, compared before anything is added to it."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch

FORMAT = "puma-margins-1"
KEY = b"puma"


@dataclass(frozen=True)
class Job:
    """Everything that a margin depends on. Equal jobs give equal files, bit for bit on the same machine."""

    pool: str
    pool_size: int
    model: str
    method: str
    config: Mapping[str, Any]
    norm: str
    cap: float | None
    batch_size: int
    part_size: int
    precision: str

    @property
    def parts(self) -> int:
        """Number of parts the pool is cut into."""
        return -(-self.pool_size // self.part_size)

    def span(self, part: int) -> tuple[int, int]:
        """Positions in the pool, from and up to, of one part."""
        start = part * self.part_size
        return start, min(start + self.part_size, self.pool_size)

    def footer(self) -> dict[bytes, bytes]:
        """Return the metadata of a parquet footer."""
        made_by = {"puma": version("puma-pruning"), "torch": torch.__version__}
        described = {"format": FORMAT, **dataclasses.asdict(self), "pool_fingerprint": self.pool, "versions": made_by}
        return {KEY: json.dumps(described, sort_keys=True).encode()}

    def differences(self, described: Mapping[str, Any]) -> list[str]:
        """Say in words how a footer differs from this job."""
        ours = json.loads(json.dumps(dataclasses.asdict(self)))
        names = {"pool": "pool", "model": "model weights"}
        return [
            f"{names.get(key, key)} was {_short(described.get(key))}, now {_short(value)}"
            for key, value in ours.items()
            if described.get(key) != value
        ]


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}..."
