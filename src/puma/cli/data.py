"""``puma data``: make pools and look at them."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from puma.cli.flags import check_output
from puma.errors import PumaError
from puma.pools import (
    CIFAR10,
    CIFAR100,
    FASHION_CLASSES,
    MNIST_CLASSES,
    POPULARITY_RATIO,
    Origin,
    Pool,
    PoolPart,
    choose_superclasses,
    count_images,
    describe_pool,
    describe_superclasses,
    draw_grid,
    draw_superclasses,
    extend_tree,
    is_pool,
    list_pictures,
    open_inner_pools,
    read_cifar,
    read_mnist,
    read_published_tree,
    read_tree,
    write_class_map,
    write_parts,
    write_picture_folder,
)

Out = Annotated[Path, arg(metavar="DIR", help="folder to write; it must not exist yet")]
Force = Annotated[bool, arg(help="replace an existing pool")]
OriginName = Annotated[Literal["real", "generated"], arg(help="where the images come from")]
_GREY_TRIAL = 64  # pictures that are looked at: a coloured set has no such run of grey ones
AllowEmpty = Annotated[bool, arg(help="accept classes without any image")]


def _write_pools(parts: dict[str, PoolPart], out: Path, force: bool) -> None:
    tell_pools(write_parts(parts, out, force=force, progress=True))


def tell_pools(out: Path) -> None:
    """Print what an import has made."""
    for name, pool in open_inner_pools(out).items():
        place = out if is_pool(out) else out / name
        height, width, channels = pool.image_shape
        origin = " and ".join(kind.name.lower() for kind in Origin if (pool.origin == kind).any())
        print(f"{place}: {len(pool):,} {origin} images of {height} x {width} x {channels}, {pool.num_classes} classes")
    print(f"look at it with: puma data show {out}")


def import_digits(*, out: Out, force: Force = False) -> None:
    """Import scikit-learn's handwritten digits: 1797 grey images of 8 px; writes DIR/train and DIR/test."""
    from puma.pools import read_digits

    _write_pools(read_digits(), out, force)


def import_cifar10(source: Positional[Path], /, *, out: Out, force: Force = False) -> None:
    """Import CIFAR-10; writes DIR/train and DIR/test.

    Args:
        source: folder or tar archive with the official binary or python files (data_batch_1 ... test_batch).
    """
    _write_pools(read_cifar(source, CIFAR10), out, force)


def import_cifar100(source: Positional[Path], /, *, out: Out, force: Force = False) -> None:
    """Import CIFAR-100 with its 100 fine labels; writes DIR/train and DIR/test.

    Args:
        source: folder or tar archive with the official binary or python files (train, test).
    """
    _write_pools(read_cifar(source, CIFAR100), out, force)


def import_mnist(source: Positional[Path], /, *, out: Out, pool: int = 1, force: Force = False) -> None:
    """Import MNIST; writes DIR/train and DIR/test.

    Args:
        source: folder with the four idx files (train-images-idx3-ubyte.gz and so on).
        pool: average blocks of this many pixels a side: 2 makes 14 px out of 28.
    """
    _write_pools(read_mnist(source, MNIST_CLASSES, pool=pool), out, force)


def import_fashion_mnist(source: Positional[Path], /, *, out: Out, pool: int = 1, force: Force = False) -> None:
    """Import Fashion-MNIST; writes DIR/train and DIR/test.

    Args:
        source: folder with the four idx files (train-images-idx3-ubyte.gz and so on).
        pool: average blocks of this many pixels a side: 2 makes 14 px out of 28.
    """
    _write_pools(read_mnist(source, FASHION_CLASSES, pool=pool), out, force)


def import_npz(
    source: Positional[Path],
    /,
    *,
    out: Out,
    origin: OriginName = "generated",
    like: Path | None = None,
    class_names: tuple[str, ...] = (),
    image_key: str = "image",
    label_key: str = "label",
    allow_empty_class: AllowEmpty = False,
    force: Force = False,
) -> None:
    """Import an .npz of uint8 images (n, height, width[, channels]) and integer labels; it is streamed.

    Args:
        source: the .npz file, compressed or not.
        like: a pool whose class names to take, so that the two can be trained on together.
        class_names: names of the classes in the order of their labels; numbers by default.
        image_key: name of the images' array in the file.
        label_key: name of the labels' array in the file.
    """
    from puma.pools import read_npz

    if like is not None and class_names:
        raise PumaError("--like and --class-names both name the classes; give one of them.")
    names = Pool.open(like).class_names if like is not None else class_names
    part = read_npz(
        source,
        origin=Origin[origin.upper()],
        class_names=names or None,
        image_key=image_key,
        label_key=label_key,
        allow_empty_class=allow_empty_class,
    )
    _write_pools({"": part}, out, force)
    if origin == "generated":
        print("they count as generated; for images that are real give --origin real")


