"""Margins and their file: what a measurement returns, and the only reader and writer of ``margins.parquet``."""

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from puma.attacks import NORMS
from puma.errors import PumaError
from puma.files import LINKS_KEY, Link, read_links, write_links
from puma.margins.search.engine import Status
from puma.tables import TableHead, read_columns, read_head, write_table

FORMAT = "puma-margins-1"
_WHAT = "a parquet file written by puma margins"
_SETTING = "config."  # begins the names of a method's settings
_COLUMNS: dict[str, pa.DataType] = {
    "sample_id": pa.int64(),
    "margin": pa.float32(),
    "status": pa.int8(),
    "label": pa.int32(),
    "prediction": pa.int32(),
    "rival": pa.int32(),
    "forwards": pa.int32(),
    "backwards": pa.int32(),
}
_OPTIONAL: dict[str, pa.DataType] = {"half_width": pa.float32()}  # only where margins were predicted
_LATER = ("label", "forwards", "backwards")  # files of older versions lack them: -1 says unknown
_TENSORS = {
    "margin": torch.float32,
    "half_width": torch.float32,
    "status": torch.int8,
    "forwards": torch.int32,
    "backwards": torch.int32,
}


@dataclass(frozen=True, eq=False, repr=False)
class Margins:
    """Signed margins of n samples, in pixel units: what ``measure_margins`` and ``measure_pool`` give.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
        >>> margins = puma.measure_margins(model, torch.rand(6, 1, 4, 4), [0, 1, 2, 0, 1, 2])
        >>> margins
        Margins(6 samples, deepfool, linf: 100.0% crossed, ...
        >>> margins.margin.shape, margins.status.shape, margins.prediction.shape, margins.rival.shape
        (torch.Size([6]), torch.Size([6]), torch.Size([6]), torch.Size([6]))
        >>> path = margins.save("margins.parquet")  # for pandas, polars and duckdb too; to_pandas() is the short way

    Positive: distance to leaving the label. Negative: minus the distance to reaching it. A value is measured only
    where ``status`` is CROSSED; it is infinite (with the sign) for NOT_CROSSED and OUT_OF_STEPS, plus or minus the cap
    for CAPPED, and NaN for ZERO_GRADIENT and NON_FINITE. Where it is PREDICTED, the margin lies
    within ``half_width`` of it with the probability that ``made_from["prediction"]`` tells.
    """

    margin: Tensor  # (n,) float32
    status: Tensor  # (n,) int8, values of Status
    label: Tensor  # (n,) int64, -1 where unknown
    prediction: Tensor  # (n,) int64
    rival: Tensor  # (n,) int64: the class on the other side (right sample), or the last to be overtaken (wrong one)
    forwards: Tensor  # (n,) int32: passes through the model, -1 where unknown
    backwards: Tensor  # (n,) int32
    sample_id: Tensor  # (n,) int64: ids of the pool, else positions
    made_from: Mapping[str, Any] = field(default_factory=dict)  # settings and fingerprints, as in the file's footer
    boundary: Tensor | None = None  # the image just beyond the boundary; the sample itself where none was found
    half_width: Tensor | None = None  # (n,) float32, 0 where measured; None where nothing was predicted

    def __len__(self) -> int:
        return len(self.margin)

    def __repr__(self) -> str:
        how = f"{self.made_from.get('method', 'unknown method')}, {self.made_from.get('norm', 'unknown norm')}"
        if not len(self):
            return f"Margins(0 samples, {how})"
        found = self.margin[self.known]
        median = f", median {float(found.median()):.4g}" if len(found) else ""
        crossed, wrong = float(self.crossed.float().mean()), float((self.margin < 0).float().mean())
        guessed = int((self.status == Status.PREDICTED).sum())
        predicted = f", {guessed / len(self):.1%} predicted" if guessed else ""
        return f"Margins({len(self):,} samples, {how}: {crossed:.1%} crossed{predicted}, {wrong:.1%} wrong{median})"

    @property
    def crossed(self) -> Tensor:
        """Was the boundary found (n,)."""
        return self.status == Status.CROSSED

    @property
    def known(self) -> Tensor:
        """Is there a finite margin (n,), measured or predicted."""
        return (self.status == Status.CROSSED) | (self.status == Status.PREDICTED)

    @property
    def links(self) -> tuple[Link, ...] | None:
        """The pool and the model they were made from; None where an old file does not tell."""
        return read_links(self.made_from)

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row per sample; the status by its name."""
        try:
            import pandas  # type: ignore[import-untyped,unused-ignore]
        except ImportError as error:
            raise PumaError("to_pandas needs pandas, which is not installed: pip install pandas.") from error
        columns = {name: getattr(self, name).numpy(force=True) for name in _list_columns(self)}
        names = [status.name for status in Status]
        return pandas.DataFrame(columns | {"status": pandas.Categorical.from_codes(columns["status"], names)})

    def save(self, path: str | Path) -> Path:
        """Write ``margins.parquet``, whole or not at all; a file of another kind in its place raises."""
        path = Path(path)
        if not _is_complete(self.made_from):
            raise PumaError("made_from must tell method and norm, such as {'method': 'deepfool', 'norm': 'linf'}.")
        if path.exists():
            read_margins_footer(path)
        made_from = {"format": FORMAT, **self.made_from}
        return write_margins(path, [self], made_from, predicted=self.half_width is not None)


@dataclass(frozen=True)
class MarginProvenance:
    """Everything that a margin depends on. Equal ones give equal files, bit for bit on the same machine."""

    pool: str
    pool_size: int
    model: str
    method: str
    config: Mapping[str, Any]
    norm: str
    cap: float | None
    batch_size: int
    part_size: int
    precision: str

    def describe(self, pool_path: str = "", model_path: str = "") -> dict[str, Any]:
        """Return what the footer of a margins file says; paths are hints for who looks for pool and model."""
        links = (Link("pool", "pool", self.pool, pool_path), Link("model", "model", self.model, model_path))
        return {
            "format": FORMAT,
            **dataclasses.asdict(self),
            "pool_fingerprint": self.pool,
            "versions": {"puma": version("puma-pruning"), "torch": torch.__version__},
            LINKS_KEY: write_links(links),
        }

    def tell_differences(self, described: Mapping[str, Any]) -> list[str]:
        """Say in words how a footer differs from this."""
        ours = _spread_settings(json.loads(json.dumps(dataclasses.asdict(self))))
        theirs = _spread_settings(described)
        keys = dict.fromkeys([*ours, *(key for key in theirs if key.startswith(_SETTING))])
        if ours["method"] != theirs.get("method"):  # the settings of two methods have little in common
            keys = {key: None for key in keys if not key.startswith(_SETTING)}
        names = {"model": "model weights"}
        return [
            f"{names.get(key, key.removeprefix(_SETTING))} was {_shorten(was)}, now {_shorten(now)}"
            for key in keys
            if (was := theirs.get(key)) != (now := ours.get(key))
        ]


def _spread_settings(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is described with the settings of the method one by one: what differs can be told by its name."""
    plain = dict(described)
    settings = plain.pop("config", None)
    return plain | (
        {f"{_SETTING}{key}": value for key, value in settings.items()} if isinstance(settings, dict) else {}
    )


