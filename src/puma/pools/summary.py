"""What a pool holds, in words and as a picture."""

from pathlib import Path

import numpy as np

from puma.errors import PumaError, tell_missing
from puma.pools.pool import Pool
from puma.pools.store import Origin

_MOST_CLASSES = 25  # lines; more would scroll the rest away
_COLUMNS = 12  # images of a class in the picture
_CELL = 64  # pixels of the picture grid that one image takes
_BAR = 30  # characters


def describe_pool(pool: Pool, name: str) -> str:
    """Counts, shapes, origin and class balance as lines of text."""
    height, width, channels = pool.image_shape
    origins = np.bincount(pool.origin, minlength=2)
    lines = [
        f"{name}: {len(pool):,} images of {height} x {width} x {channels}, {pool.num_classes} classes",
        f"origin: {origins[Origin.REAL]:,} real, {origins[Origin.GENERATED]:,} generated",
        f"fingerprint: {pool.fingerprint[:16]}",
    ]
    counts = np.bincount(pool.labels, minlength=pool.num_classes)
    wide = max(len(label) for label in pool.class_names[:_MOST_CLASSES])
    for label, count in zip(pool.class_names[:_MOST_CLASSES], counts, strict=False):
        bar = "█" * round(_BAR * count / max(counts.max(), 1))
        lines.append(f"  {label:<{wide}}  {count:>9,}  {count / max(len(pool), 1):6.1%}  {bar}")
    if pool.num_classes > _MOST_CLASSES:
        low, high = counts.min(), counts.max()
        lines.append(f"  ... {pool.num_classes - _MOST_CLASSES} more; from {low:,} to {high:,} images a class")
    return "\n".join(lines)


def draw_grid(pool: Pool, path: Path, *, seed: int = 0) -> None:
    """Write a picture: a row per class, a dozen random images each."""
    with tell_missing("data"):
        from PIL import Image, ImageDraw, ImageFont

    rng = np.random.default_rng(abs(seed))
    shown = range(min(pool.num_classes, _MOST_CLASSES))
    font = ImageFont.load_default(15)
    names_width = 16 + int(max(font.getlength(pool.class_names[label]) for label in shown))
    grid = Image.new("RGB", (names_width + _COLUMNS * _CELL, len(shown) * _CELL), "white")
    pen = ImageDraw.Draw(grid)
    for row, label in enumerate(shown):
        pen.text((8, row * _CELL + _CELL // 2), pool.class_names[label], "black", font, anchor="lm")
        members = np.flatnonzero(pool.labels == label)
        chosen = rng.permutation(members)[:_COLUMNS]
        pixels = pool.batch(chosen).images.permute(0, 2, 3, 1).numpy()
        for column, image in enumerate(pixels):
            picture = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
            resample = Image.Resampling.NEAREST if max(picture.size) <= _CELL else Image.Resampling.BOX
            cell = picture.resize((_CELL - 2, _CELL - 2), resample)
            grid.paste(cell, (names_width + column * _CELL + 1, row * _CELL + 1))
    try:
        grid.save(path)
    except ValueError as error:
        raise PumaError(f"--picture must name a picture file such as grid.png, got {path.name!r}.") from error
