"""Files written whole or not at all, read without trust; locks, hashes, and links by hash to what a file
was made from.
"""

import errno
import glob
import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, Literal

from puma.errors import PumaError

CHECKSUM = "sha256"  # the key of a JSON object's own hash
_LARGEST_JSON = 256 << 20  # a larger one is not ours: ten thousand classes with their counts take 1 MB
_HOST = hashlib.sha256(os.uname().nodename.encode() if hasattr(os, "uname") else b"").hexdigest()[:8]


@contextmanager
def replace_atomically(path: str | Path) -> Iterator[Path]:
    """Yield a hidden path beside ``path`` to write to; it takes ``path``'s place when the block ends well.

    A reader, a crash or a power cut sees the old file or the new one. When the block fails nothing is left behind; what
    a killed process left is removed the next time. A full disk or a folder without write access is one sentence.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{_HOST}-{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        yield partial
        _sync(partial)
        partial.replace(path)
        _sync(path.parent)
    except PumaError:
        raise
    except Exception as error:
        reason = _tell_why(error)
        if reason is None:
            raise
        raise PumaError(
            f"cannot write {path}: {reason}; what was there before is kept, mend it and run the same command again."
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    """Delete what processes of this machine left beside ``path`` when they were killed."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.{_HOST}-*.partial"):
        process = leftover.name.removesuffix(".partial").rpartition("-")[2]
        if process.isdigit() and not is_alive(int(process)):
            with suppress(OSError):
                leftover.unlink()


def is_alive(process: int) -> bool:
    """Tell whether a process of this machine still runs."""
    if sys.platform == "win32":  # signal 0 would end it there
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _sync(path: Path) -> None:
    """Bring a file, or a folder's list of names, to the disk; systems that cannot do so for folders are left alone."""
    with suppress(PermissionError):
        handle = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _tell_why(error: Exception) -> str | None:
    """Return why a write failed, None when the error is about something else than the disk.

    Libraries in other languages report the system's errors as text only.
    """
    told = re.search(r"(?:os error|Os \{ code:) (\d+)", str(error))
    if told or getattr(error, "errno", None) == errno.ENOSPC:
        return os.strerror(int(told[1]) if told else errno.ENOSPC)
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return None


def check_writable(path: str | Path) -> None:
    """Raise where no file can be written to ``path``, before the work is done that shall go there."""
    path = Path(path)
    trial = path.with_name(f".{path.name}.{_HOST}-{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise PumaError(f"cannot write {path}: {error.strerror or error}; choose another place.") from error


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file, whole or not at all."""
    with replace_atomically(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")
    return Path(path)


def write_json(path: str | Path, value: Any) -> Path:
    """Write a JSON file, whole or not at all."""
    return write_text(path, json.dumps(value, indent=1) + "\n")


def write_checked_json(path: str | Path, value: Mapping[str, Any]) -> Path:
    """Write a JSON object with its own SHA-256 in it: ``read_json`` refuses it once it has changed."""
    plain = json.loads(json.dumps(value))
    return write_json(path, {**plain, CHECKSUM: hash_json(plain)})


def open_regular(path: str | Path, what: str = "a file") -> BufferedReader:
    """Open a regular file for reading; anything else (a pipe would block for ever, a device never end) raises."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError as error:
        raise PumaError(f"no file at {path}: expected {what}.") from error
    except (OSError, ValueError) as error:
        raise PumaError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}.") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise PumaError(f"{path} is not a regular file: expected {what}.")
    return os.fdopen(handle, "rb")


@contextmanager
def name_natively(path: str | Path) -> Iterator[str]:
    """Yield a name by which a library in another language can read a file: most know names in UTF-8 only."""
    name = str(path)
    try:
        name.encode()
    except UnicodeEncodeError:
        with open_regular(path) as file:
            yield f"/dev/fd/{file.fileno()}"
        return
    yield name


def read_bytes(path: str | Path, what: str, largest: int = _LARGEST_JSON) -> bytes:
    """Read a regular file of at most ``largest`` bytes."""
    with open_regular(path, what) as file:
        size = os.fstat(file.fileno()).st_size
        if size > largest:
            raise PumaError(f"{path} has {size:,} bytes, more than {what} can have ({largest:,}).")
        return file.read(largest)


def read_json(path: str | Path, what: str) -> dict[str, Any]:
    """Read a JSON object; ``what`` names it in errors, such as "a run's config.json".

    The SHA-256 that ``write_checked_json`` put into it is verified and left out.
    """
    value = parse_json(read_bytes(path, what), str(path), what)
    written = value.pop(CHECKSUM, None)
    if written is not None and written != hash_json(value):
        raise PumaError(
            f"{path} is damaged: it has changed since it was written; if that was meant, remove {CHECKSUM!r} from it."
        )
    return value


def parse_json(text: bytes | str, source: str, what: str) -> dict[str, Any]:
    """Parse a JSON object out of a file or a table's footer; whatever is wrong with it is one sentence."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PumaError(f"{source} is damaged: {what} must be JSON ({str(error) or 'nested too deep'}).") from error
    if not isinstance(value, dict):
        raise PumaError(f"{source} is damaged: {what} must be a JSON object, got {type(value).__name__}.")
    return value


def hash_file(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_json(value: Mapping[str, Any] | list[Any]) -> str:
    """Return the SHA-256 of a value as canonical JSON: the same for equal values in any order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@contextmanager
def lock(path: str | Path, *, wait: bool = False, busy: str = "") -> Iterator[int]:
    """Keep other processes from making the same thing; the system releases the lock however its holder ends.

    The lock is a hidden file beside ``path``. Without ``wait`` a lock that is taken raises ``busy``. Yields the file
    descriptor: a child process that inherits it holds the lock for as long as it lives.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as file:
        if not _take_lock(file, wait=False):
            if not wait:
                raise PumaError(busy or f"another process is writing {path}; wait for it, or give another --out.")
            print(f"puma: waiting for another process that makes {path}.", file=sys.stderr, flush=True)
            _take_lock(file, wait=True)
        yield file.fileno()


def _take_lock(file: IO[str], *, wait: bool) -> bool:
    """Lock an open file; False where another process has it and there is no waiting."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


LinkKind = Literal["pool", "model", "margins", "scores", "plan", "run", "metrics", "generator", "weights", "code"]
LINKS_KEY = "links"
UNKNOWN_HASH = ""  # the hash of a link that a file of an older version does not tell


@dataclass(frozen=True)
class Link:
    """One thing that a file was made from.

    ``hash`` is a pool's, a model's or a generator's fingerprint, the SHA-256 of a run's model file, else that of the
    file itself. ``path`` is where it lay: a hint for
    those who look for it, never trusted.
    """

    role: str
    kind: LinkKind
    hash: str
    path: str = ""


def link_to_file(role: str, kind: LinkKind, path: str | Path) -> Link:
    """Return the link to a file as it is now."""
    return Link(role, kind, hash_file(path), os.fspath(path))


def write_links(links: Iterable[Link]) -> list[dict[str, str]]:
    """Return links as they are written into JSON."""
    return [asdict(link) for link in links]


def read_links(described: Mapping[str, Any]) -> tuple[Link, ...] | None:
    """Return the links in a footer or JSON file; None where it tells of none, as files of older versions do."""
    found = described.get(LINKS_KEY)
    if not isinstance(found, list):
        return None
    names = ("role", "kind", "hash", "path")
    return tuple(Link(*(str(link.get(name, "")) for name in names)) for link in found if isinstance(link, dict))  # type: ignore[arg-type]
