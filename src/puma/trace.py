"""From a result back to its pools and models: follow the links that files carry, and say which of them hold."""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import Literal

import torch

from puma.errors import PumaError
from puma.evaluation import is_evaluation, read_evaluation
from puma.files import UNKNOWN_HASH, Link, hash_file, read_links
from puma.generation import GeneratorFolder, load_generator
from puma.margins import is_margins
from puma.models import ARCHITECTURES, build, fingerprint_model, load_weights
from puma.planning import is_plan
from puma.pools import Pool, is_pool, open_pools, read_pool_links
from puma.tables import read_head
from puma.training import RunFolder, load_model

State = Literal["given", "ok", "moved", "changed", "missing", "unknown", "not checked"]
Links = tuple[Link, ...] | None

_DIGITS = 12  # of a hash: enough to tell files apart by eye
_LEVELS = 3  # folders upwards from a file in which what it names is looked for
_TAIL = 3  # parts of a recorded path that are looked for there
_COMBINATIONS = 64  # places of several pools that are tried together
_USERS_CODE = "it is code of the user's"
_NO_PLACE = "it is not told where it lay"


@dataclass(frozen=True)
class TracedItem:
    """A file or folder, how its link holds, and what it was made from.

    Attributes:
        role: what it was to the thing above it; "" for the thing that was asked for.
        kind: such as pool, model or margins.
        path: where it was found, or else where it lay when the link was made; "" where nobody tells.
        hash: as the link tells; "" where it does not.
        state: ``changed`` and ``missing`` are broken links.
        reason: why it was not checked or cannot be read.
        made_from: its own links, traced; empty where it stands in the tree already.
    """

    role: str
    kind: str
    path: str
    hash: str
    state: State
    reason: str = ""
    made_from: tuple["TracedItem", ...] = ()

    @property
    def is_broken(self) -> bool:
        """Whether this link, not one below it, is broken."""
        return self.state in ("changed", "missing")

    def list_items(self) -> Iterator["TracedItem"]:
        """Yield this and all that it was made from, from the top down."""
        yield self
        for item in self.made_from:
            yield from item.list_items()


def trace_file(path: str | Path) -> TracedItem:
    """Follow a pool, margins, scores, a plan, a run, a generator or an evaluation back to all it was made from."""
    place = Path(path)
    kind, links = read_kind_and_links(place)
    return TracedItem("", kind, str(place), UNKNOWN_HASH, "given", made_from=_LinkWalk().follow(place, kind, links))


def format_trace(item: TracedItem) -> str:
    """Return the tree, a line for each item, and a last line that says whether all links hold."""
    lines = list(_format_lines(item, 0))
    items = list(item.list_items())[1:]
    broken = list(dict.fromkeys(_describe_broken(part) for part in items if part.is_broken))
    states = [part.state for part in items]
    held = states.count("ok") + states.count("moved")
    unsure = states.count("unknown") + states.count("not checked")
    rest = f", {unsure} cannot be checked" if unsure else ""
    lines.append(f"broken: {'; '.join(broken)}" if broken else f"no link is broken: {held} hold{rest}")
    return "\n".join(lines)


def _describe_broken(item: TracedItem) -> str:
    return _make_printable(f"{item.role} {item.path} ({_describe_state(item)})")


def _format_lines(item: TracedItem, depth: int) -> Iterator[str]:
    if item.state == "given":
        words = [item.kind, item.path]
    else:
        kind = "" if item.kind == item.role else f"({item.kind})"
        words = [item.role, kind, item.path, item.hash[:_DIGITS], _describe_state(item)]
    yield "  " * depth + _make_printable("  ".join(word for word in words if word))
    for part in item.made_from:
        yield from _format_lines(part, depth + 1)


def _describe_state(item: TracedItem) -> str:
    words = {"moved": f"moved to {item.path}", "changed": "CHANGED since", "missing": "MISSING"}
    return words.get(item.state, item.state) + (f": {item.reason}" if item.reason else "")


