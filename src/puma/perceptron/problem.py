"""The problem a student is set: a teacher, a pool of samples pruned by margin, and how well a student did.

Samples are ``z = y x`` with ``x ~ N(0, I)``. Pruning only looks at them along the teacher (and along the
probe), and the other coordinates are independent of it. So only those one or two components of the pool are
drawn, and the rest once for the samples that are kept.
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf, erfc, erfcinv, erfinv

from puma.errors import PumaError, unknown_name

Array = NDArray[np.float64]

TeacherKind = Literal["axis", "dense"]
TEACHERS: tuple[TeacherKind, ...] = get_args(TeacherKind)
# prune easy (PE) keeps the lowest margins, prune difficult (PD) the highest
Strategy = Literal["none", "pe", "pd"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

_LARGEST_POOL = 200_000_000  # samples; three arrays of this length are 4.8 GB
_SMALLEST_SHARE = 1e-3  # of a pool above the filter: below it, redrawing would take thousands of passes
# independent random streams of one seed
_TEACHER, _POOL, _NOISE, _PROBE = range(4)


def make_teacher(kind: TeacherKind, dimension: int, rng: np.random.Generator) -> Array:
    """Return a unit vector: the first axis, or a random direction."""
    if kind == "axis":
        axis: Array = np.eye(1, dimension)[0]
        return axis
    if kind == "dense":
        direction = rng.standard_normal(dimension)
        return direction / np.linalg.norm(direction)
    raise unknown_name("teacher", kind, list(TEACHERS))


def mean_l1_norm(kind: TeacherKind, dimension: int) -> float:
    """Return the L1 norm of a teacher, for a dense one its value in high dimension."""
    return 1.0 if kind == "axis" else float(np.sqrt(2 * dimension / np.pi))


@dataclass(frozen=True)
class PoolPruning:
    """A strategy, the fraction of the pool that it keeps, and whether margins below ``eps`` are redrawn."""

    strategy: Strategy = "none"
    keep: float = 1.0
    filtered: bool = False

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise unknown_name("pruning strategy", self.strategy, list(STRATEGIES))
        if not 0 < self.keep <= 1:
            raise PumaError(f"the kept fraction must be in (0, 1], got {self.keep}; change --keeps.")
        if self.strategy == "none" and self.keep != 1:
            raise PumaError(f"strategy 'none' keeps everything, got keep {self.keep}; use 'pe' or 'pd'.")

    @property
    def label(self) -> str:
        """A short name, as used in tables: ``none``, ``PE 20 %``."""
        name = "none" if self.strategy == "none" else f"{self.strategy.upper()} {100 * self.keep:g} %"
        return f"{name}, filtered" if self.filtered else name


def select_kept(score: Array, count: int, strategy: Strategy) -> NDArray[np.intp]:
    """Return the positions of the ``count`` samples of a pool that a strategy keeps, by their score."""
    if strategy == "none" or count == len(score):
        return np.arange(count)
    if strategy == "pe":
        return np.argpartition(score, count - 1)[:count]
    return np.argpartition(score, len(score) - count)[len(score) - count :]


def kept_range(strategy: Strategy, keep: float, floor: float = 0.0) -> tuple[float, float]:
    """Return the range of margins |x|, x ~ N(0, 1), that is left of a large pool above ``floor``."""
    below, above = erf(floor / np.sqrt(2)), erfc(floor / np.sqrt(2))
    if strategy == "pd":
        return float(np.sqrt(2) * erfcinv(keep * above)), np.inf
    if strategy == "pe" and keep < 1:
        return floor, float(np.sqrt(2) * erfinv(below + keep * above))
    return floor, np.inf


@dataclass(frozen=True)
class Probe:
    """What measures the margins: a direction at ``angle`` degrees to the teacher; 0 is the teacher itself.

    ``signed`` ranks by ``y p.x``, so samples that the probe gets wrong count as hardest; otherwise by
    ``|p.x|``, which needs no labels.
    """

    angle: float = 0.0
    signed: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.angle <= 90:
            raise PumaError(f"the probe's angle is 0 to 90 degrees, got {self.angle}; change --probe-angle.")


@dataclass(frozen=True)
class PerceptronTask:
    """``alpha * dimension`` samples after pruning, and how the pool was pruned."""

    alpha: float
    pruning: PoolPruning = field(default_factory=PoolPruning)
    dimension: int = 200
    teacher: TeacherKind = "axis"
    probe: Probe = field(default_factory=Probe)

    def __post_init__(self) -> None:
        if self.dimension < 2:
            raise PumaError(f"the dimension must be at least 2, got {self.dimension}; change --dimension.")
        if not (0 < self.alpha < np.inf and self.count >= 1):
            raise PumaError(
                f"alpha must give at least one sample, got {self.alpha} at dimension {self.dimension}; change --alphas."
            )
        if self.count / self.pruning.keep > _LARGEST_POOL:
            raise PumaError(
                f"a pool of {self.count / self.pruning.keep:,.0f} samples is too large, at most "
                f"{_LARGEST_POOL:,} fit; choose larger --keeps or smaller --alphas."
            )

    @property
    def count(self) -> int:
        """The number of samples after pruning."""
        return round(self.alpha * self.dimension)


@dataclass(frozen=True)
class TrainingSet:
    """Samples ``z_i = y_i x_i`` as rows, and the unit teacher that labelled them."""

    samples: Array
    teacher: Array


def draw_training_set(task: PerceptronTask, eps: float, seed: int) -> TrainingSet:
    """Draw the samples of one seed. Strategies and attacks share the seed's noise, so they compare in pairs.

    ``eps`` only matters for filtered pruning, which redraws pool samples with a margin below it.
    """
    count, dimension = task.count, task.dimension

    def stream(purpose: int) -> np.random.Generator:
        return np.random.default_rng([seed, purpose, count, dimension])

    teacher = make_teacher(task.teacher, dimension, stream(_TEACHER))
    aside = orthogonal_direction(teacher, stream(_PROBE)) if task.probe.angle else np.zeros(dimension)
    along, across = draw_pool(task, teacher, aside, eps, stream(_POOL))
    samples = stream(_NOISE).standard_normal((count, dimension))
    set_component(samples, teacher, along)
    if task.probe.angle:
        set_component(samples, aside, across)
    return TrainingSet(samples, teacher)


def draw_pool(
    task: PerceptronTask, teacher: Array, aside: Array, eps: float, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Draw a pool, prune it, and return the kept components along the teacher and along ``aside``."""
    radians = np.deg2rad(task.probe.angle)
    probe = np.cos(radians) * teacher + np.sin(radians) * aside
    floor = eps * float(np.abs(probe).sum()) if task.pruning.filtered else 0.0
    if erfc(floor / np.sqrt(2)) < _SMALLEST_SHARE:
        raise PumaError(f"filtering at eps {eps:g} leaves almost no sample of the pool; choose a smaller eps.")

    def draw(size: int) -> tuple[Array, Array, Array]:
        along = np.abs(rng.standard_normal(size))
        across = rng.standard_normal(size) if task.probe.angle else np.zeros(size)
        score = np.cos(radians) * along + np.sin(radians) * across
        return along, across, score if task.probe.signed else np.abs(score)

    along, across, score = draw(round(task.count / task.pruning.keep))
    while floor:
        low = np.flatnonzero(score < floor)
        if len(low) == 0:
            break
        along[low], across[low], score[low] = draw(len(low))
    kept = select_kept(score, task.count, task.pruning.strategy)
    return along[kept], across[kept]


