"""What a student learns from: pruned samples ``z = y x`` of a teacher, with ``x ~ N(0, I)``.

Pruning only looks at the samples along the teacher (and along the probe), and the other coordinates are
independent of it. So only those one or two components of the pool are drawn, and the rest once for the
samples that are kept.
"""

from dataclasses import dataclass, field

import numpy as np
from scipy.special import erfc

from puma.errors import PumaError
from puma.perceptron.newton import Array
from puma.perceptron.pruning import Pruning, kept_samples
from puma.perceptron.teacher import TeacherKind, make_teacher

_LARGEST_POOL = 200_000_000
# independent random streams of one seed
_TEACHER, _POOL, _NOISE, _PROBE = range(4)


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
class Task:
    """``alpha * dimension`` samples after pruning, and how the pool was pruned."""

    alpha: float
    pruning: Pruning = field(default_factory=Pruning)
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
class Lesson:
    """Samples ``z_i = y_i x_i`` as rows, and the unit teacher that labelled them."""

    samples: Array
    teacher: Array


def draw_lesson(task: Task, eps: float, seed: int) -> Lesson:
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
    return Lesson(samples, teacher)


def draw_pool(task: Task, teacher: Array, aside: Array, eps: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw a pool, prune it, and return the kept components along the teacher and along ``aside``."""
    radians = np.deg2rad(task.probe.angle)
    probe = np.cos(radians) * teacher + np.sin(radians) * aside
    floor = eps * float(np.abs(probe).sum()) if task.pruning.filtered else 0.0
    if erfc(floor / np.sqrt(2)) < 1e-3:
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
    kept = kept_samples(score, task.count, task.pruning.strategy)
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
