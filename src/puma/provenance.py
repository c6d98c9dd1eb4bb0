"""What a file was made from: links by hash, carried in footers and JSON files under the key ``links``."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from puma.files import hash_file

Kind = Literal["pool", "model", "margins", "scores", "plan", "run", "metrics", "generator", "weights"]
KEY = "links"
UNKNOWN = ""  # the hash of a link that a file of an older version does not tell


@dataclass(frozen=True)
class Link:
    """One thing that a file was made from.

    ``hash`` is a pool's, a model's or a generator's fingerprint, the SHA-256 of a run's model file, else that of the
    file itself. ``path`` is where it lay: a hint for
    those who look for it, never trusted.
    """

    role: str
    kind: Kind
    hash: str
    path: str = ""


def link_to_file(role: str, kind: Kind, path: str | Path) -> Link:
    """Return the link to a file as it is now."""
    return Link(role, kind, hash_file(path), os.fspath(path))


def write_links(links: Iterable[Link]) -> list[dict[str, str]]:
    """Return links as they are written into JSON."""
    return [asdict(link) for link in links]


def read_links(described: Mapping[str, Any]) -> tuple[Link, ...] | None:
    """Return the links in a footer or JSON file; None where it tells of none, as files of older versions do."""
    found = described.get(KEY)
    if not isinstance(found, list):
        return None
    names = ("role", "kind", "hash", "path")
    return tuple(Link(*(str(link.get(name, "")) for name in names)) for link in found if isinstance(link, dict))  # type: ignore[arg-type]
