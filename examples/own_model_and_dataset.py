"""A dataset and a net of your own, from margins to a report.

    python examples/own_model_and_dataset.py --out own      # about a minute on one core

Replace ``Digits`` and ``Net`` by your own: any map-style dataset that gives (image, label), any ``nn.Module`` that
takes pixels in [0, 1] and gives logits. Everything lands in one folder, and a second call finds what is there.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset

import puma

EPS = 0.1  # an attack may change each pixel by this much of the range from black to white


class Digits(Dataset[tuple[Tensor, int]]):
    """Handwritten digits of 8 px; every fifth one is kept for the test."""

    classes = tuple("0123456789")

    def __init__(self, *, test: bool) -> None:
        images, labels = load_digits(return_X_y=True)
        rows = [row for row in range(len(labels)) if (row % 5 == 0) == test]
        self.images = torch.tensor(images[rows], dtype=torch.float32).view(-1, 1, 8, 8) / 16
        self.labels = labels[rows]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], int(self.labels[index])


class Net(nn.Module):
    """Two convolutions and a linear layer; normalisation belongs inside of the net."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.SiLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.SiLU(),
        )
        self.head = nn.Linear(32 * 4 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Map pixels (n, 1, 8, 8) in [0, 1] to logits (n, 10)."""
        logits: Tensor = self.head(self.features(images - 0.5).flatten(1))
        return logits


def main(out: Path, samples_seen: int) -> None:
    """Train a margin model, measure, plan, train again, attack both, write a report."""
    pool = puma.Pool.from_dataset(Digits(test=False))
    test = puma.Pool.from_dataset(Digits(test=True))
    pool.save(out / "pool")  # for the pictures in the report
    test.save(out / "test")
    torch.manual_seed(0)
    net = Net()

    settings: dict[str, Any] = {"recipe": "small-digits", "samples_seen": samples_seen, "eps": EPS}
    trades = puma.train(net, pool, out=out / "trades", **settings)
    margins = puma.measure_pool(trades.model, pool, out=out / "margins.parquet")
    plan = puma.make_plan(pool, margins, prune_easy=0.2, eps=EPS)
    plan.save(out / "plan.parquet")
    pruned = puma.train(net, pool, plan=out / "plan.parquet", out=out / "puma", **settings)

    print(pool, margins, plan, sep="\n")
    for name, run in (("TRADES", trades), ("PUMA", pruned)):
        accuracy = run.evaluate(test, name="test")
        print(f"{name:<7} {accuracy['clean']:.1%} right, {accuracy['cw']:.1%} under attack")
    print(f"report: {puma.write_report([out], out / 'report.html', title='My own digits')}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("own"), help="folder for everything")
    parser.add_argument("--samples-seen", type=int, default=35_000, help="length of each of the two trainings")
    arguments = parser.parse_args()
    main(arguments.out, arguments.samples_seen)
