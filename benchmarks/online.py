"""What the online method and soft pruning cost over plain TRADES (``python -m benchmarks online``).

A net is trained on the digits first, since the search is longer where more samples are undecided.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file

from benchmarks.side_by_side import interleaved, print_table
from puma.pools.datasets import read_digits
from puma.pools.writer import write_parts
from puma.processes import ProcessGroup, resolve_device
from puma.training import TrainConfig, find_recipe
from puma.training.batches import load_samples, make_batch_source
from puma.training.config import OnlineConfig, SoftPruningConfig
from puma.training.run import make_model, start_run
from puma.training.step import make_train_state, train_step

STEPS = 15


def main(rounds: int = 7) -> None:
    """Print the ratio of steps with and without it."""
    base = replace(find_recipe("small-digits"), samples_seen=20_000, batch_size=256)
    ways = {
        "TRADES": base,
        "online, no pruning": replace(base, online=OnlineConfig("ours", prune_fraction=0.0)),
        "online, 20 % pruned and replaced": replace(base, online=OnlineConfig("ours", prune_fraction=0.2, warmup=0.0)),
        "online, 20 %, by the average, per class": replace(
            base,
            online=OnlineConfig("ours", prune_fraction=0.2, warmup=0.0, margins_by="average", per_class=True),
        ),
        "soft pruning (InfoBatch)": replace(base, soft_pruning=SoftPruningConfig(0.5)),
        "online, as in the paper": replace(base, online=OnlineConfig("paper", prune_at=3.25 * base.attack.eps)),
    }
    with tempfile.TemporaryDirectory(prefix="puma-bench-") as folder:
        pool = write_parts(read_digits(), Path(folder) / "digits") / "train"
        run = start_run(base, [pool], Path(folder) / "run", show=False)
        seconds = interleaved({name: stepper(config, pool, run) for name, config in ways.items()}, rounds=rounds)
    print_table(f"{STEPS} steps of {base.batch_size}, {base.model}", seconds, "TRADES")


def stepper(config: TrainConfig, pool: Path, run: Path) -> Callable[[], None]:
    """Return a function that takes the next few steps from the trained weights."""
    processes = ProcessGroup(0, 1, resolve_device("cpu"))
    samples = load_samples(config, [pool], None)
    model = make_model(config, samples.inputs)
    model.load_state_dict(load_file(run / "model.safetensors"))
    state = make_train_state(model, config, processes, len(samples.train))
    source = make_batch_source(config, samples, processes)
    batches = [source.batch(step) for step in range(STEPS)]
    quiet = replace(config, optimizer=replace(config.optimizer, lr=1e-6))

    def steps() -> None:
        for batch in batches:
            train_step(state, batch, quiet)

    return steps


if __name__ == "__main__":
    main()
