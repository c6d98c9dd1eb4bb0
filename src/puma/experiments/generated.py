"""Images of a generator that an experiment trains itself: any, or of a band of margins reached in one of three ways.

Every way costs the same in network passes, sampling and measuring together; a backward pass counts as two.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from puma.drawing import COLOURS, LINE_STYLES, POOL, bin_edges, count_in_bins
from puma.errors import PumaError, tell_missing
from puma.experiments.presets import ExperimentSetting, GeneratorSetting
from puma.experiments.spec import GenerationWay, GeneratorImages
from puma.files import hash_file, hash_json, lock
from puma.generation import (
    GeneratorFolder,
    SampleConfig,
    SelectionConfig,
    SolverConfig,
    answer_pool,
    filter_pool,
    find_generator_recipe,
    load_generator,
    measure_frechet,
    resume_generator,
    sample_pool,
    train_generator,
)
from puma.margins import Margins, measure_pool, read_margins
from puma.pools import Pool
from puma.training import load_model

_MEASURE = 13  # passes of a margin by deepfool: five forward and four backward ones
_GUIDE = 3  # passes of the guide for each one of the generator: forward and backward
_FEWEST = 16  # images that a pool must have to be worth training on
_FINEST_BIN = 0.25  # of a histogram of margins, in multiples of eps
_SAMPLED = {"selected": 1, "conditioned": 2, "guided": 3}  # other seeds for other ways: no image is shared


def count_affordable(images: int, real: int, way: GenerationWay, solver: SolverConfig) -> int:
    """Return how many images a way may sample for the passes that ``images`` of any margin cost."""
    budget = images * solver.passes
    if way == "selected":
        return budget // (solver.passes + _MEASURE)
    if way == "conditioned":  # the margins of the real images had to be measured for the generator
        return max(0, budget - real * _MEASURE) // solver.passes
    if way == "guided":
        return budget // (solver.passes * (1 + _GUIDE))
    return images


@dataclass(frozen=True)
class GeneratedStages:
    """The stages between real images and a pool of generated ones, each in a folder named after what it depends on.

    Attributes:
        path: the folder of all stages.
        setting: of the experiment; it says which generator.
        real: the pool that the generator is trained on.
        margins: its margins, None for a generator that is not told any.
        margin_model: the run that they were measured with.
    """

    path: Path
    setting: ExperimentSetting
    real: Path
    margins: Path | None = None
    margin_model: Path | None = None

    @property
    def plan(self) -> GeneratorSetting:
        """Which generator the setting has; a setting without one raises."""
        if self.setting.generator is None:
            raise PumaError(f"preset {self.setting.preset} has no generator; run this experiment with preset small.")
        return self.setting.generator

    def train(self) -> Path:
        """Return the generator: if it is told margins, then but for one in ten, so that it serves every way."""
        recipe = find_generator_recipe(self.plan.recipe)
        config = replace(recipe, samples_seen=self.plan.samples_seen, device=self._device)
        if self.margins is not None:
            config = replace(config, eps=self.setting.eps)
        parts = [Pool.open(self.real).fingerprint, self.margins and hash_file(self.margins), repr(config)]
        out = self.path / "generators" / hash_json(parts)[:10]
        with lock(out, wait=True):
            folder = GeneratorFolder(out)
            if not folder.has_config:
                train_generator(config, [self.real], out, margins=self.margins)
            elif not folder.model.is_file():
                resume_generator(out)
        return out

    @property
    def _judged(self) -> tuple[Path, Path]:
        """The margins and the model of a generator that is told them."""
        if self.margins is None or self.margin_model is None:
            raise PumaError(f"the generator of preset {self.setting.preset} is not told margins; ask for any images.")
        return self.margins, self.margin_model

    @property
    def _device(self) -> str:
        return self.setting.nets["main"].compute.device

    def make_pool(self, wanted: GeneratorImages, images: int | None = None) -> Path:
        """Return a pool of such images, sampling and measuring them first: as many as cost what ``images`` of any do.

        Without a number, as many as the setting says.
        """
        generator = self.train()
        solver = SolverConfig()
        count = count_affordable(images or self.plan.images, len(Pool.open(self.real)), wanted.way, solver)
        if count < _FEWEST:
            raise PumaError(f"{self.plan.images:,} images of any margin cost less than {_FEWEST} {wanted.way} ones.")
        config = SampleConfig(seed=_SAMPLED.get(wanted.way, 0), solver=solver)
        if wanted.way == "conditioned":
            config = replace(config, band=wanted.band)
        elif wanted.way == "guided":
            guide, eps = str(self._judged[1]), self.setting.eps
            config = replace(config, band=wanted.band, guide=guide, eps=eps, norm=self.setting.nets["main"].attack.norm)
        made_of = [load_generator(generator).fingerprint, count, repr(replace(config, guide=None))]
        if config.guide is not None:
            made_of.append(hash_file(self._judged[0]))  # measured with the guide
        sampled = self.path / "pools" / f"generated-{wanted.way}-{hash_json(made_of)[:10]}"
        with lock(sampled.with_name(f"{sampled.name}-sampling"), wait=True):  # the pool's own lock does not wait
            if not sampled.is_dir():
                sample_pool(generator, count, sampled, config, device=self._device)
        return sampled if wanted.way != "selected" else self._select(sampled, wanted)

    def measure(self, pool: Path) -> Path:
        """Return the margins of generated images by the model that the band is of."""
        opened, norm = Pool.open(pool), self.setting.nets["main"].attack.norm
        margins, by = self._judged
        key = hash_json([opened.fingerprint, hash_file(margins), self.setting.method, norm])[:10]
        out = self.path / "margins" / f"generated-{key}.parquet"
        with lock(out, wait=True):
            if not out.is_file():
                measure_pool(load_model(by), opened, out, method=self.setting.method, norm=norm, model_path=str(by))
        return out

    def _select(self, sampled: Path, wanted: GeneratorImages) -> Path:
        out = sampled.with_name(f"{sampled.name}-{wanted.name}")
        with lock(out, wait=True):
            if not out.is_dir():
                rule = SelectionConfig(margins=self.measure(sampled), band=wanted.band, eps=self.setting.eps)
                filter_pool(sampled, out, rule)
        return out

    def describe(self, pool: Path, wanted: GeneratorImages, judge: Path, test: Path) -> dict[str, float]:
        """Return what came out: how many, how many in the band, how many the judge doubts, how far from real ones."""
        opened, margins = Pool.open(pool), read_margins(self.measure(pool))
        model = load_model(judge)
        answers, real = answer_pool(model, opened), answer_pool(model, Pool.open(test))
        doubted = (answers.logits.argmax(1).numpy() != opened.labels).mean()
        told = {"images": float(len(opened)), "doubted_share": float(doubted)}
        told["frechet"] = measure_frechet(answers.features, real.features)
        if wanted.band is not None:
            told["in_band_share"] = share_in_band(margins, wanted.band, self.setting.eps)
        return told


def share_in_band(margins: Margins, band: tuple[float, float], eps: float) -> float:
    """Return the share of samples whose margin was found and lies in a band of multiples of eps."""
    inside = margins.crossed & (margins.margin >= band[0] * eps) & (margins.margin <= band[1] * eps)
    return float(inside.double().mean())


def align_edges(edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return about as many equal bins over the same range whose edges are multiples of a quarter or of 0.5, 1, 2, ...

    Bands of whole multiples of eps then begin and end where bins do.
    """
    width = _FINEST_BIN
    while (edges[-1] - edges[0]) / width > 2 * (len(edges) - 1):
        width *= 2
    return width * np.arange(np.floor(edges[0] / width), np.ceil(edges[-1] / width) + 1)