def _make_printable(text: str) -> str:
    """Names come from files: what would steer a terminal, or cannot be encoded, becomes a question mark."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def read_kind_and_links(path: Path) -> tuple[str, Links]:
    """Return what kind of thing lies at a path, and its links; None where an older file does not tell."""
    if path.is_dir():
        return _read_folder(path)
    if not path.is_file():
        raise PumaError(f"no file or folder at {path}: expected a pool, run, margins, scores, plan or evaluation.")
    if path.suffix == ".json":
        return "evaluation", read_links(read_evaluation(path).more)
    head = read_head(path, "margins, scores or a plan")
    if is_margins(head):
        return "margins", read_links(head.footer)
    if is_plan(head):
        return "plan", read_links(head.footer)
    if "pool_fingerprint" in head.footer:
        return "scores", read_links(head.footer)
    raise PumaError(f"{path} is a table of another kind: expected margins, scores or a plan of puma.")


def _read_folder(path: Path) -> tuple[str, Links]:
    if is_pool(path):
        return "pool", read_pool_links(path)
    if RunFolder(path).is_run():
        return "run", RunFolder(path).read()[1].links
    if GeneratorFolder(path).has_config:
        return "generator", tuple(GeneratorFolder(path).read()[1].links)
    if is_evaluation(path):
        return "evaluation", read_links(read_evaluation(path).more)
    raise PumaError(f"{path} holds no pool, run, generator or evaluation; name the folder or the file itself.")


class _LinkWalk:
    """One walk along links: what was read or hashed once is not read again, and what stands in the tree is not told
    twice, so that cycles end."""

    def __init__(self) -> None:
        self.told: set[Path] = set()
        self.known: dict[tuple[str, str], TracedItem] = {}
        self.hashes: dict[tuple[str, ...], str | None] = {}

    def follow(self, place: Path, kind: str, links: Links) -> tuple[TracedItem, ...]:
        """Trace everything that the thing at ``place`` was made from."""
        place = place.absolute()
        self.told.add(place.resolve())
        if links is None:  # an imported pool was made from nothing of ours
            return () if kind == "pool" else (TracedItem("made from", "?", "", UNKNOWN_HASH, "unknown"),)
        base = place if place.is_dir() else place.parent
        siblings = _Siblings.find(links, base)
        items = [self._trace_link(link, base, siblings) for link in links]
        return tuple(self._find_elsewhere(item) for item in items)

    def _trace_link(self, link: Link, base: Path, siblings: "_Siblings") -> TracedItem:
        item = TracedItem(link.role, link.kind, link.path, link.hash, "unknown")
        if not link.path:
            return item if link.hash == UNKNOWN_HASH else replace(item, state="not checked", reason=_NO_PLACE)
        is_name = link.kind == "model" and (":" in link.path or link.path in ARCHITECTURES)
        if is_name and not _lies_as_recorded(link, base):
            return self._check_named_model(item, siblings)
        choices = [list(_find_places(link.kind, part, base)) for part in _split_paths(link, base)]
        tried = list(islice(product(*choices), _COMBINATIONS))
        if not tried:
            return replace(item, state="missing") if link.hash != UNKNOWN_HASH else item
        for places in tried:
            try:
                found = self._hash_places(link.kind, places, siblings)
            except _NotCheckedError as reason:
                checked = replace(item, path=_join_paths(places), state="not checked", reason=str(reason))
                return self._remember(checked, places)
            if found == link.hash:
                moved = not all(map(_is_recorded, places, _split_paths(link, base)))
                checked = replace(item, path=_join_paths(places), state="moved" if moved else "ok")
                return self._remember(checked, places)
        state: State = "unknown" if link.hash == UNKNOWN_HASH else "changed"
        return self._remember(replace(item, path=_join_paths(tried[0]), state=state), tried[0])

    def _remember(self, item: TracedItem, places: Sequence[Path]) -> TracedItem:
        """Add what an item was made from, unless the tree tells it already."""
        parts: tuple[TracedItem, ...] = ()
        for place in places:
            if place.resolve() in self.told or item.kind == "weights" or (item.kind == "model" and place.is_file()):
                continue
            try:
                kind, links = read_kind_and_links(place)
            except PumaError as error:
                parts += (TracedItem("made from", "?", "", UNKNOWN_HASH, "unknown", str(error)),)
                continue
            parts += self.follow(place, kind, links)
        item = replace(item, made_from=parts)
        self.known.setdefault((item.kind, item.hash), item)
        return item

    def _find_elsewhere(self, item: TracedItem) -> TracedItem:
        """A link without a place may be one that something else in the tree gives a place to."""
        known = self.known.get((item.kind, item.hash))
        if item.path or item.hash == UNKNOWN_HASH or known is None or known.is_broken:
            return item
        return replace(known, role=item.role, made_from=())

    def _hash_places(self, kind: str, places: tuple[Path, ...], siblings: "_Siblings") -> str | None:
        """Return the hash of what lies there now; None for what is damaged."""
        key = (kind, *map(str, places), str(siblings) if kind == "model" else "")
        if key not in self.hashes:
            try:
                self.hashes[key] = _compute_hash(kind, places, siblings)
            except PumaError:
                self.hashes[key] = None
        return self.hashes[key]

    def _check_named_model(self, item: TracedItem, siblings: "_Siblings") -> TracedItem:
        """Check a model that is named, not a place: a built-in net with its weights."""
        if item.path not in ARCHITECTURES:
            return replace(item, state="not checked", reason=_USERS_CODE)
        if siblings.pool is None or siblings.weights is None:
            lacking = "pool" if siblings.pool is None else "weights"
            return replace(item, state="not checked", reason=f"its {lacking} cannot be found")
        try:
            held = _fingerprint_net(item.path, siblings.weights, siblings.pool) == item.hash
        except PumaError:
            held = False
        return replace(item, state="ok" if held else "changed")


class _NotCheckedError(Exception):
    """Why something that was found cannot be compared."""


@dataclass(frozen=True)
class _Siblings:
    """What the links beside a model's tell about it: the images it is for, and its weights."""

    pool: Pool | None
    weights: Path | None

    @classmethod
    def find(cls, links: tuple[Link, ...], base: Path) -> "_Siblings":
        pool, weights = None, None
        if is_pool(base) and not any(link.kind == "pool" for link in links):  # what guided its making takes its images
            with suppress(PumaError):
                pool = Pool.open(base)
        for link in links:
            if link.kind == "pool" and pool is None and link.path:
                places = [next(_find_places("pool", part, base), None) for part in _split_paths(link, base)]
                with suppress(PumaError):
                    pool = open_pools([place for place in places if place is not None])
            if link.kind == "weights" and weights is None and link.path:
                weights = next(_find_places("weights", link.path, base), None)
        return cls(pool, weights)

    def __str__(self) -> str:
        return f"{self.pool.fingerprint if self.pool else ''} {self.weights}"


