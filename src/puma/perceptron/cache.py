"""Results on disk, one line each, so that a stopped or extended study computes only what is missing."""

import hashlib
import json
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class Cache:
    """An append-only file of results by key.

    A line is written whole or, when the process dies, cut off; a line that does not parse is ignored and its
    result computed again. A key holds everything that a result depends on, so old lines never mislead.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: dict[str, Record] = {}
        if path.exists():
            for line in path.read_bytes().splitlines():
                try:
                    entry = json.loads(line)
                    self._records[entry["key"]] = entry["record"]
                except (ValueError, KeyError, TypeError):
                    continue

    def get(self, key: str) -> Record | None:
        """Return the record of a key, or None."""
        return self._records.get(_short(key))

    def add(self, entries: dict[str, Record]) -> None:
        """Store records, in memory and on disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"key": _short(key), "record": record}) for key, record in entries.items()]
        with self.path.open("ab") as file:
            # a line feed first: what stands before may have been cut off
            file.write(("\n" + "\n".join(lines)).encode() if lines else b"")
        self._records.update({_short(key): record for key, record in entries.items()})


def _short(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]
