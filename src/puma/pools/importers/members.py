"""Read named files out of a folder or a tar archive, without unpacking anything to disk."""

import lzma
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path

from puma.errors import PumaError

_LARGEST = 1 << 30  # no file of the data sets read this way comes near; a hostile archive might


def read_members(source: Path, names: Collection[str]) -> dict[str, bytes]:
    """Return the contents of those of ``names`` that the folder (at any depth of two) or the archive holds."""
    if source.is_dir():
        found = {name: next(iter([*source.glob(name), *source.glob(f"*/{name}")]), None) for name in names}
        return {name: path.read_bytes() for name, path in found.items() if path is not None}
    if not source.is_file():
        raise PumaError(f"no such folder or archive: {source}.")
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(source) as archive:
            for member in archive:
                name = Path(member.name).name
                if name in names and member.isfile() and member.size <= _LARGEST:
                    file = archive.extractfile(member)
                    if file is not None:
                        contents[name] = file.read()
                        if len(contents[name]) != member.size:
                            raise EOFError(name)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        raise PumaError(f"{source} is not a whole tar archive ({error}); fetch it again.") from error
    return contents
