"""Make pools of pictures that stay where they are: tars of one class each, WebDataset shards, Parquet files.

An import reads headers and labels and writes an index; pictures are glanced at, and decoded only if ``check`` says so.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError
from puma.files import open_regular
from puma.pools.decode_workers import try_decode_rows
from puma.pools.decoding import DecodePolicy
from puma.pools.parquet_pages import PAGE, find_codec
from puma.pools.shards import (
    INDEX,
    SHARDS_FORMAT,
    ShardFile,
    fingerprint_index,
    hash_key,
    open_shards,
    write_shards,
)
from puma.pools.tar_scan import MOST_CLASSES, FoundPicture, Label, Warn, open_plain, scan_tar, scan_webdataset
from puma.pools.writer import Chunk, NpyAppender, PoolPart, new_folder, write_description, write_pool
from puma.progress import Advance, progress_bar

if TYPE_CHECKING:
    from puma.pools.superclasses import ClassMap

_BUFFER = 1 << 16  # rows of the index that are written in one go
_CHUNK = 512  # pictures that are decoded in one go
_FILES = ("index.npy", "pages.npy", "sample_id.npy", "keys.txt", "keys_end.npy", "shards.json")


@dataclass(frozen=True)
class ShardOptions:
    """What all imports of shards share.

    Args:
        policy: how pictures are decoded.
        class_names: of labels that are numbers, in their order; or the names that labels may have.
        class_map: the class of every label, such as a WordNet id; labels that it lacks are left out.
        pack: decode now and write an array of pixels, so that the shards are not needed any more.
        check: decode every picture now; otherwise only those that do not look whole.
        strict: stop at the first broken picture instead of leaving it out.
        shard_keys: put the name of its shard before each key, where keys repeat from shard to shard.
        part: with ``held_out``: only the pictures that are held out of every tar, or only the others.
        held_out: how many pictures of every tar are the test part: those whose keys hash lowest, wherever they lie.
    """

    policy: DecodePolicy
    class_names: Sequence[str] | None = None
    class_map: "ClassMap | None" = None
    origin: int = 0
    pack: bool = False
    check: bool = False
    strict: bool = False
    shard_keys: bool = False
    allow_empty_class: bool = False
    force: bool = False
    progress: bool = False
    part: Literal["all", "train", "test"] = "all"
    held_out: int = 0


@dataclass
class ImportedPool:
    """What came of an import: broken pictures and why, and how many a class map has left out."""

    out: Path
    broken: list[str] = field(default_factory=list)
    left_out: int = 0


Scan = Callable[[Path, str, Warn], Iterator[FoundPicture]]


def index_tars(source: Path, out: Path, options: ShardOptions) -> ImportedPool:
    """Index a folder of tars, one per class and named by it, or one tar of such tars."""
    tars = list_shards([source], ".tar")
    empty: list[str] = []

    def scan(path: Path, name: str, warn: Warn) -> Iterator[FoundPicture]:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            found = scan_tar(file, path, Path(name).stem, 0, size, options.policy, warn, empty)
            yield from found if options.part == "all" else _take_part(found, options)

    return _import_shards(tars, scan, out, options, empty=empty)


def _take_part(found: Iterable[FoundPicture], options: ShardOptions) -> Iterator[FoundPicture]:
    """Keep one part of the pictures of every label; those of a label lie together."""
    for _, group in groupby(found, key=lambda picture: picture.label):
        pictures = list(group)
        by_hash = sorted(pictures, key=lambda picture: (hash_key(os.fsencode(picture.key)), picture.key))
        test = {picture.key for picture in by_hash[: options.held_out]}
        yield from (picture for picture in pictures if (picture.key in test) == (options.part == "test"))


def index_webdataset(sources: Sequence[Path], out: Path, options: ShardOptions, *, label_key: str = "") -> ImportedPool:
    """Index WebDataset shards: a picture and a ``.cls`` or ``.json`` for every key."""

    def scan(path: Path, name: str, warn: Warn) -> Iterator[FoundPicture]:  # noqa: ARG001
        with open_plain(path) as file:
            yield from scan_webdataset(file, path, label_key, options.policy, warn)

    return _import_shards(list_shards(sources, ".tar"), scan, out, options)


def index_parquet(
    sources: Sequence[Path], out: Path, options: ShardOptions, *, image_column: str = "", label_column: str = "label"
) -> ImportedPool:
    """Index Parquet files with pictures as bytes in a column, alone or as Hugging Face's ``{bytes, path}``."""
    from puma.pools.parquet_scan import find_columns, scan_parquet

    paths = list_shards(sources, ".parquet")
    columns = find_columns(paths[0], image_column, label_column)
    if options.class_names is None and columns.class_names:
        options = replace(options, class_names=columns.class_names)

    def scan(path: Path, name: str, warn: Warn) -> Iterator[FoundPicture]:
        for key, label, place in scan_parquet(path, columns, warn):
            with_name = f"{Path(name).with_suffix('')}:{key}" if isinstance(key, int) else key
            yield FoundPicture(with_name, label, place)

    return _import_shards(paths, scan, out, options, codec=lambda path: find_codec(columns.codec(path), str(path)))


