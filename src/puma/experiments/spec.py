"""What an experiment consists of: rows, each a model to train or margins to measure, and what the paper reports for it.

Nothing here knows about data sets or sizes: distances are multiples of eps, nets and amounts of images go by their
role, and a ``Setting`` fills them in. Specifications are values, so two rows that need the same model share it.
"""

from dataclasses import dataclass, field
from typing import Literal

Net = Literal["main", "second", "third", "wide", "widest"]
Amount = Literal["none", "few", "usual", "many", "most"]
ScoreName = Literal["margin", "cd_clean", "cd_adversarial"]
Rule = Literal["constant", "margin", "weak-if-difficult", "margin-if-difficult"]
Figure = Literal["none", "lines", "curves", "histogram"]


@dataclass(frozen=True)
class Model:
    """A model to train: TRADES on real and generated images, but for what is said here.

    Attributes:
        planned: how the images are pruned and how strongly each is attacked; None keeps all at eps.
        net: the role of the net.
        generated: how many generated images there are.
        online: find strengths, and what to prune, during training.
    """

    planned: "Planned | None" = None
    net: Net = "main"
    generated: Amount = "usual"
    online: "Online | None" = None


@dataclass(frozen=True)
class Measured:
    """Margins: by which model, found how; None takes the method of the setting."""

    by: Model = field(default_factory=Model)
    method: str | None = None


@dataclass(frozen=True)
class Planned:
    """From scores to a plan; fractions are of the whole pool, distances in multiples of eps.

    Attributes:
        easy: share of the easiest samples to drop.
        difficult: share of the most difficult ones to drop.
        random: share to drop at random.
        score: what easy and difficult go by; difficulty (CD) is that of ``difficulty_of``.
        strength: rule of the strength.
        eps: largest strength.
        gap: subtracted from the margin.
        weak_eps: strength of difficult samples under ``weak-if-difficult``.
        margins: what margins are measured with.
        difficulty_of: the training run that difficulty is counted in.
    """

    easy: float = 0.0
    difficult: float = 0.0
    random: float = 0.0
    score: ScoreName = "margin"
    strength: Rule = "margin"
    eps: float = 1.0
    gap: float = 0.0
    weak_eps: float = 1 / 8
    margins: Measured = field(default_factory=lambda: Measured(Model(generated="none")))
    difficulty_of: Model = field(default_factory=Model)

    @property
    def needs_margins(self) -> bool:
        """Whether margins have to be measured for it."""
        by_margin = self.score == "margin" and bool(self.easy or self.difficult)
        return by_margin or self.strength in ("margin", "margin-if-difficult")

    @property
    def needs_difficulty(self) -> bool:
        """Whether difficulty has to be counted for it."""
        by_difficulty = self.score != "margin" and bool(self.easy or self.difficult)
        return by_difficulty or self.strength in ("weak-if-difficult", "margin-if-difficult")


@dataclass(frozen=True)
class Online:
    """The online method; the threshold of ``paper`` is a multiple of eps, 0 prunes nothing."""

    mode: Literal["paper", "ours"]
    prune_at: float = 0.0
    prune_fraction: float = 0.2


@dataclass(frozen=True)
class Paper:
    """What the paper reports for a row, as printed: percentages and their spread."""

    clean: float
    robust: float
    clean_spread: float = 0.0
    robust_spread: float = 0.0


@dataclass(frozen=True)
class Row:
    """One line of a table, or one point of a figure: ``at`` is its place on the axis of the line ``series``."""

    name: str
    wants: Model | Measured
    paper: Paper | None = None
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
        figure: what is drawn: ``lines`` over ``Row.at``, ``curves`` over training, a ``histogram`` of margins.
        axis: the label of the horizontal axis.
        expect: what the paper finds, in a sentence.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    figure: Figure = "none"
    axis: str = ""
    expect: str = ""


TRADES = Model()
REAL_ONLY = Model(generated="none")
PRUNE_FRACTIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.6)


def puma(easy: float = 0.2, *, by: Model = REAL_ONLY, gap: float = 0.0, eps: float = 1.0) -> Model:
    """Return the method: prune easy samples by margin, attack the others as strongly as their margin allows.

    Its ablations measure margins with a model that was trained on real images alone, as the paper's do.
    """
    return Model(Planned(easy=easy, gap=gap, eps=eps, margins=Measured(by)))


def pruned(easy: float = 0.0, difficult: float = 0.0, random: float = 0.0) -> Model:
    """Return TRADES at full strength on what pruning by difficulty, or at random, leaves."""
    return Model(Planned(easy, difficult, random, score="cd_clean", strength="constant"))


def described(model: Model) -> str:
    """Name a model in a few words that can stand in a file name."""
    words = ["trades" if model.planned is None and model.online is None else ""]
    if model.online is not None:
        words.append(f"online-{model.online.mode}")
    plan = model.planned
    if plan is not None:
        words.append("puma" if plan.strength == "margin" else "pruned")
        for letters, share in (("easy", plan.easy), ("difficult", plan.difficult), ("random", plan.random)):
            words += [f"{letters}{100 * share:g}"] if share else []
    words += [model.net] if model.net != "main" else []
    words += [f"{model.generated}-generated"] if model.generated != "usual" else []
    return "-".join(word for word in words if word)
