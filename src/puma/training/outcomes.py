"""Scores of a finished run's samples: from the outcomes it recorded, and from the models it kept."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError
from puma.pools import open_pools
from puma.processes import resolve_device
from puma.progress import progress_bar
from puma.scores import (
    OUTCOMES,
    Scores,
    count_recorders,
    count_visits,
    outcome_file,
    read_outcomes,
    score_dynamics,
)
from puma.training.batches import iterate_visits, load_samples
from puma.training.run_folder import RunFolder, load_model

_STEPS = 256  # read in one go

Visits = Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]


def score_difficulty(run: str | Path, *, show: bool = False) -> list[Scores]:
    """Return CD and forgetting counts, clean and adversarial as far as the run recorded them, for its whole pool.

    Samples that were never trained on, such as held-out or pruned ones, have NaN.
    """
    folder = RunFolder(Path(run))
    config, inputs = folder.read()
    samples = load_samples(config, inputs.pools, inputs.plan)
    if samples.inputs != inputs:
        raise PumaError(f"the pool or plan has changed since {folder.path} was begun; outcomes cannot be counted.")
    found = [outcome for outcome in OUTCOMES if count_recorders(folder.path, outcome)]
    if not found:
        raise PumaError(f"{folder.path} has no recorded outcomes; train with --record-outcomes, not online.")
    ranks = count_recorders(folder.path, found[0])
    whole = samples.whole
    links = (*(link for link in inputs.links if link.kind == "pool"), folder.link_to("run"))
    scores = []
    for outcome in found:

        def visits(outcome: str = outcome) -> Visits:
            with progress_bar(f"count {outcome}", config.steps, unit="steps", enabled=show) as advance:
                rows = iterate_visits(config, samples, range(config.steps))
                for start in range(0, config.steps, _STEPS):
                    steps = range(start, min(start + _STEPS, config.steps))
                    share = config.batch_size // ranks
                    files = [outcome_file(folder.path, outcome, rank, ranks) for rank in range(ranks)]
                    right = np.stack([read_outcomes(file, share, steps) for file in files], axis=2)
                    positions = np.stack(list(islice(rows, len(steps))))
                    yield positions.ravel(), right.reshape(positions.shape).ravel()
                    advance(len(steps))

        counted = count_visits(len(whole), visits())
        for kind, values in (("cd", counted.difficulty), ("forgetting", counted.forgetting)):
            name, made_from = f"{kind}_{outcome}", {"run": folder.path.name}
            scores.append(Scores(name, whole.sample_id, values, whole.fingerprint, made_from, links))
    return scores


def score_snapshots(run: str | Path, *, window: int = 10, show: bool = False) -> list[Scores]:
    """Return the input gradients and the uncertainty of the run's whole pool, over the averaged models it kept."""
    folder = RunFolder(Path(run))
    config, inputs = folder.read()
    kept = folder.list_snapshots()
    if not kept:
        raise PumaError(f"{folder.path} has kept no models; train with --snapshot-every SAMPLES.")
    if not inputs.pools:
        raise PumaError(f"{folder.path} was trained on images in memory; call score_dynamics with its models.")
    whole = open_pools([Path(pool) for pool in inputs.pools])
    if whole.fingerprint != inputs.pool_fingerprint:
        raise PumaError(f"the pool has changed since {folder.path} was begun; its models cannot be compared on it.")
    device = resolve_device(config.compute.device)
    models = (load_model(folder.path, weights=path).to(device) for path in kept)
    gradient, uncertainty = score_dynamics(models, whole, window=window, progress=show)
    links = (*(link for link in inputs.links if link.kind == "pool"), folder.link_to("run"))
    about = {"run": folder.path.name, "models": str(len(kept)), "window": str(window)}
    return [
        Scores(kind, whole.sample_id, values.numpy(), whole.fingerprint, about, links)
        for kind, values in (("input_gradient", gradient), ("uncertainty", uncertainty))
    ]
