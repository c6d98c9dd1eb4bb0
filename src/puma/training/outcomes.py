"""Difficulty scores of a finished run, from the outcomes it recorded."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError
from puma.processes import ProcessGroup, resolve_device
from puma.progress import progress_bar
from puma.scores import Scores
from puma.scores.difficulty import OUTCOMES, count_recorders, count_visits, outcome_file, read_outcomes
from puma.training.batches import load_samples, make_batch_source
from puma.training.run_folder import RunFolder

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
    source = make_batch_source(config, samples, ProcessGroup(0, 1, resolve_device("cpu")))
    whole = samples.whole
    links = (*(link for link in inputs.links if link.kind == "pool"), folder.link_to("run"))
    scores = []
    for outcome in found:

        def visits(outcome: str = outcome) -> Visits:
            with progress_bar(f"count {outcome}", config.steps, unit="steps", enabled=show) as advance:
                for start in range(0, config.steps, _STEPS):
                    steps = range(start, min(start + _STEPS, config.steps))
                    share = config.batch_size // ranks
                    files = [outcome_file(folder.path, outcome, rank, ranks) for rank in range(ranks)]
                    right = np.stack([read_outcomes(file, share, steps) for file in files], axis=2)
                    positions = np.stack([source.sampler.positions(step) for step in steps])
                    yield positions.ravel(), right.reshape(positions.shape).ravel()
                    advance(len(steps))

        counted = count_visits(len(samples.train), visits())
        for kind, values in (("cd", counted.difficulty), ("forgetting", counted.forgetting)):
            column = np.full(len(whole), np.nan, dtype=np.float32)
            column[samples.trained] = values
            name, made_from = f"{kind}_{outcome}", {"run": folder.path.name}
            scores.append(Scores(name, whole.sample_id, column, whole.fingerprint, made_from, links))
    return scores
