"""How well margins find wrong labels, beside plain confidence and cleanlab (``python -m benchmarks.wrong_labels``).

Labels of digits and Fashion-MNIST (14 px) are changed at random, 5 and 10 % of them, with three seeds. Precision is
among the first k samples of each order, k the number of changed labels, so that recall is the same number; cleanlab
also draws a line of its own. Goes on where it was stopped. Digits take 25 minutes on one core, a quarter of it plain;
plain nets on Fashion-MNIST 15: ``python -m benchmarks.wrong_labels FILE.csv POOL plain``. Needs: pip install cleanlab.
``python docs/measured.py`` puts the numbers into docs/wrong-labels.md.
"""

import csv
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import puma
from puma.margins import rank_quality
from puma.models import build

SHARES, SEEDS, FOLDS, REPEATS = (0.05, 0.10), (0, 1, 2), 4, 3
# of an order: precision among the first k and the first k / 2; of what is flagged: precision and recall
HEADER = ("images", "nets", "share", "seed", "method", "first", "second")
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Images:
    """Images (n, 1, h, w) in [0, 1], labels as given, and how a net for them is trained."""

    name: str
    pixels: Tensor
    labels: Tensor
    net: str
    epochs: int
    eps: float


def load_digits() -> Images:
    """All 1,797 digits of scikit-learn."""
    from sklearn.datasets import load_digits as load

    found = load()
    pixels = torch.from_numpy(found.images).float().div(16).unsqueeze(1)
    return Images("digits", pixels, torch.from_numpy(found.target).long(), "small-8px", 20, 0.1)


def load_fashion(folder: Path, count: int = 4000) -> Images:
    """Return the first training images of a Fashion-MNIST pool, made half as large."""
    pool = puma.Pool.open(folder)
    batch = pool.batch(np.arange(count))
    pixels = nn.functional.avg_pool2d(batch.images.float().div(255), 2)
    return Images("Fashion-MNIST", pixels, batch.labels, "small-14px", 10, 0.06)