def list_shards(sources: Sequence[Path], suffix: str) -> list[Path]:
    """List the files of a kind that are named or lie in the folders that are named, in the order of their names."""
    found: list[Path] = []
    for source in sources:
        if source.is_dir():
            inside = sorted(path for path in source.rglob(f"*{suffix}") if path.is_file())
            if not inside:
                raise PumaError(f"{source} holds no {suffix} files; name the folder that they lie in.")
            found += inside
        elif not source.exists():
            raise PumaError(f"no such file or folder: {source}.")
        else:
            found.append(source)
    if not found:
        raise PumaError(f"no shards given; name {suffix} files, or folders of them.")
    found = [path.resolve() for path in found]
    if len(set(found)) < len(found):
        raise PumaError(
            f"{next(path for path in found if found.count(path) > 1)} is named twice; name each shard once."
        )
    return found


def _import_shards(
    paths: Sequence[Path],
    scan: Scan,
    out: Path,
    options: ShardOptions,
    *,
    codec: Callable[[Path], str | None] = lambda _: None,
    empty: Sequence[str] = (),
) -> ImportedPool:
    """Write the index of all shards, look for what cannot be, and describe the pool; whole or not at all.

    ``empty`` has the labels without any picture, once all shards are scanned.
    """
    done = ImportedPool(out)
    root = Path(os.path.commonpath([path.parent for path in paths]))
    with new_folder(out, force=options.force) as folder:
        shards = [_describe_shard(path, root, codec(path)) for path in paths]
        total = sum(shard.size for shard in shards) >> 20
        with progress_bar(f"index {out.name}", max(1, total), unit="MB", enabled=options.progress) as advance:
            known = _write_columns(folder, root, shards, scan, options, done, advance)
        for label in empty:
            known.setdefault(label, len(known))
        class_names, labels = _name_labels(known, options, folder, done)
        write_shards(folder, root, shards)
        part = PoolPart((), class_names, len(labels), options.origin, options.allow_empty_class, left_out=done.broken)
        if options.check or options.pack:
            _decode_all(folder, part, options, done)
        if not options.pack:
            _describe_index(folder, part, options)
        if done.broken:
            text = "\n".join(done.broken) + "\n"
            (folder / "broken.txt").write_text(text, encoding="utf-8", errors="replace")
    return done


def _describe_shard(path: Path, root: Path, codec: str | None) -> ShardFile:
    with open_regular(path, "a shard") as file:
        found = os.fstat(file.fileno())
    return ShardFile(path.relative_to(root).as_posix(), found.st_size, found.st_mtime_ns, codec)