def import_folder(
    source: Positional[Path],
    /,
    *,
    out: Out,
    size: int,
    channels: Literal[1, 3] = 3,
    keep_files: bool = False,
    strict: bool = False,
    origin: OriginName = "real",
    allow_empty_class: AllowEmpty = False,
    force: Force = False,
) -> None:
    """Import a folder with one sub-folder of pictures per class.

    Args:
        source: the folder.
        size: side in pixels; the shorter side of a picture is scaled to it and the middle square cut out.
        channels: 3 for colour, 1 for grey.
        keep_files: do not pack the pixels; the pool points at the pictures, decoded by threads when they are read.
        strict: stop at a picture that cannot be read; otherwise such pictures are listed and left out.
    """
    pictures = list_pictures(source, size, channels)
    write_picture_folder(
        pictures,
        out,
        origin=Origin[origin.upper()],
        keep_files=keep_files,
        strict=strict,
        allow_empty_class=allow_empty_class,
        force=force,
        progress=True,
    )
    tell_broken(pictures.broken, out)
    tell_pools(out)
    if channels == 3 and _looks_grey(Pool.open(out)):
        print("its pictures look grey; for a net that takes one channel give --channels 1")


def _looks_grey(pool: Pool) -> bool:
    """Tell whether all channels are the same in a few pictures over the whole pool."""
    step = max(len(pool) // _GREY_TRIAL, 1)
    images = pool.batch(range(0, len(pool), step)).images
    return bool((images == images[:, :1]).all())


def tell_broken(broken: list[str], out: Path) -> None:
    """Print how many pictures an import has left out, and the first of them."""
    if broken:
        more = f"{len(broken):,} pictures could not be read and were left out"
        print(f"puma: {more} (all in {out / 'broken.txt'}): {'; '.join(broken[:3])}", file=sys.stderr)


def distort_folder(source: Positional[Path], /, *, out: Out, count: int, seed: int = 0, force: Force = False) -> None:
    """Make extra images from a pool's own by random affine and elastic distortion; they count as generated.

    Args:
        source: the pool, for instance digits/train; give it training images only.
        count: how many to make; every image of the pool is used equally often, up to one.
        seed: another seed makes other images.
    """
    from puma.pools import distort_pool

    if source.resolve().is_relative_to(out.resolve()):
        raise PumaError(f"--out {out} would replace the pool {source} itself; choose another --out.")
    _write_pools({"": distort_pool(Pool.open(source), count, seed=seed)}, out, force)


def list_superclasses(
    *,
    classes: int = 100,
    source: Path | None = None,
    tree: Path | None = None,
    ratio: float = POPULARITY_RATIO,
    out: Path | None = None,
    picture: Path | None = None,
) -> None:
    """Group WordNet ids to a few large classes: the most populous is split until they are alike.

    By default the 100 classes of ImageNet-21K-100, from the published counts.

    Args:
        classes: how many classes to make.
        source: folder with a tar or a folder of pictures per id, whose pictures to count.
        tree: CSV with the columns wnid, parent and name, instead of the shipped tree of ImageNet-21K.
        ratio: how many times larger than the smallest class the largest may be.
        out: write the class of every id to this .csv, for --class-map.
        picture: draw the tree and the sizes of the classes to this .png.
    """
    if out is not None:
        check_output("--out", out, ".csv", inputs=[tree], starts=b"wnid,class,")
    if picture is not None:
        check_output("--picture", picture, ".png")
    if tree is not None and source is None:
        raise PumaError("--tree needs --source: the published counts belong to the shipped tree.")
    class_tree, counts = read_published_tree()
    if source is not None:
        counts = count_images(source)
        class_tree, unknown = (read_tree(tree), []) if tree is not None else extend_tree(sorted(counts))
        if unknown:
            print(f"{len(unknown)} ids are not in the tree and stand alone: {', '.join(unknown[:5])}")
    chosen = choose_superclasses(class_tree, counts, classes, ratio=ratio)
    print(describe_superclasses(chosen, class_tree))
    if out is not None:
        print(f"class of every id: {write_class_map(chosen, counts, out)}")
    if picture is not None:
        draw_superclasses(chosen, class_tree, picture)
        print(f"picture: {picture}")


def show_pool(path: Positional[Path], /, *, picture: Path | None = None, seed: int = 0) -> None:
    """Print what a pool holds and draw a grid of its images.

    Args:
        path: a pool, or a folder of pools.
        picture: where to write the PNG; by default into the current folder, named after the pool.
        seed: another seed shows other images.
    """
    if picture is not None:
        check_output("--picture", picture, ".png")
    pools = open_inner_pools(path)
    own = path.resolve() if len(pools) > 1 else path.resolve().parent
    before = "" if own == Path.cwd() else f"{own.name}-"  # the folder one is in needs no name
    targets = {name: picture or Path(f"{before}{name}.png") for name in pools}
    if picture is not None and len(pools) > 1:
        targets = {name: picture.with_stem(f"{picture.stem}-{name}") for name in pools}
    for target in targets.values():
        check_output("--picture", target, ".png")
    for name, pool in pools.items():
        for store in pool.stores:
            store.verify()
        print(describe_pool(pool, name))
        draw_grid(pool, targets[name], seed=seed)
        print(f"picture: {targets[name]}\n")