def train_net(images: Images, labels: Tensor, rows: Tensor, seed: int, *, robust: bool) -> nn.Module:
    """Train a fresh net on some rows: plainly, or on attacks of three steps of PGD."""
    torch.manual_seed(seed)
    net = build(images.net, 10, channels=1)
    steps = images.epochs * -(-len(rows) // 128)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
    for _ in range(images.epochs):
        for part in torch.split(rows[torch.randperm(len(rows))], 128):
            pixels, given = images.pixels[part], labels[part]
            net.train()
            if robust:
                attacked = puma.pgd(net.eval(), pixels, given, eps=images.eps, steps=3)
                net.train()
                loss = nn.functional.cross_entropy(net(attacked), given)
            else:
                loss = nn.functional.cross_entropy(net(pixels), given)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            if schedule.last_epoch < steps - 1:
                schedule.step()
    return net.eval()


def judge(net: nn.Module, images: Images, labels: Tensor, rows: Tensor) -> tuple[Numbers, Numbers]:
    """Return margins (k,) and probabilities (k, 10) of some rows."""
    with torch.no_grad():
        shares = torch.cat([net(part).softmax(1) for part in torch.split(images.pixels[rows], 512)])
    found = puma.measure_margins(net, images.pixels[rows], labels[rows], batch_size=512)
    return found.margin.double().numpy(), shares.double().numpy()


def judge_unseen(images: Images, labels: Tensor, seed: int, *, robust: bool) -> tuple[Numbers, Numbers]:
    """Judge every sample by a net that was not trained on it, fold by fold."""
    margins, shares = np.empty(len(labels)), np.empty((len(labels), 10))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    for fold in range(FOLDS):
        apart = order[fold::FOLDS]
        others = torch.cat([order[index::FOLDS] for index in range(FOLDS) if index != fold])
        net = train_net(images, labels, others, seed * FOLDS + fold, robust=robust)
        margins[apart], shares[apart] = judge(net, images, labels, apart)
    return margins, shares


def change_labels(labels: Tensor, share: float, seed: int) -> tuple[Tensor, NDArray[np.bool_]]:
    """Give a share of the samples one of the nine other labels; return the labels and which were changed."""
    generator = torch.Generator().manual_seed(1000 + seed)
    rows = torch.randperm(len(labels), generator=generator)[: round(share * len(labels))]
    given = labels.clone()
    given[rows] = (labels[rows] + torch.randint(1, 10, (len(rows),), generator=generator)) % 10
    return given, (given != labels).numpy()


def measure_precision(quality: Numbers, changed: NDArray[np.bool_], first: float = 1.0) -> float:
    """Return the share of changed labels among the worst, as many as ``first`` times the changed ones."""
    worst = np.argsort(np.where(np.isnan(quality), np.inf, quality), kind="stable")[: round(first * changed.sum())]
    return float(changed[worst].mean())


def compare_orders(images: Images, share: float, seed: int, *, robust: bool) -> list[tuple[str, float, float]]:
    """Return method, precision (= recall) at k and precision at k / 2; of what is flagged, precision and recall."""
    labels, changed = change_labels(images.labels, share, seed)
    rows, given = torch.arange(len(labels)), labels.numpy()
    own = np.arange(len(labels)), given
    nets = [train_net(images, labels, rows, seed + 100 * repeat, robust=robust) for repeat in range(REPEATS)]
    seen = [judge(net, images, labels, rows) for net in nets]
    unseen = [judge_unseen(images, labels, REPEATS * seed + repeat, robust=robust) for repeat in range(REPEATS)]
    mean_seen, mean = (np.mean([shares for _, shares in judged], axis=0) for judged in (seen, unseen))
    orders = {
        "margin, net trained on the samples": seen[0][0],
        "confidence, net trained on the samples": seen[0][1][own],
        f"margin, {REPEATS} nets trained on the samples, by rank": rank_quality([margins for margins, _ in seen]),
        f"confidence, {REPEATS} nets trained on the samples, mean": mean_seen[own],
        "margin, nets that did not see them": unseen[0][0],
        "confidence, nets that did not see them": unseen[0][1][own],
        f"margin, {REPEATS} such nets by rank": rank_quality([margins for margins, _ in unseen]),
        f"confidence, {REPEATS} such nets, mean": mean[own],
    }
    told = [
        (name, measure_precision(order, changed), measure_precision(order, changed, 0.5))
        for name, order in orders.items()
    ]
    told += [_count_flagged("flagged: margin < 0, nets that did not see them", unseen[0][0] < 0, changed)]
    try:
        from cleanlab.filter import find_label_issues  # type: ignore[import-not-found,unused-ignore]
        from cleanlab.rank import get_label_quality_scores  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        sys.exit("needs cleanlab: pip install -c constraints.txt cleanlab")
    for name, shares in (("cleanlab", unseen[0][1]), (f"cleanlab, {REPEATS} such nets, mean", mean)):
        scores = get_label_quality_scores(given, shares, method="normalized_margin")
        told.append((f"{name}: normalized_margin", measure_precision(scores, changed),
                     measure_precision(scores, changed, 0.5)))  # fmt: skip
        told.append(_count_flagged(f"flagged: {name}", find_label_issues(given, shares, n_jobs=1), changed))
    return told


def _count_flagged(name: str, flagged: NDArray[np.bool_], changed: NDArray[np.bool_]) -> tuple[str, float, float]:
    hits = float((flagged & changed).sum())
    return name, hits / max(int(flagged.sum()), 1), hits / float(changed.sum())


def main(out: str = "benchmarks/wrong_labels.csv", fashion: str = "", kinds: str = "plain,robust") -> None:
    """Run what the file does not hold yet; add a line per images, net, share, seed and method."""
    path = Path(out)
    if not path.is_file():
        path.write_text(",".join(HEADER) + "\n", encoding="utf-8")
    with path.open(encoding="utf-8", newline="") as file:
        done = {tuple(line[:4]) for line in csv.reader(file)}
    sources: list[Callable[[], Images]] = [load_digits]
    sources += [lambda: load_fashion(Path(fashion))] if fashion else []
    for images, kind, share, seed in product([source() for source in sources], kinds.split(","), SHARES, SEEDS):
        place = (images.name, kind, str(share), str(seed))
        if place in done:
            continue
        begun = time.perf_counter()
        found = compare_orders(images, share, seed, robust=kind == "robust")
        with path.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(
                [*place, name, f"{one:.4f}", f"{two:.4f}"] for name, one, two in found
            )
        print(f"{images.name} {kind} {share:.0%} seed {seed}: {time.perf_counter() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
