"""``metrics.json``: how many samples a model gets right under which attack. Only this module reads and writes it."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from puma.errors import PumaError
from puma.files import read_json, write_checked_json

EVALUATION_FILE = "metrics.json"
_FILES = (EVALUATION_FILE, "state.json", "curve.png")  # of one evaluation
_VERSIONS = ("puma", "torch", "python")
_Z95 = 1.959963984540054  # the 97.5 % quantile of the normal distribution


@dataclass(frozen=True)
class Count:
    """So many right of so many, with Wilson's 95 % interval."""

    right: int
    total: int

    @property
    def accuracy(self) -> float:
        """Share that is right; NaN of nothing."""
        return self.right / self.total if self.total else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval: honest near 0 and 1 and for few samples."""
        return wilson_interval(self.right, self.total)


def wilson_interval(right: int, total: int, z: float = _Z95) -> tuple[float, float]:
    """Return Wilson's score interval of a share; (0, 1) of nothing."""
    if total == 0:
        return 0.0, 1.0
    share, spread = right / total, z * z / total
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    return max(0.0, middle - half), min(1.0, middle + half)


def count_right(right: Tensor) -> Count:
    """Count the true among booleans (n,)."""
    return Count(int(right.sum()), len(right))


def count_by_class(right: Tensor, labels: Tensor, class_names: Sequence[str]) -> dict[str, Count]:
    """Count per class; a class without samples has a total of 0."""
    totals = torch.bincount(labels, minlength=len(class_names)).tolist()
    rights = torch.bincount(labels[right], minlength=len(class_names)).tolist()
    return {name: Count(rights[label], totals[label]) for label, name in enumerate(class_names)}


