"""Which samples are kept: prune easy (PE) keeps the lowest margins, prune difficult (PD) the highest."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf, erfc, erfcinv, erfinv

from puma.errors import PumaError, unknown_name

Strategy = Literal["none", "pe", "pd"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


@dataclass(frozen=True)
class Pruning:
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


def kept_samples(score: NDArray[np.float64], count: int, strategy: Strategy) -> NDArray[np.intp]:
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