def orthogonal_direction(teacher: Array, rng: np.random.Generator) -> Array:
    """Return a random unit vector orthogonal to the teacher."""
    direction = rng.standard_normal(len(teacher))
    direction -= (direction @ teacher) * teacher
    return direction / np.linalg.norm(direction)


def set_component(samples: Array, direction: Array, values: Array) -> None:
    """Give the samples, in place, these components along a unit direction."""
    axis = np.flatnonzero(direction)
    if len(axis) == 1 and direction[axis[0]] == 1:
        samples[:, axis[0]] = values
    else:
        samples += np.outer(values - samples @ direction, direction)


@dataclass(frozen=True)
class Overlap:
    """``error = 1 - cos(student, teacher)`` and ``angle``, their angle in units of pi.

    The angle is the probability that student and teacher label a fresh sample differently.
    """

    error: float
    angle: float


def measure_overlap(weights: Array, teacher: Array) -> Overlap:
    """Compare a student with a unit teacher; no cancellation at small angles. Zero weights know nothing."""
    along = float(weights @ teacher)
    across = float(np.linalg.norm(weights - along * teacher))
    angle = float(np.arctan2(across, along)) if across or along else np.pi / 2
    return Overlap(error=2 * float(np.sin(angle / 2)) ** 2, angle=angle / np.pi)