@dataclass(frozen=True)
class EvaluationMetrics:
    """What the file holds.

    Attributes:
        counts: by attack.
        classes: by attack, then by class.
        eps: radius of the attacks.
        norm: of the radius.
        pool_fingerprint: tells the test set; "" in files that do not say.
        warnings: sentences that a reader should know.
        versions: of puma, torch and Python.
        more: everything else in the file, such as seed, model and curve.
    """

    counts: dict[str, Count]
    classes: dict[str, dict[str, Count]]
    eps: float
    norm: str
    pool_fingerprint: str = ""
    warnings: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain values in the layout of the file."""
        results = {
            attack: {
                **_describe_count(counted),
                "classes": {name: _describe_count(value) for name, value in self.classes.get(attack, {}).items()},
            }
            for attack, counted in self.counts.items()
        }
        return {
            "eps": self.eps,
            "norm": self.norm,
            "samples": next(iter(self.counts.values())).total,
            "results": results,
            "warnings": list(self.warnings),
            "pool_fingerprint": self.pool_fingerprint,
            **self.versions,
            **self.more,
        }


def write_evaluation(folder: Path, metrics: EvaluationMetrics) -> Path:
    """Write metrics.json into a folder, whole or not at all.

    What the same evaluation has found there under attacks that were not asked for this time is kept.
    """
    key = metrics.more.get("key")
    if key and has_evaluation(folder):
        earlier = read_evaluation(folder)
        if earlier.more.get("key") == key:
            metrics = replace(
                metrics,
                counts={**earlier.counts, **metrics.counts},
                classes={**earlier.classes, **metrics.classes},
                more={**earlier.more, **metrics.more},
            )
    return write_checked_json(folder / EVALUATION_FILE, metrics.to_json())


def choose_evaluation_folder(folder: Path, key: str, *, strict: bool = False) -> Path:
    """Return ``folder`` if it is free or holds the evaluation ``key``, else one beside it named after the key.

    So an evaluation on another test set, of another model or with other settings never replaces the first. With
    ``strict`` a folder that holds another evaluation, or anything of its file names, raises instead.
    """
    held = _read_keys(folder)
    if strict and folder.is_dir():
        others = [path.name for path in folder.iterdir() if path.name not in _FILES and not path.name.startswith(".")]
        if others:
            raise PumaError(
                f"--out {folder} holds other things than an evaluation ({', '.join(sorted(others)[:3])}); "
                "choose another --out."
            )
    if not held or held == {key}:
        return folder
    if strict:
        raise PumaError(
            f"{folder} holds something else than this evaluation (another pool, model, settings or kind of file); "
            "choose another --out."
        )
    return folder.with_name(f"{folder.name}-{key[:8]}")


def _read_keys(folder: Path) -> set[str]:
    """Return the keys in the files of a folder; a file that has none, as of an older version, counts as another."""
    if folder.exists() and not folder.is_dir():
        return {"a file"}
    present = [folder / name for name in _FILES if os.path.lexists(folder / name)]
    keys = set()
    for path in present:
        if path.suffix == ".json":
            try:
                keys.add(str(read_json(path, "an evaluation").get("key")))
            except PumaError:  # damaged, as after a power cut: it is made again
                continue
    return keys or ({"unknown"} if folder / "curve.png" in present else set())


def read_evaluation(folder: Path) -> EvaluationMetrics:
    """Read metrics.json in a folder, or at that path."""
    path = folder / EVALUATION_FILE if folder.is_dir() else folder
    described = read_json(path, "the counts of puma evaluate")
    try:
        return _parse_metrics(described)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise PumaError(
            f"{path} is damaged or not of puma evaluate ({type(error).__name__}: {error}); evaluate again."
        ) from error


def read_curve(folder: Path) -> dict[str, list[int]]:
    """Return the numbers of the picture of accuracy by radius that lies in a folder: right and all, by radius."""
    if not (is_evaluation(folder) and (folder / "curve.png").is_file()):
        return {}
    curve = read_json(folder / EVALUATION_FILE, "the counts of puma evaluate").get("curve")
    return {str(eps): [int(right), int(total)] for eps, (right, total) in curve.items()} if curve else {}


def find_evaluations(run: Path) -> list[Path]:
    """Return the folders within a run that hold an evaluation, in the order of their names."""
    return sorted(file.parent for file in run.glob(f"evaluation*/{EVALUATION_FILE}"))


def is_evaluation(folder: Path) -> bool:
    """Tell whether a folder is one of an evaluation, whole or damaged."""
    return (folder / EVALUATION_FILE).is_file()


def has_evaluation(folder: Path) -> bool:
    """Tell whether a folder holds an evaluation that was written to its end."""
    try:
        read_evaluation(folder)
    except PumaError:
        return False
    return True


def _parse_metrics(described: dict[str, Any]) -> EvaluationMetrics:
    results = dict(described["results"])
    known = {"eps", "norm", "samples", "results", "warnings", "pool_fingerprint", *_VERSIONS}
    return EvaluationMetrics(
        counts={str(attack): _parse_count(result) for attack, result in results.items()},
        classes={
            str(attack): {str(name): _parse_count(value) for name, value in dict(result.get("classes", {})).items()}
            for attack, result in results.items()
        },
        eps=float(described["eps"]),
        norm=str(described["norm"]),
        pool_fingerprint=str(described.get("pool_fingerprint", "")),
        warnings=tuple(str(sentence) for sentence in described.get("warnings", ())),
        versions={name: str(described[name]) for name in _VERSIONS if name in described},
        more={name: value for name, value in described.items() if name not in known},
    )


def _parse_count(described: dict[str, Any]) -> Count:
    right, total = int(described["right"]), int(described["total"])
    if not 0 <= right <= total:
        raise ValueError(f"right must lie in 0..{total}, got {right}")
    return Count(right, total)


def _describe_count(counted: Count) -> dict[str, Any]:
    low, high = counted.interval
    return {
        "right": counted.right,
        "total": counted.total,
        "accuracy": counted.accuracy if counted.total else None,
        "interval95": [low, high],
    }
