"""What an experiment consists of: rows, each a model to train or margins to measure, and what the paper reports for it.

Nothing here knows about data sets or sizes: distances are multiples of eps, nets and amounts of images go by their
role, and an ``ExperimentSetting`` fills them in. Specifications are values, so rows that need the same model share it.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from puma.perceptron import FigureName

NetRole = Literal["main", "second", "third", "wide", "widest"]
GeneratedAmount = Literal["none", "few", "usual", "many", "most"]
GenerationWay = Literal["any", "selected", "conditioned", "guided"]
ScoreName = Literal["margin", "cd_clean", "cd_adversarial", "input_gradient", "uncertainty"]
StrengthRule = Literal["constant", "margin", "weak-if-difficult", "margin-if-difficult"]
ImageKind = Literal["usual", "imagenet"]
FigureKind = Literal["none", "lines", "curves", "histogram", "heat map", "bands"]


@dataclass(frozen=True)
class GeneratorImages:
    """Images of a generator that is trained here on the real ones, at one cost in network passes for every way.

    Attributes:
        way: ``any`` takes them as they come; the others reach for a band of margins, by a selection after sampling, by
            a generator that is told the margin, or by a sampler that a classifier guides.
        band: the margins asked for, in multiples of eps.
    """

    way: GenerationWay = "any"
    band: tuple[float, float] | None = None

    @property
    def name(self) -> str:
        """Name the images in a word or two that can stand in a file name."""
        return self.way if self.band is None else f"{self.way}-{self.band[0]:g}-to-{self.band[1]:g}"


@dataclass(frozen=True)
class ModelSpec:
    """A model to train: TRADES on real and generated images, but for what is said here.

    Attributes:
        plan: how the images are pruned and how strongly each is attacked; None keeps all at eps.
        net: the role of the net.
        generated: how many generated images there are, or which ones of our own generator.
        online: find strengths, and what to prune, during training.
        plan_from: share of the training after which the plan takes effect.
        soft: probability with which samples of low loss are left out for a while (InfoBatch).
        snapshots: keep averaged models on the way, for scores that look at all of the training.
        length: samples seen, in multiples of what the setting says.
        noise: share of the generated images that get a wrong label.
        filtered: leave out the generated images that a model of the real ones alone calls something else.
    """

    plan: "PlanSpec | None" = None
    net: NetRole = "main"
    generated: GeneratedAmount | GeneratorImages = "usual"
    online: "OnlineSpec | None" = None
    plan_from: float = 0.0
    soft: float = 0.0
    snapshots: bool = False
    length: float = 1.0
    noise: float = 0.0
    filtered: bool = False


@dataclass(frozen=True)
class OutsideModel:
    """A margin model that is not trained here: a run folder, ``file.py:function`` or built-in name, and its weights."""

    source: str
    weights: str | None = None


@dataclass(frozen=True)
class MarginSpec:
    """Margins: by which model, found how; None takes the method of the setting."""

    by: ModelSpec | OutsideModel = field(default_factory=ModelSpec)
    method: str | None = None


@dataclass(frozen=True)
class PlanSpec:
    """From scores to a plan; fractions are of the whole pool, distances in multiples of eps.

    Attributes:
        easy: share of the easiest samples to drop.
        difficult: share of the most difficult ones to drop.
        random: share to drop at random.
        score: what easy and difficult go by; difficulty (CD), input gradients and uncertainty are of
            ``difficulty_of``.
        strength: rule of the strength.
        eps: largest strength.
        gap: subtracted from the margin.
        weak_eps: strength of difficult samples under ``weak-if-difficult``.
        margins: what margins are measured with.
        difficulty_of: the training run that difficulty is counted in.
        stratified: share to drop so that all ranges of the score stay covered.
        beyond: drop easy or random samples only where their margin is above this.
        floor: lowest strength by margin.
    """

    easy: float = 0.0
    difficult: float = 0.0
    random: float = 0.0
    score: ScoreName = "margin"
    strength: StrengthRule = "margin"
    eps: float = 1.0
    gap: float = 0.0
    weak_eps: float = 1 / 8
    margins: MarginSpec = field(default_factory=lambda: MarginSpec(ModelSpec(generated="none")))
    difficulty_of: ModelSpec = field(default_factory=ModelSpec)
    stratified: float = 0.0
    beyond: float | None = None
    floor: float = -1.0

    @property
    def needs_margins(self) -> bool:
        """Whether margins have to be measured for it."""
        by_margin = self.score == "margin" and bool(self.easy or self.difficult or self.stratified)
        by_margin |= self.beyond is not None
        return by_margin or self.strength in ("margin", "margin-if-difficult")

    @property
    def needs_difficulty(self) -> bool:
        """Whether difficulty has to be counted for it."""
        by_difficulty = self.score.startswith("cd_") and bool(self.easy or self.difficult or self.stratified)
        return by_difficulty or self.strength in ("weak-if-difficult", "margin-if-difficult")

    @property
    def watched(self) -> ModelSpec | None:
        """The training whose averaged models the score is made of, where it is such a score."""
        return replace(self.difficulty_of, snapshots=True) if self.score in ("input_gradient", "uncertainty") else None


@dataclass(frozen=True)
class OnlineSpec:
    """The online method; the threshold of ``paper`` is a multiple of eps, 0 prunes nothing."""

    mode: Literal["paper", "ours"]
    prune_at: float = 0.0
    prune_fraction: float = 0.2
    margins_by: Literal["model", "average"] = "model"
    per_class: bool = False


@dataclass(frozen=True)
class PaperValue:
    """What the paper reports for a row, as printed: percentages and their spread."""

    clean: float
    robust: float
    clean_spread: float = 0.0
    robust_spread: float = 0.0


@dataclass(frozen=True)
class RowSpec:
    """One line of a table, or one point of a figure: ``at`` is its place on the axis of the line ``series``."""

    name: str
    wants: ModelSpec | MarginSpec
    paper: PaperValue | None = None
    baseline: bool = False
    series: str = ""
    at: float | None = None

    @property
    def label(self) -> str:
        """What the results call it."""
        return self.series or self.name


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Attributes:
        name: what ``puma run`` calls it.
        title: what it shows.
        rows: all that is trained or measured.
        figure: what is drawn: ``lines`` over ``Row.at``, ``curves`` over training, a ``histogram`` of margins,
            a ``heat map`` of how alike they are.
        axis: the label of the horizontal axis.
        expect: what the paper finds, in a sentence.
        images: which kind of images a preset takes unless a data set is named.
    """

    name: str
    title: str
    rows: tuple[RowSpec, ...]
    figure: FigureKind = "none"
    axis: str = ""
    expect: str = ""
    images: ImageKind = "usual"


