"""Keep the images of a pool that classifiers are sure of, or whose margins lie in a band, as a pool of its own."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from puma.attacks import check_radius
from puma.errors import PumaError
from puma.files import Link, link_to_file, write_links
from puma.generation.quality import answer_pool, keep_agreed, keep_confident
from puma.margins import read_margins
from puma.models import fingerprint_model
from puma.pools import Chunk, Origin, Pool, PoolPart, write_parts
from puma.training import load_model

_ROWS = 4096  # images copied at a time


@dataclass(frozen=True)
class SelectionConfig:
    """Which images stay; what is not given drops none. The steps follow one another in this order.

    Attributes:
        agree_with: drop the images that this model (a run's folder, or as for puma margins) calls something else.
        sure: keep the images that this model is surest of, share of each class.
        share: see sure; the public 1M set kept 0.2.
        margins: margins.parquet of the pool, for band.
        band: keep margins from here to there, in multiples of eps.
        eps: see band.
        count: of what is left keep the first so many of a random order.
        seed: of that order.
    """

    agree_with: str | None = None
    sure: str | None = None
    share: float = 0.2
    margins: Path | None = None
    band: tuple[float, float] | None = None
    eps: float | None = None
    count: int | None = None
    seed: int = 0


def select_images(pool: Pool, config: SelectionConfig) -> tuple[Tensor, list[str]]:
    """Return which images stay (n,), and a line for each step that says how many it dropped."""
    keep, lines = torch.ones(len(pool), dtype=torch.bool), []
    labels = torch.from_numpy(pool.labels)
    if (config.margins is None) != (config.band is None) or (config.band is None) != (config.eps is None):
        raise PumaError("--margins, --band and --eps go together; give all three or none.")
    if config.agree_with is None and config.sure is None and config.band is None and config.count is None:
        raise PumaError("nothing says which images to keep; give --agree-with, --sure, --margins or --count.")
    if config.band is not None and not config.band[0] <= config.band[1]:
        raise PumaError(f"a band goes from a lower to a higher margin, got {config.band[0]:g} to {config.band[1]:g}.")

    def narrow(stays: Tensor, why: str) -> None:
        before = int(keep.sum())
        keep.logical_and_(stays)
        lines.append(f"{before - int(keep.sum()):,} of {before:,} images dropped: {why}")

    if config.agree_with is not None:
        logits = answer_pool(_load_judge(config.agree_with, pool), pool).logits
        narrow(keep_agreed(logits, labels), f"{config.agree_with} calls them something else")
    if config.sure is not None:
        logits = answer_pool(_load_judge(config.sure, pool), pool).logits
        stays = torch.zeros_like(keep)
        stays[keep] = keep_confident(logits[keep], labels[keep], config.share)
        narrow(stays, f"not in the {config.share:.0%} of each class that {config.sure} is surest of")
    if config.margins is not None and config.band is not None and config.eps is not None:
        narrow(_find_in_band(pool, config.margins, config.band, config.eps), "their margins lie outside of the band")
    if config.count is not None:
        if not 1 <= config.count <= int(keep.sum()):
            raise PumaError(
                f"--count must lie in 1..{int(keep.sum())}, what the other steps leave; got {config.count}."
            )
        order = np.random.default_rng(config.seed).permutation(np.flatnonzero(keep.numpy()))
        stays = torch.zeros_like(keep)
        stays[torch.from_numpy(order[: config.count])] = True
        narrow(stays, "beyond --count")
    if not keep.any():
        raise PumaError(f"no image is left: {'; '.join(lines)}.")
    return keep, lines


def _load_judge(source: str, pool: Pool) -> nn.Module:
    return load_model(source, pool.num_classes, image_shape=pool.image_shape)


def _find_in_band(pool: Pool, path: Path, band: tuple[float, float], eps: float) -> Tensor:
    found = read_margins(path)
    check_radius(eps, "--eps", norm=str(found.made_from["norm"]), pixels=math.prod(pool.image_shape))
    if found.made_from.get("pool_fingerprint") != pool.fingerprint or len(found) != len(pool):
        raise PumaError(f"{path} was measured on another pool; measure this one: puma margins POOL --out FILE.")
    inside: Tensor = found.crossed & (found.margin >= band[0] * eps) & (found.margin <= band[1] * eps)
    return inside


def filter_pool(source: str | Path, out: str | Path, config: SelectionConfig, *, force: bool = False) -> list[str]:
    """Write the images of a pool that stay as the pool ``out``; returns a line for each step."""
    pool = Pool.open(source)
    keep, lines = select_images(pool, config)
    rows = keep.nonzero()[:, 0].numpy()
    origins = np.unique(pool.origin[rows])
    if len(origins) > 1:
        raise PumaError(f"{source} holds real and generated images; filter each pool on its own.")
    links = [Link("images", "pool", pool.fingerprint, str(Path(source).resolve()))]
    for role, judge in (("agree with", config.agree_with), ("sure", config.sure)):
        if judge is not None:
            links.append(Link(role, "model", fingerprint_model(_load_judge(judge, pool), pool.image_shape), judge))
    if config.margins is not None:
        links.append(link_to_file("band", "margins", config.margins))

    def read_chunks() -> Iterator[Chunk]:
        for start in range(0, len(rows), _ROWS):
            batch = pool.batch(rows[start : start + _ROWS])
            yield batch.images.permute(0, 2, 3, 1).numpy(), batch.labels.numpy()

    description = {"selection": lines, "links": write_links(links)}
    origin = Origin(int(origins[0]))
    part = PoolPart(read_chunks(), pool.class_names, len(rows), origin, True, description)
    write_parts({"": part}, out, force=force)
    return lines
