"""Margins measured and predicted: cost, agreement, what is trained on the plans (``python -m benchmarks predicted``).

    python -m benchmarks.predicted --pool fashion/train --test fashion/test --recipe small-fashion-14px \\
        --out DIR --seeds 3

Without a pool the digits are used and nothing is trained on the plans. Seconds are of the processor, one thread, so
that they do not depend on what else a machine does.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

import puma
from puma.margins.compare import compare_columns
from puma.margins.predict_features import CORE, open_reader
from puma.margins.predict_select import PredictConfig
from puma.pools import Pool, to_unit
from puma.pools.datasets import read_digits
from puma.pools.writer import write_parts
from puma.training import find_recipe

NEIGHBOURS = 5


def measure_ways(
    model: nn.Module, pool: Pool, folder: Path, config: PredictConfig
) -> dict[str, Callable[[], puma.Margins]]:
    """Return how to get margins, by the name of the way."""
    agreeing = PredictConfig(**{**vars(config), "plan_agreement": 0.98})
    return {
        "deepfool": lambda: puma.measure_pool(model, pool, folder / "deepfool.parquet"),
        "tight": lambda: puma.measure_pool(model, pool, folder / "tight.parquet", method="tight"),
        "fast": lambda: puma.measure_pool(model, pool, folder / "fast.parquet", method="fast"),
        "predicted": lambda: puma.measure_pool(model, pool, folder / "predicted.parquet", predicting=config),
        "predicted, 98 % asked": lambda: puma.measure_pool(
            model, pool, folder / "predicted-98.parquet", predicting=agreeing, progress=True
        ),
        "nearest neighbours": lambda: copy_neighbours(model, pool, folder / "neighbours.parquet", config),
    }


def copy_neighbours(model: nn.Module, pool: Pool, out: Path, config: PredictConfig) -> puma.Margins:
    """Give every sample the mean margin of its nearest measured ones in feature space, as is usual for other scores."""
    size = int(np.ceil(config.measure * len(pool)))
    chosen = np.sort(np.random.default_rng(config.seed).choice(len(pool), size, replace=False))
    known = puma.measure_pool(model, pool.subset(chosen)).margin.clamp(-1, 1)
    with open_reader(model, to_unit(pool.batch(np.arange(8)).images)) as reader:
        readings = (reader.read(to_unit(batch.images), batch.labels) for batch in pool.batches(512))
        tables = [reading.features[:, len(CORE) :] for reading in readings]
    features = nn.functional.normalize(torch.from_numpy(np.concatenate(tables)), dim=1)
    measured = features[chosen]
    margin = torch.cat(
        [known[(part @ measured.T).topk(NEIGHBOURS, 1).indices].mean(1) for part in torch.split(features, 4096)]
    )
    margin[chosen] = known
    count = torch.ones(len(pool), dtype=torch.int32)
    whole = torch.full((len(pool),), -1)
    status = torch.full((len(pool),), int(puma.Status.PREDICTED), dtype=torch.int8)
    made_from = {"method": "nearest-neighbours", "norm": "linf", "pool": pool.fingerprint, "model": ""}
    found = puma.Margins(
        margin, status, torch.from_numpy(pool.labels), whole, whole, count, 0 * count,
        torch.from_numpy(pool.sample_id), {**made_from, "pool_fingerprint": pool.fingerprint},
    )  # fmt: skip
    found.save(out)
    return found


def count_passes(name: str, margins: puma.Margins, full: puma.Margins, measured: float) -> tuple[float, float]:
    """Return forward and backward passes per sample."""
    forwards, backwards = float(margins.forwards.float().mean()), float(margins.backwards.float().mean())
    if name == "nearest neighbours":
        forwards += measured * float(full.forwards.float().mean())
        backwards += measured * float(full.backwards.float().mean())
    return forwards, backwards


def compare_ways(
    model: nn.Module, pool: Pool, folder: Path, config: PredictConfig, leave_out: Sequence[str] = ()
) -> dict[str, dict[str, float]]:
    """Measure in every way; print and return cost and agreement, as far as they are not known yet."""
    path = folder / "ways.json"
    found: dict[str, dict[str, float]] = json.loads(path.read_text()) if path.exists() else {}
    full: puma.Margins | None = None
    print(
        f"{'':24}{'forward':>8}{'backward':>9}{'cost':>7}{'seconds':>9}{'rank':>8}{'alike':>8}{'pruned':>8}{'strength':>9}"
    )
    for name, way in measure_ways(model, pool, folder, config).items():
        if name in leave_out:
            continue
        begun = time.process_time()
        margins = way()
        seconds = time.process_time() - begun
        full = full or margins
        forwards, backwards = count_passes(name, margins, full, config.measure)
        whole = float(full.forwards.float().mean()), float(full.backwards.float().mean())
        alike = compare_columns(
            full.margin.numpy(), margins.margin.numpy(), prune_easy=config.prune_easy, eps=config.eps
        )
        row = found.setdefault(name, {"seconds": seconds})
        row |= {
            "forwards": forwards,
            "backwards": backwards,
            "cost": (forwards + 2 * backwards) / (whole[0] + 2 * whole[1]),
            "cost_even": (forwards + backwards) / (whole[0] + whole[1]),
            "rank_correlation": alike.rank_correlation,
            "plan_agreement": alike.plan_agreement,
            "pruned_overlap": alike.pruned_overlap,
            "strength_error": alike.strength_error,
            "measured": float((margins.status != puma.Status.PREDICTED).float().mean()),
        }
        if margins.half_width is not None:
            guessed = (margins.status == puma.Status.PREDICTED) & full.crossed
            inside = (margins.margin - full.margin).abs() <= margins.half_width
            row["coverage"] = float(inside[guessed].float().mean())
            row["expected_agreement"] = float(margins.made_from["prediction"]["expected_agreement"])
        print(
            f"{name:24}{forwards:8.2f}{backwards:9.2f}{row['cost']:7.1%}{row['seconds']:9.1f}{alike.rank_correlation:8.4f}"
            f"{alike.plan_agreement:8.2%}{alike.pruned_overlap:8.2%}{alike.strength_error:9.2%}",
            flush=True,
        )
        path.write_text(json.dumps(found, indent=1))
    return found


def train_on_plans(
    pool: Pool, test: Pool, folder: Path, recipe: str, seeds: int, samples: int, config: PredictConfig
) -> None:
    """Train PUMA on the plan of every way and print the accuracies over seeds."""
    images, labels = to_unit(test.batch(np.arange(len(test))).images), torch.from_numpy(test.labels)
    names = {"deepfool": "deepfool", "fast": "fast", "predicted": "predicted", "predicted, 98 % asked": "predicted-98",
             "nearest neighbours": "neighbours"}  # fmt: skip
    path = folder / "trained.json"
    found: dict[str, list[dict[str, float]]] = json.loads(path.read_text()) if path.exists() else {}
    for seed in range(seeds):
        for name, file in names.items():
            if len(found.get(name, [])) > seed:
                continue
            plan = puma.make_plan(
                pool, folder / f"{file}.parquet", prune_easy=config.prune_easy, eps=config.eps, drop_failed=True
            )
            net, out = find_recipe(recipe).model, folder / f"run-{file}-{seed}"
            run = puma.train(net, pool, plan=plan, recipe=recipe, out=out, samples_seen=samples, seed=seed)
            scores = puma.evaluate(run.model, images, labels, config.eps)
            found.setdefault(name, []).append(dict(scores))
            path.write_text(json.dumps(found, indent=1))
            print(f"{name}, seed {seed}: {scores}", flush=True)
    for name, runs in found.items():
        told = {key: np.array([run[key] for run in runs]) for key in runs[0]}
        print(f"{name:24}" + "  ".join(f"{key} {100 * v.mean():.2f} ± {100 * v.std():.2f}" for key, v in told.items()))


def main() -> None:
    """Compare the ways on a pool."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", type=Path)
    parser.add_argument("--test", type=Path)
    parser.add_argument("--recipe", default="small-digits")
    parser.add_argument("--model", help="margin model; trained by the recipe unless given")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--eps", type=float)
    parser.add_argument("--measure", type=float)
    parser.add_argument("--samples", type=int, default=30_000, help="seen by each training on a plan")
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--leave-out", nargs="*", default=[], help="ways that are not measured, such as tight")
    asked, _ = parser.parse_known_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="puma-bench-") as scratch:
        folder = asked.out or Path(scratch)
        place = asked.pool or write_parts(read_digits(), Path(scratch) / "digits") / "train"
        pool = Pool.open(place)
        settings = find_recipe(asked.recipe)
        eps = asked.eps or settings.attack.eps
        if asked.model:
            model = puma.load_model(asked.model, pool.num_classes, weights=asked.weights)
        else:
            model = puma.train(settings.model, pool, recipe=asked.recipe, out=folder / "margin-model").model
        config = PredictConfig(measure=asked.measure or (0.02 if len(pool) > 10_000 else 0.15), eps=eps)
        compare_ways(model.eval(), pool, folder, config, asked.leave_out)
        if asked.seeds:
            train_on_plans(pool, Pool.open(asked.test), folder, asked.recipe, asked.seeds, asked.samples, config)


if __name__ == "__main__":
    main()