@dataclass(frozen=True)
class PerceptronFigure:
    """A figure of the perceptron study.

    Attributes:
        name: what ``puma run`` calls it.
        title: what it shows.
        figure: what ``puma perceptron`` calls it.
        expect: what the paper finds, in a sentence.
    """

    name: str
    title: str
    figure: FigureName
    expect: str = ""


TRADES = ModelSpec()
REAL_ONLY = ModelSpec(generated="none")
PRUNE_FRACTIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.6)  # points of a figure's line


def specify_puma(easy: float = 0.2, *, by: ModelSpec = REAL_ONLY, gap: float = 0.0, eps: float = 1.0) -> ModelSpec:
    """Return the method: prune easy samples by margin, attack the others as strongly as their margin allows.

    Its ablations measure margins with a model that was trained on real images alone, as the paper's do.
    """
    return ModelSpec(PlanSpec(easy=easy, gap=gap, eps=eps, margins=MarginSpec(by)))


def specify_pruning(easy: float = 0.0, difficult: float = 0.0, random: float = 0.0) -> ModelSpec:
    """Return TRADES at full strength on what pruning by difficulty, or at random, leaves."""
    return ModelSpec(PlanSpec(easy, difficult, random, score="cd_clean", strength="constant"))


def use_margin_model(experiment: Experiment, outside: OutsideModel) -> Experiment:
    """Let rows measure margins with a model from outside; those of iterated rows stay with the round before."""

    def exchange_margins(margins: MarginSpec) -> MarginSpec:
        if isinstance(margins.by, OutsideModel):
            return margins
        plain = margins.by.plan is None and margins.by.online is None
        return replace(margins, by=outside if plain else exchange_model(margins.by))

    def exchange_model(model: ModelSpec) -> ModelSpec:
        if model.plan is None or not model.plan.needs_margins:
            return model
        return replace(model, plan=replace(model.plan, margins=exchange_margins(model.plan.margins)))

    def exchange_row(row: RowSpec) -> RowSpec:
        wants = row.wants
        return replace(row, wants=exchange_margins(wants) if isinstance(wants, MarginSpec) else exchange_model(wants))

    return replace(experiment, rows=tuple(map(exchange_row, experiment.rows)))