def _shorten(value: object) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}..."


def read_margins(path: str | Path) -> Margins:
    """Read a margins file, every checksum verified; one of an older version lacks labels and counts of passes.

    Examples:
        >>> pool = puma.Pool.from_tensors(torch.rand(6, 1, 4, 4), [0, 1, 2, 0, 1, 2])
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
        >>> written = puma.measure_pool(model, pool, out="margins.parquet")
        >>> torch.equal(puma.read_margins("margins.parquet").margin, written.margin)
        True
    """
    described = read_margins_footer(path)
    there = read_head(path, _WHAT).columns
    if described.pop("columns", list(there)) != list(there):  # names in a schema have no checksum: they are told twice
        raise PumaError(f"{path} is damaged: its columns are not those that its footer tells; measure it again.")
    wanted = {name: kind for name, kind in _COLUMNS.items() if name in there or name not in _LATER}
    wanted |= {name: kind for name, kind in _OPTIONAL.items() if name in there}
    arrays = read_columns(path, wanted, _WHAT)
    count = len(arrays["sample_id"])
    columns = {
        name: torch.from_numpy(arrays[name]).to(_TENSORS.get(name, torch.int64))
        if name in arrays
        else torch.full((count,), -1, dtype=_TENSORS.get(name, torch.int64))
        for name in {**_COLUMNS, **wanted}
    }
    if count and not 0 <= int(columns["status"].min()) <= int(columns["status"].max()) <= max(Status):
        raise PumaError(f"{path} is damaged: status must be 0..{max(Status):d}; measure the margins again.")
    if len(np.unique(arrays["sample_id"])) != count:
        raise PumaError(f"{path} is damaged: some samples are in it more than once; measure the margins again.")
    return Margins(**columns, made_from=described)


