"""What ``puma evaluate`` wrote: how many samples were right under each attack, over all and by class."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from puma.errors import PumaError
from puma.evaluation.counts import Count
from puma.report.record import read_object


@dataclass(frozen=True)
class Evaluated:
    """Counts by attack, by attack and class, and what else a reader should know; ``test`` tells the test set."""

    counts: dict[str, Count]
    classes: dict[str, dict[str, Count]]
    eps: float
    norm: str
    test: str
    warnings: tuple[str, ...]
    versions: dict[str, str]


def read_evaluation(folder: Path) -> Evaluated:
    """Read metrics.json in a folder."""
    path = folder / "metrics.json" if folder.is_dir() else folder
    described = read_object(path)
    try:
        results = dict(described["results"])
        return Evaluated(
            counts={str(attack): _count(result) for attack, result in results.items()},
            classes={
                str(attack): {str(name): _count(value) for name, value in dict(result.get("classes", {})).items()}
                for attack, result in results.items()
            },
            eps=float(described["eps"]),
            norm=str(described["norm"]),
            test=str(described.get("pool_fingerprint", "")),
            warnings=tuple(str(sentence) for sentence in described.get("warnings", ())),
            versions={name: str(described[name]) for name in ("puma", "torch", "python") if name in described},
        )
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise PumaError(
            f"{path} is damaged or not of puma evaluate ({type(error).__name__}: {error}); evaluate again."
        ) from error


def _count(described: dict[str, Any]) -> Count:
    right, total = int(described["right"]), int(described["total"])
    if not 0 <= right <= total:
        raise ValueError(f"right must lie in 0..{total}, got {right}")
    return Count(right, total)
