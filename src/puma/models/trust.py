"""Code of a user's that a run names: it is imported only when its user trusts it.

Who types ``module:function`` trusts that file as it is then. The file's place and hash are remembered in the user's own
folder, never in a run's: a run that comes from somebody else cannot vouch for itself.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.machinery import PathFinder
from pathlib import Path

from puma.errors import PumaError
from puma.files import hash_file, read_json, write_json

_MOST = 10_000  # files remembered
_TRUSTS_ALL: ContextVar[bool] = ContextVar("trust_code", default=False)
_TRUSTED_HERE: set[tuple[str, str]] = set()  # for a process that has no folder to write to


@contextmanager
def trust_code(trusts: bool = True) -> Iterator[None]:
    """Within the block code that a run names may be imported."""
    before = _TRUSTS_ALL.set(trusts or _TRUSTS_ALL.get())
    try:
        yield
    finally:
        _TRUSTS_ALL.reset(before)


def trust_code_from_now_on(trusts: bool) -> None:
    """Do what ``trust_code`` does, to the end of a verb of the command line."""
    _TRUSTS_ALL.set(trusts or _TRUSTS_ALL.get())


def find_code(source: str) -> Path | None:
    """Return the file that ``module:function`` or ``path/to/file.py:function`` would import; nothing is imported."""
    module_name = source.rpartition(":")[0]
    if module_name.endswith(".py"):
        return Path(module_name).resolve() if Path(module_name).is_file() else None
    path, place = ["", *sys.path], None
    parts = module_name.split(".")
    for length in range(1, len(parts) + 1):
        try:
            spec = PathFinder.find_spec(".".join(parts[:length]), path)
        except (ImportError, ValueError, OSError):
            return None
        if spec is None:
            return None
        place, path = spec.origin, list(spec.submodule_search_locations or [])
    return None if place is None else Path(place).resolve()


def remember_code(source: str) -> None:
    """Note that the user trusts the file that ``source`` names, as it is now."""
    place = find_code(source) if ":" in source and not source.startswith("<") else None
    if place is None:
        return
    _TRUSTED_HERE.add((str(place), hash_file(place)))
    with suppress(PumaError, OSError, RuntimeError):  # a home that cannot be written to is asked again next time
        known = _read_trusted()
        if known.get(str(place)) != hash_file(place):
            known.pop(str(place), None)
            kept = list(known.items())[-_MOST:]
            write_json(_find_store(), {**dict(kept), str(place): hash_file(place)})


def check_code(source: str, run: Path, recorded: str) -> None:
    """Raise unless the file that a run's ``source`` names is trusted, and is what the run was trained with.

    ``recorded`` is the hash that the run tells; empty where an older run does not.
    """
    if _TRUSTS_ALL.get():
        return
    place = find_code(source)
    if place is None:
        raise PumaError(
            f"{run} names code to build its model, {source}, which is not found as a file from here; "
            f"go where it can be imported, read it, and give --trust-code (trust_code=True) if you trust it."
        )
    found = hash_file(place)
    if (str(place), found) not in _TRUSTED_HERE and _read_trusted().get(str(place)) != found:
        raise PumaError(
            f"{run} names code to build its model: {source} would import {place}, and that can do anything; "
            f"read it, and give --trust-code (trust_code=True) if you trust it."
        )
    if recorded and found != recorded:
        raise PumaError(
            f"{place} has changed since {run} was trained with it, and may make another model of its weights; "
            f"bring the old file back, or give --trust-code (trust_code=True)."
        )


def _find_store() -> Path:
    folder = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    return Path(folder) / "puma" / "trusted-code.json"


def _read_trusted() -> dict[str, str]:
    try:
        return {str(name): str(value) for name, value in read_json(_find_store(), "a list of trusted code").items()}
    except (PumaError, RuntimeError):
        return {}