def draw_bands(margins: Mapping[GeneratorImages, Path], path: Path, eps: float) -> Path:
    """Draw a panel per band: the margins that each way got, over those of images of any margin; the band is shaded."""
    with tell_missing("report"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    found = {wanted: read_margins(file).margin.double().numpy() / eps for wanted, file in margins.items()}
    asked = sorted({wanted.band for wanted in found if wanted.band is not None})
    bands: list[tuple[float, float] | None] = [*asked] or [None]
    edges = align_edges(bin_edges(np.concatenate([*found.values()])))
    figure = Figure(figsize=(5.2 * len(bands), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, band in zip(figure.subplots(1, len(bands), squeeze=False)[0], bands, strict=True):
        shown = {wanted.way: values for wanted, values in found.items() if wanted.band in (None, band)}
        for place, (way, values) in enumerate(shown.items()):
            shares = 100 * count_in_bins(values, edges) / len(values)
            label = f"{way}: {len(values):,} images"
            if way == "any":
                axes.stairs(shares, edges, fill=True, color=POOL, label=label)
                continue
            style = LINE_STYLES[(place - 1) % len(LINE_STYLES)]
            axes.stairs(
                shares, edges, baseline=None, color=COLOURS[place - 1], linestyle=style, linewidth=1.5, label=label
            )
        if band is not None:
            axes.axvspan(*band, color="black", alpha=0.07, linewidth=0)
            axes.set_title(f"asked for {band[0]:g} to {band[1]:g} eps", fontsize=11)
        axes.set(xlabel="margin, multiples of eps", ylabel="share of the images, %", ylim=(0, None))
        axes.legend(fontsize=8, frameon=False, loc="upper right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path