def is_margins(head: TableHead) -> bool:
    """Tell whether a table is one of margins."""
    return head.footer.get("format") == FORMAT


def read_margin_values(path: str | Path) -> tuple[NDArray[np.float32], NDArray[np.int8], dict[str, Any]]:
    """Return margins, statuses and footer of a file alone: five bytes a sample, where whole margins take sixty."""
    described = read_margins_footer(path)
    found = read_columns(path, {name: _COLUMNS[name] for name in ("margin", "status")}, _WHAT)
    return found["margin"], found["status"], described


def read_margins_footer(path: str | Path) -> dict[str, Any]:
    """Return what a margins file was made from; a file of another kind, or one cut short, raises."""
    if not os.path.lexists(path):
        raise PumaError(f"no margins at {path}: expected {_WHAT}.")
    head = read_head(path, _WHAT)
    described = dict(head.footer)
    if not is_margins(head):
        hint = (
            "it is a plan: puma plan show"
            if {"keep", "strength"} <= set(head.columns)
            else f"no {FORMAT!r} in its footer"
        )
        raise PumaError(f"{path} is not a margins file of this version ({hint}).")
    if not _is_complete(described):
        raise PumaError(f"{path} is damaged: its footer does not tell method and norm; measure the margins again.")
    return described


def _is_complete(described: Mapping[str, Any]) -> bool:
    """Tell whether method and norm are there, without which margins cannot be told apart."""
    return isinstance(described.get("method"), str) and described.get("norm") in NORMS


def write_margins(
    path: str | Path, parts: Iterable[Margins], described: Mapping[str, Any], *, predicted: bool = False
) -> Path:
    """Write margins as row groups of one file that appears under its name only when it is complete on disk."""
    kinds = _COLUMNS | _OPTIONAL if predicted else _COLUMNS
    schema = pa.schema(list(kinds.items()))

    def to_arrow(margins: Margins) -> pa.Table:
        columns = [pa.array(getattr(margins, name).numpy(force=True), kind) for name, kind in kinds.items()]
        return pa.Table.from_arrays(columns, schema=schema)

    return write_table(path, schema, map(to_arrow, parts), {**described, "columns": list(kinds)})


def join_margins(parts: list[Margins], described: Mapping[str, Any]) -> Margins:
    """Put margins behind each other."""
    columns = {name: torch.cat([getattr(part, name) for part in parts]) for name in _list_columns(parts[0])}
    return Margins(**columns, made_from=described)


def _list_columns(margins: Margins) -> list[str]:
    return [*_COLUMNS, *(name for name in _OPTIONAL if getattr(margins, name) is not None)]


__all__ = [
    "FORMAT",
    "MarginProvenance",
    "Margins",
    "is_margins",
    "join_margins",
    "read_margin_values",
    "read_margins",
    "read_margins_footer",
    "write_margins",
]
