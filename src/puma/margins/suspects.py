"""Samples to look at for wrong labels: ranked by the margins of one or more nets, as a table that other tools read.

A negative margin says that a net disagrees with the label, and how firmly. One net mostly finds what it finds hard;
nets that were not trained on a sample, and several of them, tell more. ``docs/wrong-labels.md`` has figures.
"""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError, tell_missing
from puma.files import replace_atomically, write_text
from puma.margins.margins_file import Margins
from puma.pools import Pool

COLUMNS = (
    "filepath",
    "sample_id",
    "given_label",
    "predicted_label",
    "given_name",
    "predicted_name",
    "label_quality",
    "is_label_issue",
    "margin",
    "nets_against",
    "nets",
)


@dataclass(frozen=True, eq=False)
class Suspects:
    """Samples (k,) with the most doubtful label first.

    ``quality`` is 0 for the lowest margin of all samples and 1 for the highest, the mean over nets of the place in
    their order. ``margin`` is the median over nets, ``against`` how many nets predict another class than the label,
    ``prediction`` what most of them say. ``sample_id``, ``label`` and ``position`` are those of the pool.
    """

    sample_id: NDArray[np.int64]
    position: NDArray[np.int64]
    label: NDArray[np.int64]
    prediction: NDArray[np.int64]
    margin: NDArray[np.float64]
    quality: NDArray[np.float64]
    against: NDArray[np.int64]
    nets: int

    def __len__(self) -> int:
        return len(self.sample_id)


def rank_quality(margins: Sequence[NDArray[np.floating]]) -> NDArray[np.float64]:
    """Return how well labels fit (n,), from 0 to 1: the mean over nets of each sample's place in order of margin.

    Places, not distances, are averaged: nets of other training have margins of other size. Equal margins share a
    place; where a net has no margin (NaN) the others decide, and without any it is NaN.
    """
    places = np.full((len(margins), len(margins[0])), np.nan)
    for net, values in enumerate(margins):
        known = ~np.isnan(values)
        _, where, counts = np.unique(values[known], return_inverse=True, return_counts=True)
        middle = np.cumsum(counts) - (counts + 1) / 2
        places[net, known] = middle[where] / max(int(known.sum()) - 1, 1)
    told = (~np.isnan(places)).sum(axis=0)
    total = np.nansum(places, axis=0)
    mean: NDArray[np.float64] = np.divide(total, told, out=np.full(len(total), np.nan), where=told > 0)
    return mean


def find_suspects(margins: Sequence[Margins], pool: Pool, lowest: int = 0) -> Suspects:
    """Rank the samples of a pool by how badly their label fits; ``lowest`` keeps so many, 0 all.

    The margins must all be of this pool and of one norm; each file is one net's.
    """
    if not margins:
        raise PumaError("give at least one margins file.")
    if lowest < 0:
        raise PumaError(f"--lowest must be 0 (all) or more, got {lowest}.")
    _check_alike(margins, pool)
    orders = [_order_rows(table, pool) for table in margins]
    values = np.stack([table.margin.numpy()[order] for table, order in zip(margins, orders, strict=True)])
    predictions = np.stack([table.prediction.numpy()[order] for table, order in zip(margins, orders, strict=True)])
    quality = rank_quality(list(values.astype(np.float64)))
    rows = np.argsort(np.where(np.isnan(quality), np.inf, quality), kind="stable")
    rows = rows[: lowest or None]
    labels = pool.labels[rows]
    known = ~np.isnan(values[:, rows])
    middle = [np.median(column[told]) if told.any() else np.nan
              for column, told in zip(values[:, rows].T, known.T, strict=True)]  # fmt: skip
    return Suspects(
        sample_id=pool.sample_id[rows],
        position=rows,
        label=labels,
        prediction=_choose_most(predictions[:, rows], labels),
        margin=np.array(middle, dtype=np.float64),
        quality=quality[rows],
        against=(predictions[:, rows] != labels).sum(axis=0),
        nets=len(margins),
    )


