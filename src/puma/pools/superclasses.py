"""A few large classes out of thousands of WordNet ids: the most populous category is split until they are alike.

The way of ImageNet-21K-100: begin with the top categories, divide the one with the most images into its children,
again and again, until the largest ``classes`` lie within ``ratio`` of each other, and drop the rest.
"""

import csv
import gzip
import heapq
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from pathlib import Path

from puma.drawing import COLOURS
from puma.errors import PumaError, tell_missing
from puma.files import open_regular, read_bytes, replace_atomically, write_text
from puma.pools.archives import iterate_members, read_at
from puma.pools.decoding import is_picture

POPULARITY_RATIO = 5.0  # the paper's "at most five times the difference from the most popular to the least popular"
HELD_BACK = 50  # images of every id that the processed ImageNet-21K keeps for validation
SHIPPED_MAP = "imagenet21k-100"
_TREE_FILE, _MAP_FILE = "imagenet21k_tree.csv.gz", "imagenet21k_100.csv"
_MAP_COLUMNS = ("wnid", "class", "class_name", "images")
_LARGEST_TABLE = 64 << 20  # a table of all of WordNet takes 4 MB
_NAMES_WIDE = 185  # points: room for the names at the left of the picture
_WNID = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class ClassTree:
    """Ids below ids: ``parents`` maps every id to the one above it, or None at the top."""

    parents: Mapping[str, str | None]
    names: Mapping[str, str]

    def __post_init__(self) -> None:
        for wnid, parent in self.parents.items():
            if parent is not None and parent not in self.parents:
                raise PumaError(f"the tree puts {wnid} below {parent}, which it does not hold; add that id.")
        checked = set[str]()
        for wnid in self.parents:
            walked = dict.fromkeys(self.list_ancestors(wnid, checked))
            checked.update(walked)

    def list_ancestors(self, wnid: str, until: set[str] | None = None) -> list[str]:
        """Return the id itself and all above it, the nearest first; a cycle raises."""
        walked = dict[str, None]()
        above: str | None = wnid
        while above is not None and above not in (until or ()):
            if above in walked:
                raise PumaError(f"the tree runs in a circle: {' -> '.join([*walked, above][-6:])}; mend one of these.")
            walked[above] = None
            above = self.parents[above]
        return list(walked)

    def list_children(self) -> dict[str, list[str]]:
        """Return the ids below every id, in the order of their names."""
        children: dict[str, list[str]] = {wnid: [] for wnid in self.parents}
        for wnid, parent in sorted(self.parents.items()):
            if parent is not None:
                children[parent].append(wnid)
        return children

    def name_of(self, wnid: str) -> str:
        """Return the word for an id."""
        return self.names.get(wnid, wnid)


@dataclass(frozen=True)
class Superclass:
    """One class of the result: an id of the tree and all ids below it that hold images."""

    wnid: str
    name: str
    images: int
    members: tuple[str, ...]


@dataclass(frozen=True)
class Superclasses:
    """The classes, the largest first, and how they came about."""

    classes: tuple[Superclass, ...]
    splits: int
    dropped: int  # images that belong to no class

    @property
    def images(self) -> int:
        """Images of all classes together."""
        return sum(part.images for part in self.classes)

    def to_mapping(self) -> dict[str, Superclass]:
        """Return the class of every id."""
        return {wnid: part for part in self.classes for wnid in part.members}


def choose_superclasses(
    tree: ClassTree, counts: Mapping[str, int], classes: int, *, ratio: float = POPULARITY_RATIO
) -> Superclasses:
    """Split the most populous category until the largest ``classes`` are within ``ratio`` of each other.

    ``counts`` gives the images of each id. An id that is split and has images of its own leaves them as a category
    that cannot be split further. Of equals the lower id goes first, so the outcome depends on nothing but the input.
    """
    if classes < 2 or not ratio >= 1:
        raise PumaError(f"expected at least 2 classes and a ratio of at least 1, got {classes} and {ratio:g}.")
    if unknown := sorted(set(counts) - set(tree.parents)):
        raise PumaError(f"the tree does not hold {unknown[0]} ({len(unknown)} such ids); leave them out or add them.")
    children, totals = tree.list_children(), _sum_below(tree, counts)
    open_nodes = [(-totals[wnid], wnid) for wnid, parent in tree.parents.items() if parent is None and totals[wnid]]
    heapq.heapify(open_nodes)
    whole: list[tuple[int, str, bool]] = []  # categories that cannot be split: size, id, whether only its own images
    splits = 0
    while True:
        largest = _take_largest(open_nodes, whole, classes)
        if len(largest) == classes and -largest[-1][0] * ratio >= -largest[0][0]:
            break
        if not open_nodes:
            raise PumaError(_tell_shortage(tree, largest, classes, ratio))
        size, wnid = heapq.heappop(open_nodes)
        below = [child for child in children[wnid] if totals[child]]
        if not below:
            whole.append((size, wnid, False))
            continue
        for child in below:
            heapq.heappush(open_nodes, (-totals[child], child))
        if counts.get(wnid):
            whole.append((-counts[wnid], wnid, True))
        splits += 1
    made = tuple(_make_superclass(tree, children, counts, node) for node in largest)
    return Superclasses(made, splits, sum(counts.values()) - sum(part.images for part in made))


