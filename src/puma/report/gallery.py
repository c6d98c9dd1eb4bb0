"""The gallery: which samples it shows, their pictures as sprite sheets, their numbers as columns."""

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError, tell_missing
from puma.margins import Status
from puma.pools import Pool
from puma.progress import progress_bar
from puma.report.samples import SampleTable, read_rule
from puma.report.svg import printable_text

LEAST = 16  # samples: fewer cannot hold one of each kind
_SHARE = 8  # each group may take an eighth of what is shown


@dataclass(frozen=True, eq=False)
class GallerySelection:
    """Rows to show (k,), ascending by margin, and for each group the places among them, the most telling first."""

    rows: NDArray[np.int64]
    groups: dict[str, NDArray[np.int64]]


def select_samples(
    margin: NDArray[np.float32], most: int, *, eps: float | None, thresholds: Mapping[str, float], seed: int = 0
) -> GallerySelection:
    """Choose at most ``most`` rows: the extremes, those nearest to 0, eps and thresholds, the rest at random.

    Samples whose boundary was not found (margin infinite or NaN) are a group of their own. With room for all, all are
    shown.
    """
    if most < LEAST:
        raise PumaError(f"--max-samples must be at least {LEAST}, got {most}.")
    share = min(most, len(margin)) // _SHARE or 1
    known = np.flatnonzero(np.isfinite(margin))
    ascending = known[np.argsort(margin[known], kind="stable")]
    members = {"lowest": ascending[margin[ascending] < 0][:share]}
    for name, target in {"zero": 0.0, "eps": eps, **thresholds}.items():
        if target is not None and np.isfinite(target):
            members[name] = known[np.argsort(np.abs(margin[known] - target), kind="stable")[:share]]
    members["highest"] = ascending[::-1][:share]
    members["failed"] = np.flatnonzero(~np.isfinite(margin))[:share]
    taken = np.unique(np.concatenate(list(members.values())))
    others = np.setdiff1d(np.arange(len(margin)), taken, assume_unique=True)
    room = max(most - len(taken), 0)
    members["random"] = (
        others if len(others) <= room else np.random.default_rng(seed).choice(others, room, replace=False)
    )
    rows = np.concatenate([taken, members["random"]])
    rows = rows[np.argsort(margin[rows], kind="stable")]
    place = np.full(len(margin), -1)
    place[rows] = np.arange(len(rows))
    return GallerySelection(rows, {name: place[ids] for name, ids in members.items() if len(ids)})


COLUMNS, PER_SHEET = 32, 512  # of the sheets that the images lie on
EXACT, LARGEST = 32, 64  # pixels: up to EXACT pictures stay as they are, larger ones are scaled down to LARGEST
GROUPS = {
    "lowest": (
        "Most negative margins",
        "Wrong by far{first}: look for wrong labels here first, though most are only hard for this net.",
    ),
    "zero": ("Around 0", "On the boundary: right or wrong by a hair."),
    "eps": ("Around eps", "The attack at full strength just reaches the boundary, or just does not."),
    "easy": ("Around the easy threshold", "Where pruning begins: what is higher goes."),
    "difficult": ("Around the difficult threshold", "Where pruning begins: what is lower goes."),
    "highest": ("Highest margins", "The easiest samples{first}."),
    "failed": ("No boundary found", "The search failed or went out of reach: there is no margin to go by."),
    "random": ("The others", "Drawn at random where not all are shown."),
}

CHOSEN = {
    "lowest": "those with the lowest margins",
    "zero": "those nearest to 0",
    "eps": "those nearest to eps",
    "easy": "those nearest to the threshold for easy samples",
    "difficult": "those nearest to the threshold for difficult samples",
    "highest": "those with the highest margins",
    "failed": "those without a boundary",
}


@dataclass(frozen=True)
class SpriteSheet:
    """A picture of up to 512 tiles, 32 a row."""

    uri: str