def _check_alike(margins: Sequence[Margins], pool: Pool) -> None:
    norms = sorted({str(table.made_from.get("norm")) for table in margins})
    if len(norms) > 1:
        raise PumaError(f"margins in different norms cannot be ranked together: {', '.join(norms)}; give those of one.")
    for table in margins:
        of = str(table.made_from.get("pool_fingerprint") or "")
        if of != pool.fingerprint:
            raise PumaError(
                f"these margins are of another pool: measured on {of[:12] or 'images in memory'}, --pool is "
                f"{pool.fingerprint[:12]}; give the pools that were measured, in the same order."
            )


def _order_rows(table: Margins, pool: Pool) -> NDArray[np.int64]:
    ids = table.sample_id.numpy()
    order = np.argsort(ids, kind="stable")
    if len(ids) != len(pool) or not np.array_equal(ids[order], np.sort(pool.sample_id)):
        raise PumaError(f"the margins are of {len(ids):,} samples, the pool has {len(pool):,}; measure the whole pool.")
    return order[np.searchsorted(ids[order], pool.sample_id)]


def _choose_most(predictions: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return what most nets predict (k,); among equals the class that is not the label, then the smallest."""
    chosen = []
    for column, label in zip(predictions.T, labels, strict=True):
        names, counts = np.unique(column, return_counts=True)
        best = names[counts == counts.max()]
        others = best[best != label]
        chosen.append(int((others if len(others) else best)[0]))
    return np.array(chosen, dtype=np.int64)


def write_suspects(path: str | Path, suspects: Suspects, pool: Pool, pictures: str | Path | None = None) -> Path:
    """Write suspects as CSV, whole or not at all; with ``pictures`` their images too, as PNG files of their ids.

    ``filepath`` is empty for images that are no files of their own. The columns ``given_label``, ``predicted_label``,
    ``label_quality`` and ``is_label_issue`` are those of cleanlab, ``filepath`` is FiftyOne's.
    """
    path, header = Path(path), ",".join(COLUMNS)
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            if file.read(len(header)) != header:
                raise PumaError(f"{path} is a file of another kind; it is not replaced, choose another --out.")
    places = _name_files(suspects, pool) if pictures is None else _draw_files(suspects, pool, Path(pictures))
    names = pool.class_names
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for row, place in enumerate(places):
        label, prediction = int(suspects.label[row]), int(suspects.prediction[row])
        said = names[prediction] if 0 <= prediction < len(names) else str(prediction)
        against = int(suspects.against[row])
        table.writerow(
            [
                place,
                int(suspects.sample_id[row]),
                label,
                prediction,
                names[label],
                said,
                f"{suspects.quality[row]:.6f}",
                2 * against > suspects.nets,
                f"{suspects.margin[row]:.7g}",
                against,
                suspects.nets,
            ]
        )
    return write_text(path, text.getvalue())


def _name_files(suspects: Suspects, pool: Pool) -> list[str]:
    return [str(place or "") for place in pool.find_files(suspects.position)]


def _draw_files(suspects: Suspects, pool: Pool, folder: Path) -> list[str]:
    """Write the images as PNG and return their paths; an image that is a file of its own keeps that path."""
    with tell_missing("report"):
        from PIL import Image
    if folder.exists() and not folder.is_dir():
        raise PumaError(f"--pictures {folder} is a file; name a folder.")
    found = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    if others := [name for name in found if not re.fullmatch(r"-?\d+\.png", name)]:
        raise PumaError(f"--pictures {folder} holds other things than samples ({others[0]}); name another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    places = []
    for row, known in zip(suspects.position, _name_files(suspects, pool), strict=True):
        if known:
            places.append(known)
            continue
        path = folder / f"{int(pool.sample_id[row])}.png"
        pixels = pool.batch([int(row)]).images[0].permute(1, 2, 0).numpy()
        with replace_atomically(path) as partial:
            Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(partial, "png")
        places.append(str(path.resolve()))
    return places