def _sum_below(tree: ClassTree, counts: Mapping[str, int]) -> dict[str, int]:
    totals = dict.fromkeys(tree.parents, 0)
    for wnid, count in counts.items():
        for above in tree.list_ancestors(wnid):
            totals[above] += count
    return totals


def _take_largest(
    open_nodes: Sequence[tuple[int, str]], whole: Sequence[tuple[int, str, bool]], classes: int
) -> list[tuple[int, str, bool]]:
    return heapq.nsmallest(classes, [*((size, wnid, False) for size, wnid in open_nodes), *whole])


def _tell_shortage(tree: ClassTree, largest: Sequence[tuple[int, str, bool]], classes: int, ratio: float) -> str:
    if len(largest) < classes:
        return f"there are {len(largest)} ids with images, so no {classes} classes; ask for fewer."
    first, last = largest[0], largest[-1]
    return (
        f"no {classes} classes within {ratio:g}x of each other: {tree.name_of(first[1])} has {-first[0]:,} images and "
        f"cannot be split, {tree.name_of(last[1])} has {-last[0]:,}; ask for fewer classes or a larger ratio."
    )


def _make_superclass(
    tree: ClassTree, children: Mapping[str, Sequence[str]], counts: Mapping[str, int], node: tuple[int, str, bool]
) -> Superclass:
    size, wnid, own_only = node
    members = (wnid,) if own_only else tuple(sorted(filter(counts.get, _walk_down(wnid, children))))
    name = tree.name_of(wnid)
    return Superclass(wnid, f"{name} (other)" if own_only else name, -size, members)


