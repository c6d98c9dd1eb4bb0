"""Turn what an importer describes into pool folders, all of them or none."""

from collections.abc import Mapping
from pathlib import Path

from puma.pools.importers.folder import PictureFolder, packed_chunks, write_as_files
from puma.pools.pool import Pool
from puma.pools.writer import PoolPart, new_folder, write_pool
from puma.progress import progress_bar


def write_parts(parts: Mapping[str, PoolPart], out: str | Path, *, force: bool = False, progress: bool = False) -> Path:
    """Write each part as the pool ``out/NAME``; a single part named "" becomes ``out`` itself."""
    out = Path(out)
    with new_folder(out, force=force) as folder:
        for name, part in parts.items():
            (folder / name).mkdir(exist_ok=True)
            with progress_bar(f"import {name or out.name}", part.count, unit="images", enabled=progress) as advance:
                write_pool(folder / name, part, advance=advance)
    return out


def write_picture_folder(
    pictures: PictureFolder,
    out: str | Path,
    *,
    origin: int = 0,
    keep_files: bool = False,
    strict: bool = False,
    allow_empty_class: bool = False,
    force: bool = False,
    progress: bool = False,
) -> Path:
    """Write a pool of a folder of pictures: packed to one array, or pointing at the files."""
    out = Path(out)
    chunks = () if keep_files else packed_chunks(pictures, strict=strict)
    part = PoolPart(chunks, pictures.class_names, len(pictures.names), origin, allow_empty_class)
    with new_folder(out, force=force) as folder:
        with progress_bar(f"import {out.name}", part.count, unit="pictures", enabled=progress) as advance:
            if keep_files:
                write_as_files(folder, pictures, part, strict=strict, advance=advance)
            else:
                write_pool(folder, part, advance=advance)
        if pictures.broken:
            (folder / "broken.txt").write_text("\n".join(pictures.broken) + "\n", encoding="utf-8", errors="replace")
    return out


def pool_names(path: Path) -> dict[str, Pool]:
    """Open the pool in a folder, or all the pools directly inside it, by name."""
    inner = sorted(file.parent for file in path.glob("*/pool.json"))
    if inner and not (path / "pool.json").is_file():
        return {folder.name: Pool.open(folder) for folder in inner}
    return {path.name: Pool.open(path)}
