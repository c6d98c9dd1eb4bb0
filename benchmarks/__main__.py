"""``python -m benchmarks [NAME ...]``: run the named benchmarks, or all of them."""

import importlib
import sys

NAMES = [
    "attacks",
    "generation",
    "margins",
    "online",
    "perceptron",
    "plan",
    "pools",
    "predicted",
    "report",
    "scale",
    "shards",
    "train_step",
]


def main() -> None:
    """Run them one after another."""
    for name in sys.argv[1:] or NAMES:
        if name not in NAMES:
            sys.exit(f"unknown benchmark {name!r}; known: {', '.join(NAMES)}.")
        print(f"== {name}", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main()