def _compute_hash(kind: str, places: tuple[Path, ...], siblings: _Siblings) -> str:
    if kind == "pool":
        pool = open_pools(places)
        for store in pool.stores:
            store.verify()
        return pool.fingerprint
    (place,) = places
    if kind == "generator":
        return load_generator(place).fingerprint
    if kind == "model":
        return _hash_model(place, siblings)
    return hash_file(RunFolder(place).model if kind == "run" else place)


def _hash_model(place: Path, siblings: _Siblings) -> str:
    """Return the fingerprint of a run's model, or of weights of a built-in net; a user's code is never run."""
    if siblings.pool is None:
        raise _NotCheckedError("its pool cannot be found")
    if place.is_dir():
        if RunFolder(place).read_net()[0] not in ARCHITECTURES:
            raise _NotCheckedError(_USERS_CODE)
        model = load_model(place, weights=siblings.weights)
        return fingerprint_model(model, siblings.pool.image_shape)
    for name in ARCHITECTURES:
        with suppress(PumaError), warnings.catch_warnings(), torch.device("meta"):  # shapes alone
            warnings.simplefilter("ignore")
            load_weights(build(name, siblings.pool.num_classes, channels=siblings.pool.image_shape[2]), place)
            break
    else:
        raise _NotCheckedError(_USERS_CODE)
    return _fingerprint_net(name, place, siblings.pool)


def _fingerprint_net(name: str, weights: Path, pool: Pool) -> str:
    model = build(name, pool.num_classes, channels=pool.image_shape[2])
    return fingerprint_model(load_weights(model, weights).eval(), pool.image_shape)


def _split_paths(link: Link, base: Path) -> list[str]:
    """Return the folders of a link to several pools, which are joined by one sign or the other."""
    if link.kind == "pool" and not _lies_as_recorded(link, base):
        for sign in (" + ", os.pathsep):
            if sign in link.path:
                return link.path.split(sign)
    return [link.path]


def _lies_as_recorded(link: Link, base: Path) -> bool:
    with suppress(OSError, ValueError):
        return _is_there(link.kind, Path(link.path)) or _is_there(link.kind, base / link.path)
    return False


def _join_paths(places: Sequence[Path]) -> str:
    return " + ".join(map(str, places))


def _find_places(kind: str, recorded: str, base: Path) -> Iterator[Path]:
    """Yield where a thing may lie now: as recorded, from the folder that names it, and under its name around there."""
    path = Path(recorded)
    tails = [Path(*path.parts[-count:]) for count in range(1, _TAIL + 1) if len(path.parts) >= count]
    around = [up / tail for up in (base, *base.parents[:_LEVELS]) for tail in tails]
    above = [base.parent] if kind == "model" else []  # an evaluation lies within its run, whatever that is called now
    seen = set[Path]()
    for place in (path, base / path, *around, *above):
        with suppress(OSError, ValueError):  # a name that no system takes, a folder that may not be read
            resolved = place.resolve()
            if resolved not in seen and _is_there(kind, resolved):
                seen.add(resolved)
                yield resolved


def _is_there(kind: str, place: Path) -> bool:
    if kind == "pool":
        return is_pool(place)
    if kind == "run" or (kind == "model" and place.is_dir()):
        return RunFolder(place).is_run() and RunFolder(place).model.is_file()
    if kind == "generator":
        return GeneratorFolder(place).has_config
    return place.is_file()


def _is_recorded(place: Path, recorded: str) -> bool:
    """Tell whether a place is the one that was recorded, as far as a relative path can tell."""
    path = Path(recorded)
    if path.is_absolute():
        return place.resolve() == path.resolve()
    return place.resolve() == path.resolve() or place.parts[-len(path.parts) :] == path.parts