def _write_columns(
    folder: Path,
    root: Path,
    shards: Sequence[ShardFile],
    scan: Scan,
    options: ShardOptions,
    done: ImportedPool,
    advance: Advance,
) -> dict[Label, int]:
    """Write a row per picture; return the labels as they came, each with the number that stands for it so far."""

    def warn(text: str) -> None:
        if options.strict:
            raise PumaError(f"broken picture {text}; mend it, or leave out --strict to skip such.")
        done.broken.append(text)

    known: dict[Label, int] = {}
    end = seen = 0
    paged = any(shard.codec for shard in shards)
    with (
        NpyAppender(folder / "index.npy", INDEX) as index,
        NpyAppender(folder / "labels.npy", np.int32) as labels,
        NpyAppender(folder / "sample_id.npy", np.int64) as ids,
        NpyAppender(folder / "keys_end.npy", np.int64) as ends,
        NpyAppender(folder / "pages.npy", PAGE) as pages,
        (folder / "keys.txt").open("wb") as keys,
    ):
        for number, shard in enumerate(shards):
            prefix = f"{Path(shard.name).with_suffix('')}/" if options.shard_keys else ""
            found = scan(root / shard.name, shard.name, warn)
            for rows in _cut(found, _BUFFER):
                texts = [os.fsencode(prefix + row.key) for row in rows]
                numbers = [known.setdefault(row.label, len(known)) for row in rows]
                index.append(np.array([(row.place.offset, row.place.length, number) for row in rows], dtype=INDEX))
                labels.append(np.array(numbers))
                ids.append(np.array([hash_key(text) for text in texts]))
                ends.append(end + np.cumsum([len(text) for text in texts]))
                keys.write(b"".join(texts))
                end += sum(map(len, texts))
                if paged:
                    places = (row.place for row in rows)
                    pages.append(np.array([(place.size, place.start, place.inner) for place in places], dtype=PAGE))
            after = seen + shard.size
            if (after >> 20) > (seen >> 20):
                advance((after >> 20) - (seen >> 20))
            seen = after
    if not paged:
        (folder / "pages.npy").unlink()
    if not known:
        why = f"; the first of {len(done.broken)} that were left out: {done.broken[0]}" if done.broken else ""
        raise PumaError(f"{root} holds no picture with a label in {len(shards)} shards{why}.")
    return known


def _cut(found: Iterable[FoundPicture], size: int) -> Iterator[list[FoundPicture]]:
    rows: list[FoundPicture] = []
    for row in found:
        rows.append(row)
        if len(rows) == size:
            yield rows
            rows = []
    if rows:
        yield rows