def name_model(model: ModelSpec) -> str:
    """Name a model in a few words that can stand in a file name."""
    words = ["trades" if model.plan is None and model.online is None else ""]
    if model.online is not None:
        words.append(f"online-{model.online.mode}")
        words += ["average"] if model.online.margins_by == "average" else []
        words += ["per-class"] if model.online.per_class else []
    plan = model.plan
    if plan is not None:
        words.append("puma" if plan.strength == "margin" else "pruned")
        for letters in ("easy", "difficult", "random", "stratified"):
            share = getattr(plan, letters)
            words += [f"{letters}{100 * share:g}"] if share else []
        words += [f"by-{plan.score.replace('_', '-')}"] if plan.watched is not None else []
        words += [f"beyond{plan.beyond:g}"] if plan.beyond is not None else []
        words += [f"floor{plan.floor:g}"] if plan.floor != -1 else []
        words += [f"from{100 * model.plan_from:g}"] if model.plan_from else []
    words += [f"soft{100 * model.soft:g}"] if model.soft else []
    words += ["snapshots"] if model.snapshots else []
    words += [f"length{100 * model.length:g}"] if model.length != 1 else []
    words += [f"noise{100 * model.noise:g}"] if model.noise else []
    words += ["filtered"] if model.filtered else []
    words += [model.net] if model.net != "main" else []
    if isinstance(model.generated, GeneratorImages):
        words.append(f"{model.generated.name}-generated")
    elif model.generated != "usual":
        words.append(f"{model.generated}-generated")
    return "-".join(word for word in words if word)


def iterate_models(wants: ModelSpec | MarginSpec) -> Iterator[ModelSpec]:
    """Yield every model that has to be trained, those that are built on first."""
    if isinstance(wants, MarginSpec):
        if isinstance(wants.by, ModelSpec):
            yield from iterate_models(wants.by)
        return
    if wants.plan is not None:
        if wants.plan.needs_margins:
            yield from iterate_models(wants.plan.margins)
        if wants.plan.needs_difficulty:
            yield from iterate_models(wants.plan.difficulty_of)
        if wants.plan.watched is not None:
            yield from iterate_models(wants.plan.watched)
    if wants.filtered:
        yield REAL_ONLY
    yield wants


def list_nets(wants: ModelSpec | MarginSpec) -> set[str]:
    """Return the roles of all nets that a row needs."""
    return {model.net for model in iterate_models(wants)}


def list_amounts(wants: ModelSpec | MarginSpec) -> set[GeneratedAmount]:
    """Return the amounts of generated images that a row needs."""
    amounts = {model.generated for model in iterate_models(wants) if not isinstance(model.generated, GeneratorImages)}
    return amounts | ({"usual"} if isinstance(wants, MarginSpec) else set())


def needs_generator(wants: ModelSpec | MarginSpec) -> bool:
    """Whether a row needs images of a generator that is trained here."""
    return any(isinstance(model.generated, GeneratorImages) for model in iterate_models(wants))


def select_rows(
    experiment: Experiment, nets: Collection[str], amounts: Collection[str], *, generator: bool = True
) -> tuple[list[RowSpec], list[str]]:
    """Return the rows whose nets and generated images a setting has, and the names of the others."""
    there = {"none", *amounts}
    rows = [
        row
        for row in experiment.rows
        if list_nets(row.wants) <= set(nets)
        and list_amounts(row.wants) <= there
        and (generator or not needs_generator(row.wants))
    ]
    return rows, [row.name for row in experiment.rows if row not in rows]