def _walk_down(wnid: str, children: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield wnid
    for child in children[wnid]:
        yield from _walk_down(child, children)


@dataclass(frozen=True)
class PublishedClass:
    """A line of the shipped table: an ImageNet-21K id, its images in fall 2011, and the ids above it."""

    name: str
    images: int
    in_tree: bool
    parents: tuple[str, ...]


def read_published_classes() -> dict[str, PublishedClass]:
    """Return all 21,841 ids of ImageNet-21K; those of the processed release (winter 2021) stand in its own tree."""
    packed = files("puma.pools").joinpath(_TREE_FILE).read_bytes()
    lines = csv.DictReader(io.StringIO(gzip.decompress(packed).decode()))
    return {
        line["wnid"]: PublishedClass(
            line["name"], int(line["images"]), line["tree"] == "1", tuple(line["parents"].split())
        )
        for line in lines
    }


def read_published_tree() -> tuple[ClassTree, dict[str, int]]:
    """Return the tree of the processed ImageNet-21K (10,450 ids) and its training images by id."""
    table = {wnid: line for wnid, line in read_published_classes().items() if line.in_tree}
    parents = {wnid: line.parents[0] if line.parents else None for wnid, line in table.items()}
    tree = ClassTree(parents, {wnid: line.name for wnid, line in table.items()})
    return tree, {wnid: line.images - HELD_BACK for wnid, line in table.items()}


def extend_tree(wnids: Sequence[str]) -> tuple[ClassTree, list[str]]:
    """Return the published tree with these ids added below their nearest known ancestor, and those that have none.

    An id of ImageNet-21K that the processed release left out follows WordNet's own parents upwards. Ids that no table
    knows are categories of their own.
    """
    tree, _ = read_published_tree()
    table = read_published_classes()
    parents, names, homeless = dict(tree.parents), dict(tree.names), []
    for wnid in wnids:
        if wnid in tree.parents:
            continue
        level, seen = [wnid], {wnid}
        while level and not any(above in tree.parents for above in level):
            level = [up for above in level if above in table for up in table[above].parents if up not in seen]
            seen.update(level)
        parents[wnid] = next((above for above in level if above in tree.parents), None)
        if wnid in table:
            names[wnid] = table[wnid].name
        if parents[wnid] is None:
            homeless.append(wnid)
    return ClassTree(parents, names), homeless


def read_tree(path: str | Path) -> ClassTree:
    """Read a tree of one's own: a CSV with the columns wnid, parent (empty at the top) and, if one likes, name."""
    parents: dict[str, str | None] = {}
    names: dict[str, str] = {}
    for line in _read_csv(Path(path), "a class tree", ("wnid", "parent")):
        wnid = line["wnid"]
        if wnid in parents:
            raise PumaError(f"{path} holds {wnid} twice; an id has one line and one parent.")
        parents[wnid] = line["parent"] or None
        if line.get("name"):
            names[wnid] = line["name"]
    return ClassTree(parents, names)


def _read_csv(path: Path, what: str, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    try:
        text = read_bytes(path, what, _LARGEST_TABLE).decode("utf-8")
        reader = csv.DictReader(io.StringIO(text), strict=True)
        if missing := [name for name in columns if name not in (reader.fieldnames or ())]:
            raise PumaError(
                f"{path} is not {what}: expected the columns {', '.join(columns)}, no {missing[0]!r} there."
            )
        for number, line in enumerate(reader, 2):
            if None in line or any(line[name] is None for name in columns) or not line[columns[0]]:
                raise PumaError(f"{path} line {number} has another number of cells than its head; mend that line.")
            yield line
    except (UnicodeDecodeError, csv.Error) as error:
        raise PumaError(f"{path} is not {what}: expected a CSV in UTF-8 ({error}).") from error


def write_class_map(chosen: Superclasses, counts: Mapping[str, int], path: str | Path) -> Path:
    """Write which class every id belongs to: a CSV with the columns wnid, class, class_name, images."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_MAP_COLUMNS)
    for part in chosen.classes:
        writer.writerows((wnid, part.wnid, part.name, counts[wnid]) for wnid in part.members)
    return write_text(path, text.getvalue())


@dataclass(frozen=True)
class ClassMap:
    """The class of every id that is kept, as a number, and the names of the classes."""

    labels: Mapping[str, int]
    class_names: tuple[str, ...]


def choose_here(
    root: str | Path, classes: int, *, ratio: float = POPULARITY_RATIO, published: bool | None = None
) -> tuple[Superclasses, ClassTree, str]:
    """Choose classes for a folder of tars or folders per id: by its own counts, or by those of ImageNet-21K.

    Unless told, the published counts are taken where at least half of the processed ImageNet-21K's ids are there, so
    that its classes do not depend on pictures that went missing. The third value says in words what was done.
    """
    counts = count_images(root)
    tree, known = read_published_tree()
    there = len(counts.keys() & known.keys())
    if published if published is not None else 2 * there >= len(known):
        chosen = choose_superclasses(tree, known, classes, ratio=ratio)
        return (
            chosen,
            tree,
            f"classes by the published counts of ImageNet-21K; {there:,} of its {len(known):,} ids are here",
        )
    tree, unknown = extend_tree(sorted(counts))
    alone = f"; {len(unknown)} not in the tree stand alone: {', '.join(unknown[:5])}" if unknown else ""
    chosen = choose_superclasses(tree, counts, classes, ratio=ratio)
    return chosen, tree, f"classes by the {sum(counts.values()):,} pictures of {len(counts):,} ids here{alone}"


def make_class_map(chosen: Superclasses) -> "ClassMap":
    """Return the class of every id of the superclasses."""
    labels = {wnid: label for label, part in enumerate(chosen.classes) for wnid in part.members}
    keys = [f"{part.wnid} {part.name}" for part in chosen.classes]
    return ClassMap(labels, _tell_apart([part.name for part in chosen.classes], keys))


def read_class_map(path: str | Path) -> ClassMap:
    """Read a class map: a file of `write_class_map`, or the shipped one by its name, imagenet21k-100."""
    shipped = str(path) == SHIPPED_MAP
    source = Path(str(files("puma.pools").joinpath(_MAP_FILE))) if shipped else Path(path)
    labels: dict[str, int] = {}
    numbers: dict[str, int] = {}
    names: list[str] = []
    for line in _read_csv(source, "a class map", _MAP_COLUMNS[:3]):
        key = f"{line['class']} {line['class_name']}"
        if key not in numbers:
            numbers[key] = len(names)
            names.append(line["class_name"])
        if labels.setdefault(line["wnid"], numbers[key]) != numbers[key]:
            raise PumaError(f"{path} puts {line['wnid']} into two classes; an id belongs to one.")
    if not labels:
        raise PumaError(f"{path} maps no id; expected a line per id.")
    return ClassMap(labels, _tell_apart(names, list(numbers)))


def _tell_apart(names: Sequence[str], keys: Sequence[str]) -> tuple[str, ...]:
    """Add the id where two classes have the same word."""
    doubled = {name for name in names if names.count(name) > 1}
    return tuple(f"{name} {key.split()[0]}" if name in doubled else name for name, key in zip(names, keys, strict=True))


def find_wnid(name: str) -> str | None:
    """Return the WordNet id that a file or folder is named by, if it is one (n01440764.tar, n01440764)."""
    found = _WNID.match(name)
    return found.group() if found and name[len(found.group()) :].split(".")[0] == "" else None


def count_images(root: str | Path) -> dict[str, int]:
    """Return how many pictures each id has: a tar or a folder per id, named by it."""
    counts: dict[str, int] = {}
    for place in sorted(Path(root).iterdir()) if Path(root).is_dir() else ():
        if (wnid := find_wnid(place.name)) is None:
            continue
        if wnid in counts:
            raise PumaError(f"{root} holds {wnid} both as a tar and as a folder; remove one of them.")
        counts[wnid] = sum(map(is_picture, _list_names(place)))
    if not counts:
        raise PumaError(f"{root} holds no tar or folder named by a WordNet id, such as n01440764.tar; check the path.")
    return counts


def _list_names(place: Path) -> Iterator[str]:
    if place.is_dir():
        yield from (entry.name for entry in os.scandir(place) if entry.is_file())
        return
    with open_regular(place, "a tar") as file:

        def read(offset: int, size: int) -> bytes:
            return read_at(file.fileno(), offset, size)

        size = os.fstat(file.fileno()).st_size
        yield from (member.name for member in iterate_members(read, place, end=size) if member.kind == "file")


def describe_superclasses(chosen: Superclasses, tree: ClassTree, *, most: int = 25) -> str:
    """Counts and the largest classes as lines of text, each with the categories above it."""
    first, last = chosen.classes[0], chosen.classes[-1]
    lines = [
        f"{len(chosen.classes)} classes of {sum(len(part.members) for part in chosen.classes):,} ids and "
        f"{chosen.images:,} images after {chosen.splits} splits; {chosen.dropped:,} images belong to none",
        f"largest {first.name} ({first.images:,}), smallest {last.name} ({last.images:,}): "
        f"{first.images / last.images:.2f}x",
    ]
    for part in islice(chosen.classes, most):
        above = " < ".join(tree.name_of(wnid) for wnid in tree.list_ancestors(part.wnid)[1:])
        lines.append(f"  {part.images:>9,}  {len(part.members):>5,} ids  {part.name}{' < ' * bool(above)}{above}")
    if len(chosen.classes) > most:
        lines.append(f"  ... {len(chosen.classes) - most} more")
    return "\n".join(lines)


def draw_superclasses(chosen: Superclasses, tree: ClassTree, path: Path) -> None:
    """Draw the classes as bars, in the order of the tree and in its indentation, one colour per top category."""
    with tell_missing("report"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    rows = list(_lay_out_tree(chosen, tree))
    figure = Figure(figsize=(9, 0.17 * len(rows) + 0.9), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    tops = list(dict.fromkeys(top for _, _, top, part in rows if part is not None))
    for height, (depth, name, top, part) in enumerate(rows):
        images = 0 if part is None else part.images
        colour = COLOURS[tops.index(top) % len(COLOURS)] if top in tops else "black"
        axes.barh(height, images, color=colour, height=0.75)
        text, weight = ("    " * depth + name.replace("_", " ")), ("normal" if part else "bold")
        axes.annotate(text, (0, height), (-_NAMES_WIDE, 0), axes.get_yaxis_transform(), "offset points", va="center",
                      fontsize=7, weight=weight)  # fmt: skip
        if part is not None:
            axes.text(images, height, f" {images:,}", va="center", fontsize=6, color="#555555")
    axes.set_ylim(len(rows) - 0.3, -0.7)
    axes.set_yticks([])
    axes.set_xlabel("images")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    with replace_atomically(path) as new:
        figure.savefig(new, format="png")


def _lay_out_tree(chosen: Superclasses, tree: ClassTree) -> Iterator[tuple[int, str, str, Superclass | None]]:
    """Yield depth, name, top category and class of every line: classes, and the categories above them."""
    by_path = sorted((tuple(reversed(tree.list_ancestors(part.wnid))), part) for part in chosen.classes)
    shown = set[tuple[str, ...]]()
    for path, part in by_path:
        for depth in range(1, len(path)):
            if path[:depth] not in shown:
                shown.add(path[:depth])
                yield depth - 1, tree.name_of(path[depth - 1]), path[0], None
        shown.add(path)
        yield len(path) - 1, part.name, path[0], part