def _name_labels(
    known: Mapping[Label, int], options: ShardOptions, folder: Path, done: ImportedPool
) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Turn labels as they came into 0 to the number of classes, and leave out those that a class map lacks."""
    numbers = {label for label in known if isinstance(label, int)}
    if numbers and len(numbers) < len(known):
        name = next(label for label in known if isinstance(label, str))
        raise PumaError(f"labels must be all numbers or all names, got {min(numbers)} and {name!r}.")
    if options.class_map is not None:
        names = options.class_map.class_names
        place = {label: options.class_map.labels.get(str(label), -1) for label in known}
    elif numbers:
        if max(numbers) >= MOST_CLASSES:
            raise PumaError(f"labels must lie in 0..{MOST_CLASSES - 1}, got {max(numbers)}.")
        names = tuple(options.class_names or (str(label) for label in range(max(numbers) + 1)))
        if max(numbers) >= len(names):
            raise PumaError(f"labels must lie in 0..{len(names) - 1} for {len(names)} classes, got {max(numbers)}.")
        place = {label: int(label) for label in known}
    else:
        names = tuple(options.class_names or sorted(str(label) for label in known))
        absent = sorted(str(label) for label in known if str(label) not in names)
        if absent:
            raise PumaError(f"{absent[0]!r} is not among the {len(names)} classes that were named.")
        place = {label: names.index(str(label)) for label in known}
    if all(label < 0 for label in place.values()):
        raise PumaError(f"the class map has none of the labels that are there, such as {next(iter(known))!r}.")
    table = np.array([place[label] for label in known], dtype=np.int32)
    labels = table[np.load(folder / "labels.npy")]
    np.save(folder / "labels.npy", labels)
    done.left_out = int((labels < 0).sum())
    if done.left_out:
        _keep_rows(folder, labels >= 0)
        labels = labels[labels >= 0]
    return names, labels


def _keep_rows(folder: Path, keep: NDArray[np.bool_]) -> None:
    """Leave out rows of the index, each with its key."""
    ends = np.load(folder / "keys_end.npy")
    lengths = np.diff(ends, prepend=0)
    text = np.fromfile(folder / "keys.txt", dtype=np.uint8)
    text[np.repeat(keep, lengths)].tofile(folder / "keys.txt")
    np.save(folder / "keys_end.npy", np.cumsum(lengths[keep]))
    for name in ("index.npy", "pages.npy", "sample_id.npy", "labels.npy"):
        if (folder / name).exists():
            np.save(folder / name, np.load(folder / name)[keep])


def _decode_all(folder: Path, part: PoolPart, options: ShardOptions, done: ImportedPool) -> None:
    """Decode every picture: to leave out broken ones, or to pack the others as pixels."""
    count = len(np.load(folder / "labels.npy", mmap_mode="r"))
    described = {"count": count, "image_shape": options.policy.shape, "resize": options.policy.resize}
    pictures = open_shards(folder, described)
    labels = np.load(folder / "labels.npy")
    keep = np.ones(count, dtype=bool)

    def decode() -> Iterator[Chunk]:
        for start in range(0, count, _CHUNK):
            rows = np.arange(start, min(start + _CHUNK, count))
            images, reasons = try_decode_rows(pictures, rows)
            for place, reason in reasons.items():
                if options.strict:
                    raise PumaError(f"broken {reason.partition(';')[0]}; mend it, or leave out --strict to skip such.")
                done.broken.append(reason.partition("; import")[0])
                keep[start + place] = False
            advance(len(rows))
            stays = keep[rows]
            yield images[stays], labels[rows][stays]

    with progress_bar(f"decode {done.out.name}", count, unit="pictures", enabled=options.progress) as advance:
        if options.pack:
            (folder / "packed").mkdir()
            write_pool(folder / "packed", replace(part, chunks=decode(), count=count))
        else:
            for _ in decode():
                pass
    if not keep.any():
        raise PumaError(f"every picture is broken; the first: {done.broken[0]}.")
    if options.pack:
        for name in (*_FILES, "labels.npy"):
            (folder / name).unlink(missing_ok=True)
        for path in (folder / "packed").iterdir():
            path.rename(folder / path.name)
        (folder / "packed").rmdir()
    elif not keep.all():
        _keep_rows(folder, keep)


def _describe_index(folder: Path, part: PoolPart, options: ShardOptions) -> None:
    """Write origin.npy and, last of all, pool.json; keys that appear twice raise."""
    index, ids = np.load(folder / "index.npy", mmap_mode="r"), np.load(folder / "sample_id.npy", mmap_mode="r")
    pages = np.load(folder / "pages.npy", mmap_mode="r") if (folder / "pages.npy").exists() else None
    more = {"format": SHARDS_FORMAT, "resize": options.policy.resize, "checksum": 0}
    described = {"count": len(ids), "image_shape": options.policy.shape, "resize": options.policy.resize}
    _refuse_twins(folder, described, np.asarray(ids))
    write_description(
        folder,
        part,
        options.policy.shape,
        more,
        lambda labels, origin: fingerprint_index(
            index, pages, np.asarray(ids), labels, origin, part.class_names, options.policy
        ),
    )


def _refuse_twins(folder: Path, described: Mapping[str, Any], ids: NDArray[np.int64]) -> None:
    """Raise if two pictures have the same key, or keys that make the same id."""
    order = np.argsort(ids, kind="stable")
    twins = np.flatnonzero(ids[order][1:] == ids[order][:-1])
    if not len(twins):
        return
    pictures = open_shards(folder, described, check=False)
    one, two = (int(order[twins[0] + step]) for step in (0, 1))
    shards = [pictures.root / pictures.shards[int(pictures.index[row]["shard"])].name for row in (one, two)]
    if pictures.key(one) != pictures.key(two):
        raise PumaError(f"the keys {pictures.key(one)!r} and {pictures.key(two)!r} make the same id; rename one.")
    cure = "make them differ" if shards[0] == shards[1] else "give --shard-keys to put the shard's name before them"
    raise PumaError(
        f"{len(twins):,} keys appear twice, the first is {pictures.key(one)!r} in {shards[0]} and {shards[1]}; {cure}."
    )