def draw_sheets(pool: Pool, positions: NDArray[np.int64], *, show: bool = False) -> list[SpriteSheet]:
    """Draw the pool's images at these positions side by side, in this order."""
    height, width = tile_size(pool)
    drawn = []
    with progress_bar("report: pictures", len(positions), unit="images", enabled=show) as advance:
        for start in range(0, len(positions), PER_SHEET):
            part = positions[start : start + PER_SHEET]
            pixels = pool.batch(part).images.permute(0, 2, 3, 1).numpy()
            rows = -(-len(part) // COLUMNS)
            sheet = np.zeros((rows * height, COLUMNS * width, pixels.shape[-1]), dtype=np.uint8)
            for index, image in enumerate(pixels):
                y, x = height * (index // COLUMNS), width * (index % COLUMNS)
                sheet[y : y + height, x : x + width] = scale_image(image, height, width)
            drawn.append(SpriteSheet(_encode_sheet(sheet, exact=(height, width) == pool.image_shape[:2])))
            advance(len(part))
    return drawn


def tile_size(pool: Pool) -> tuple[int, int]:
    """Height and width of a tile."""
    height, width, _ = pool.image_shape
    if max(height, width) <= EXACT:
        return height, width
    scale = min(1.0, LARGEST / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def scale_image(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Return the image at this size; at its own it stays as it is."""
    if image.shape[:2] == (height, width):
        return image
    with tell_missing("report"):
        from PIL import Image
    picture = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
    return np.asarray(picture.resize((width, height), Image.Resampling.BOX)).reshape(height, width, image.shape[-1])


def _encode_sheet(sheet: NDArray[np.uint8], *, exact: bool) -> str:
    """Encode a sheet: PNG keeps every pixel; pictures that were large anyway go as JPEG, a tenth of the size."""
    with tell_missing("report"):
        from PIL import Image
    picture = Image.fromarray(sheet.squeeze(-1) if sheet.shape[-1] == 1 else sheet)
    lossless = exact and sheet.shape[1] // COLUMNS <= EXACT
    kind, options = ("png", {"optimize": False, "compress_level": 6}) if lossless else ("jpeg", {"quality": 88})
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def list_columns(samples: SampleTable, choice: GallerySelection) -> dict[str, Any]:
    """Return what the page's script needs, as plain values; what is not known or not finite is null."""
    rows, table = choice.rows, samples.table
    assert table is not None  # there is no gallery without margins
    labels = samples.labels
    origin = None if samples.pool is None else samples.pool.origin[samples.position]
    return {
        "classes": [printable_text(name) for name in samples.class_names],
        "statuses": [status.name.lower().replace("_", " ") for status in Status],
        "groups": {name: [*describe_group(samples, name), places.tolist()] for name, places in choice.groups.items()},
        "planned": samples.plan is not None,
        "norm": samples.norm,
        "id": _list_ids(table.sample_id.numpy()[rows]),
        "margin": _list_plain(table.margin.numpy()[rows]),
        "sign": np.sign(np.nan_to_num(table.margin.numpy()[rows])).astype(int).tolist(),
        "status": table.status.numpy()[rows].tolist(),
        "prediction": table.prediction.numpy()[rows].tolist(),
        "rival": table.rival.numpy()[rows].tolist(),
        "label": None if labels is None else labels[rows].tolist(),
        "strength": None if samples.strength is None else _list_plain(samples.strength[rows]),
        "kept": samples.keep[rows].astype(int).tolist(),
        "generated": None if origin is None else origin[rows].tolist(),
    }


def describe_group(samples: SampleTable, name: str) -> tuple[str, str]:
    """Return a group's title and what is to be seen there; only a plan that goes by margins prunes from its ends."""
    rule = None if samples.plan is None else read_rule(samples.plan)
    ends = {"lowest": rule and rule.difficult_by_margin, "highest": rule and rule.easy_by_margin}
    title, sentence = GROUPS[name]
    return title, sentence.format(first=", the first to be pruned" if ends.get(name) else "")


def _list_ids(ids: NDArray[np.int64]) -> list[int] | list[str]:
    """Return ids as numbers, or as text where they are beyond what a browser counts exactly."""
    return [str(number) for number in ids] if len(ids) and int(ids.max()) >= 1 << 53 else ids.tolist()


def _list_plain(values: NDArray[np.float32]) -> list[float | None]:
    return [float(f"{value:.7g}") if np.isfinite(value) else None for value in values.tolist()]


def draw_pictures(
    samples: SampleTable, choice: GallerySelection, *, show: bool = False
) -> tuple[list[SpriteSheet], str]:
    """Draw the chosen samples; where that cannot be done, return no sheet and a sentence that says why."""
    if samples.pool is None:
        return [], ""
    try:
        return draw_sheets(samples.pool, samples.position[choice.rows], show=show), ""
    except (PumaError, OSError) as error:
        return [], f"The pictures cannot be read, so there are none here: {error}"
