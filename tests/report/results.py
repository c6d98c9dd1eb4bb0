"""Result files without any training: what ``puma`` would have written, with numbers that a test can know."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from puma.evaluation.metrics_file import wilson_interval
from puma.files import hash_file, link_to_file
from puma.margins import Margins
from puma.margins.margins_file import MarginProvenance
from puma.planning import Plan, adaptive_strength
from puma.pools import Pool
from puma.training import TrainConfig
from puma.training.config import AttackConfig
from puma.training.run_folder import RunFolder, RunInputs

EPS = 0.1


def margin_of(count: int, seed: int = 0) -> NDArray[np.float32]:
    """Distinct margins from -0.1 to 0.3, in random order."""
    return np.random.default_rng(seed).permutation(np.linspace(-0.1, 0.3, count)).astype(np.float32)


def write_margins(path: Path, pool: Pool, margin: NDArray[np.float32] | None = None) -> Path:
    values = margin_of(len(pool)) if margin is None else margin
    labels = torch.from_numpy(pool.labels.copy())
    other = (labels + 1) % pool.num_classes
    wrong = torch.from_numpy(values < 0)
    status = torch.from_numpy(np.where(np.isfinite(values), 0, 1).astype(np.int8))
    made_by = MarginProvenance(pool.fingerprint, len(pool), "model", "deepfool", {}, "linf", None, 8, 8, "fp32")
    zeros = torch.zeros(len(pool), dtype=torch.int32)
    prediction, rival = torch.where(wrong, other, labels), torch.where(wrong, labels, other)
    ids = torch.from_numpy(np.array(pool.sample_id))
    margins = torch.from_numpy(values)
    return Margins(margins, status, labels, prediction, rival, zeros, zeros, ids, made_by.describe()).save(path)


def write_plan(
    path: Path,
    pool: Pool,
    margin: NDArray[np.float32] | None = None,
    *,
    pruned: float = 0.2,
    said: Mapping[str, str] | None = None,
    margins: Path | None = None,
) -> Path:
    """Prune the highest margins; rows in another order than the pool's, as a plan may have them.

    Without ``margins`` it does not say what it was made from, as plans of older versions.
    """
    values = torch.from_numpy(margin_of(len(pool)) if margin is None else margin)
    keep = torch.ones(len(pool), dtype=torch.bool)
    keep[values.argsort(descending=True)[: round(pruned * len(pool))]] = False
    made_from = {"pruning.easy": str(pruned), "pruning.within": "pool", "strength.eps": str(EPS), "score": "margin"}
    strength = adaptive_strength(values, EPS).float()
    order = torch.from_numpy(np.random.default_rng(1).permutation(len(pool)))
    sample_id = torch.from_numpy(pool.sample_id.copy())
    links = None if margins is None else (link_to_file("margins", "margins", margins),)
    described = {**made_from, **(said or {})}
    return Plan(sample_id[order], keep[order], strength[order], pool.fingerprint, described, links).save(path)


def write_run(
    folder: Path, pools: Sequence[Path], *, plan: Path | None = None, seed: int = 0, eps: float = EPS
) -> Path:
    config = replace(TrainConfig(), model="small-8px", seed=seed, attack=AttackConfig(eps=eps))
    pool = Pool.open(pools[0])
    names = tuple(str(path) for path in pools)
    planned = (None, None) if plan is None else (str(plan), hash_file(plan))
    inputs = RunInputs(names, planned[0], pool.fingerprint, planned[1], pool.num_classes, 3)
    run = RunFolder(folder)
    run.create(config, inputs)
    for step in range(1, 6):
        run.append_metrics({"step": step, "samples": 100 * step, "loss": 2 / step, "held_out_clean_accuracy": step / 9})
    return folder


def write_evaluation(
    folder: Path, clean: int, cw: int, total: int = 100, classes: Sequence[str] = (), **changes: Any
) -> Path:
    def counted(right: int) -> dict[str, Any]:
        share = {name: plain(right // len(classes), total // len(classes)) for name in classes}
        return {**plain(right, total), "classes": share}

    folder.mkdir(parents=True)
    results = {"clean": counted(clean), "cw": counted(cw)}
    described = {"eps": EPS, "norm": "linf", "samples": total, "results": results, "warnings": [], "torch": "2.0"}
    (folder / "metrics.json").write_text(json.dumps({**described, **changes}))
    return folder


def plain(right: int, total: int) -> dict[str, Any]:
    return {
        "right": right,
        "total": total,
        "accuracy": right / total,
        "interval95": list(wilson_interval(right, total)),
    }


def write_experiment(folder: Path, pool: Path, **changes: Any) -> Path:
    """Two rows of two seeds each, the second with margins and a plan."""
    opened = Pool.open(pool)
    folder.mkdir(parents=True, exist_ok=True)
    margins = write_margins(folder / "margins.parquet", opened)
    plan = write_plan(folder / "plan.parquet", opened, margins=margins)
    rows = []
    for name, baseline, clean in (("TRADES", True, 80), ("PUMA", False, 90)):
        seeds = []
        for seed in (0, 1):
            run = write_run(folder / f"{name}-{seed}", [pool], plan=None if baseline else plan, seed=seed)
            tested = write_evaluation(run / "evaluation-test", clean + seed, 50 + seed, classes=opened.class_names)
            files = {"plan": None, "margins": None} if baseline else {"plan": plan.name, "margins": str(margins)}
            places = {"run": run.name, "evaluation": str(tested.relative_to(folder)), "pools": [str(pool)]}
            seeds.append({"seed": seed, **places, **files})
        paper = {"clean_accuracy": clean / 100 + 0.05, "robust_accuracy": 0.55}
        rows.append({"row": name, "baseline": baseline, "paper": paper, "seeds": seeds})
    described = {
        "format": "puma-experiment-1",
        "experiment": "tab-test",
        "title": "A test",
        "command": "puma run tab-test",
        "notes": ["A note."],
        "eps": EPS,
        "norm": "linf",
        "provenance": {"commit": "0123abc", "device": "cpu"},
        "rows": rows,
    }
    path = folder / "experiment.json"
    path.write_text(json.dumps({**described, **changes}))
    return path
