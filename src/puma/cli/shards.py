"""``puma data import tar | webdataset | parquet``, ``puma data subset``: pools whose pictures stay where they lie."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from puma.cli.data import AllowEmpty, Force, OriginName, Out, tell_broken, tell_pools
from puma.errors import PumaError
from puma.pools import (
    HELD_BACK,
    POPULARITY_RATIO,
    DecodePolicy,
    ImportedPool,
    Origin,
    Pool,
    ShardOptions,
    choose_here,
    describe_superclasses,
    index_parquet,
    index_tars,
    index_webdataset,
    make_class_map,
    read_class_map,
    save_subset,
)

Size = Annotated[int, arg(help="side in pixels of the decoded pictures, such as 224")]
ResizeName = Annotated[Literal["cover", "squash"], arg(help="take the middle square, or squash the whole picture")]
Channels = Annotated[Literal[1, 3], arg(help="3 for colour, 1 for grey")]
PackFlag = Annotated[bool, arg(help="decode now and write pixels, so that the shards are not needed any more")]
CheckFlag = Annotated[bool, arg(help="decode every picture now; otherwise only those that do not look whole")]
StrictFlag = Annotated[bool, arg(help="stop at a broken picture; otherwise such are listed and left out")]
ClassMapFile = Annotated[
    str | None, arg(metavar="FILE", help="the class of every label, by puma data superclasses, or imagenet21k-100")
]
ClassNames = Annotated[tuple[str, ...], arg(help="names of the classes in the order of their labels")]


def import_tars(
    source: Positional[Path],
    /,
    *,
    out: Out,
    size: Size,
    resize: ResizeName = "cover",
    channels: Channels = 3,
    class_map: ClassMapFile = None,
    pack: PackFlag = False,
    check: CheckFlag = False,
    strict: StrictFlag = False,
    origin: OriginName = "real",
    allow_empty_class: AllowEmpty = False,
    force: Force = False,
) -> None:
    """Make a pool of tars, one per class and named by it, as ImageNet-21K comes; pictures stay in them.

    Args:
        source: folder of the tars, or one tar that holds them.
    """
    options = _make_options(
        size, resize, channels, class_map, (), origin,
        pack=pack, check=check, strict=strict, allow_empty_class=allow_empty_class, force=force,
    )  # fmt: skip
    _tell_import(index_tars(source, out, options))


def import_imagenet21k(
    source: Positional[Path],
    /,
    *,
    out: Out,
    classes: int = 100,
    counts: Literal["auto", "published", "here"] = "auto",
    ratio: float = POPULARITY_RATIO,
    test_per_id: int = HELD_BACK,
    size: Size = 224,
    resize: ResizeName = "cover",
    channels: Channels = 3,
    pack: PackFlag = False,
    check: CheckFlag = False,
    strict: StrictFlag = False,
    allow_empty_class: AllowEmpty = False,
    force: Force = False,
) -> None:
    """Make pools of a few large classes out of tars that are named by WordNet ids; writes DIR/train and DIR/test.

    Args:
        source: folder of the tars, one per id, such as n01440764.tar.
        classes: how many classes to make: the most populous category is split until they are alike.
        counts: split by the published counts of ImageNet-21K, or by the pictures here; auto takes the published ones
            where at least half of its ids are here.
        ratio: how many times larger than the smallest class the largest may be.
        test_per_id: pictures of every id for DIR/test: those whose names hash lowest; 0 writes no test pool.
    """
    if test_per_id < 0:
        raise PumaError(f"--test-per-id must not be negative, got {test_per_id}.")
    published = None if counts == "auto" else counts == "published"
    chosen, tree, how = choose_here(source, classes, ratio=ratio, published=published)
    print(how)
    print(describe_superclasses(chosen, tree, most=10))
    parts: tuple[Literal["train", "test"], ...] = ("train", "test") if test_per_id else ("train",)
    for part in parts:
        if (out / part).exists() and not force:
            raise PumaError(f"{out / part} exists already; choose another --out, or give --force to replace it.")
    for part in parts:
        options = replace(
            _make_options(size, resize, channels, None, (), "real", pack=pack, check=check, strict=strict, force=force),
            class_map=make_class_map(chosen),
            allow_empty_class=allow_empty_class or part == "test",
            part=part,
            held_out=test_per_id,
        )
        done = index_tars(source, out / part, options)
        tell_broken(done.broken, done.out)
    tell_pools(out)


def import_webdataset(
    sources: Positional[tuple[Path, ...]],
    /,
    *,
    out: Out,
    size: Size,
    resize: ResizeName = "cover",
    channels: Channels = 3,
    label_key: str = "",
    class_names: ClassNames = (),
    class_map: ClassMapFile = None,
    shard_keys: bool = False,
    pack: PackFlag = False,
    check: CheckFlag = False,
    strict: StrictFlag = False,
    origin: OriginName = "real",
    allow_empty_class: AllowEmpty = False,
    force: Force = False,
) -> None:
    """Make a pool of WebDataset shards (a picture with a .cls or .json per key); pictures stay in them.

    Args:
        sources: the .tar files, or folders of them.
        label_key: field of the .json with the label; by default label, cls or class.
        shard_keys: put the shard's name before each key, where keys repeat from shard to shard.
    """
    options = _make_options(
        size, resize, channels, class_map, class_names, origin, shard_keys=shard_keys,
        pack=pack, check=check, strict=strict, allow_empty_class=allow_empty_class, force=force,
    )  # fmt: skip
    _tell_import(index_webdataset(sources, out, options, label_key=label_key))


def import_parquet(
    sources: Positional[tuple[Path, ...]],
    /,
    *,
    out: Out,
    size: Size,
    resize: ResizeName = "cover",
    channels: Channels = 3,
    image_column: str = "",
    label_column: str = "label",
    class_names: ClassNames = (),
    class_map: ClassMapFile = None,
    shard_keys: bool = False,
    pack: PackFlag = False,
    check: CheckFlag = False,
    strict: StrictFlag = False,
    origin: OriginName = "real",
    allow_empty_class: AllowEmpty = False,
    force: Force = False,
) -> None:
    """Make a pool of Parquet files with a column of pictures, as Hugging Face writes them; pictures stay in them.

    Args:
        sources: the .parquet files, or folders of them.
        image_column: column of bytes, or of {bytes, path}; by default image, img, jpg or png.
        label_column: column of whole numbers or names.
        shard_keys: put the file's name before each path, where paths repeat from file to file.
    """
    options = _make_options(
        size, resize, channels, class_map, class_names, origin, shard_keys=shard_keys,
        pack=pack, check=check, strict=strict, allow_empty_class=allow_empty_class, force=force,
    )  # fmt: skip
    _tell_import(index_parquet(sources, out, options, image_column=image_column, label_column=label_column))


def _make_options(
    size: int,
    resize: Literal["cover", "squash"],
    channels: int,
    class_map: str | None,
    class_names: tuple[str, ...],
    origin: str,
    **flags: Any,  # those of ShardOptions
) -> ShardOptions:
    if class_map is not None and class_names:
        raise PumaError("--class-map and --class-names both name the classes; give one of them.")
    return ShardOptions(
        DecodePolicy(size, resize, channels),
        class_names or None,
        None if class_map is None else read_class_map(class_map),
        Origin[origin.upper()],
        progress=True,
        **flags,
    )


def _tell_import(done: ImportedPool) -> None:
    if done.left_out:
        print(f"{done.left_out:,} pictures of labels that the class map lacks were left out", file=sys.stderr)
    tell_broken(done.broken, done.out)
    tell_pools(done.out)


def choose_subset(
    source: Positional[Path],
    /,
    *,
    out: Out,
    first: int | None = None,
    classes: str = "",
    kept_by: Path | None = None,
    ids: Path | None = None,
    force: Force = False,
) -> None:
    """Make a pool of some samples of another: an index into it, with the same ids; nothing is copied.

    Several conditions must hold together.

    Args:
        source: the pool; it must stay where it is.
        first: so many, in the order of the pool, of those that the other conditions leave.
        classes: names of classes, with commas between.
        kept_by: a plan.parquet of this pool: what it keeps.
        ids: a file with an id or a key a line, or an .npy of ids.
    """
    from puma.planning import Plan

    if first is None and not classes and kept_by is None and ids is None:
        raise PumaError("say which samples: --first, --classes, --kept-by or --ids.")
    pool = Pool.open(source)
    keep = None if kept_by is None else Plan.open(kept_by).of(pool)[0].numpy()
    names = tuple(name.strip() for name in classes.split(",") if name.strip())
    tell_pools(save_subset(pool, out, keep=keep, classes=names, ids=ids, first=first, force=force))
