"""Nets for the benchmark of margins: trained here with fixed seeds, kept in a folder, split in halves.

``TUNED_ON`` were looked at while the search was tuned; ``REPORTED_ON`` were not, and carry the reported figures.
``PUMA_MARGIN_NETS`` names the folder (``puma-runs/margin-nets`` unless set). Training takes minutes a net on one core.
``python -m benchmarks.margin_nets`` prints the passes of ``deepfool`` on all nets, by whatever version is on the path.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from puma.attacks import pgd
from puma.margins import measure_margins
from puma.models import build, load_weights
from puma.pools import Pool, to_unit

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = Path(os.environ.get("PUMA_ROBUST_NETS", ROOT / "data"))  # see CONTRIBUTING.md
KEPT = Path(os.environ.get("PUMA_MARGIN_NETS", ROOT / "puma-runs" / "margin-nets"))


@dataclass(frozen=True)
class NetRecipe:
    """A net to train: its layers, its images, and the radius of the attack it is trained under (0: none)."""

    layers: Callable[[], nn.Module]
    data: str
    eps: float = 0.0
    count: int = 60_000
    epochs: int = 4


def fully_connected(hidden: int) -> Callable[[], nn.Module]:
    """So many hidden layers of 256 on 28 px grey images."""

    def make() -> nn.Module:
        sizes = [784] + [256] * hidden
        layers = [part for i in range(hidden) for part in (nn.Linear(sizes[i], sizes[i + 1]), nn.ReLU())]
        return nn.Sequential(nn.Flatten(), *layers, nn.Linear(256, 10))

    return make


def convolutional() -> nn.Module:
    """Three convolutions without BN on 28 px grey images."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 4, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 4, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(32 * 49, 100), nn.ReLU(), nn.Linear(100, 10)),
    )


def convolutional_bn() -> nn.Module:
    """Five convolutions with BN on 32 px colour images."""
    widths, strides = (3, 24, 32, 48, 64, 64), (1, 2, 1, 2, 1)
    layers = [
        part
        for i in range(5)
        for part in (
            nn.Conv2d(widths[i], widths[i + 1], 3, stride=strides[i], padding=1, bias=False),
            nn.BatchNorm2d(widths[i + 1]),
            nn.ReLU(),
        )
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 10))


FASHION, CIFAR = "fashion-mnist", "cifar10"
RECIPES = {
    "fc2 normal": NetRecipe(fully_connected(2), FASHION),
    "fc4 normal": NetRecipe(fully_connected(4), FASHION),
    "fc2 robust": NetRecipe(fully_connected(2), FASHION, eps=0.1),
    "fc4 robust": NetRecipe(fully_connected(4), FASHION, eps=0.1),
    "conv normal": NetRecipe(convolutional, FASHION, count=30_000),
    "conv robust": NetRecipe(convolutional, FASHION, eps=0.1, count=30_000),
    "conv-bn normal": NetRecipe(convolutional_bn, CIFAR, count=20_000, epochs=5),
    "conv-bn robust": NetRecipe(convolutional_bn, CIFAR, eps=4 / 255, count=15_000, epochs=4),
}
TUNED_ON = ("fc2 normal", "fc4 robust", "conv robust", "conv-bn normal", "resnet4b 8/255")
REPORTED_ON = ("fc4 normal", "fc2 robust", "conv normal", "conv-bn robust", "resnet4b 2/255")


def train_net(recipe: NetRecipe, pool: Pool) -> nn.Module:
    """Train by Adam; under a PGD attack of five steps where the recipe names a radius."""
    torch.manual_seed(0)
    model = recipe.layers()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    total = recipe.epochs * (recipe.count // 128)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=total)
    random = np.random.default_rng(0)
    for step in range(total):
        batch = pool.batch(np.sort(random.choice(recipe.count, 128, replace=False)))
        images, labels = to_unit(batch.images).contiguous(), batch.labels
        if recipe.eps:
            eps = recipe.eps * min(1.0, 3 * step / total)  # nets of this size stay at chance without a warm-up
            images = pgd(model, images, labels, eps, steps=5) if eps else images
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return model.eval()


def find_net(name: str, pools: dict[str, Pool]) -> nn.Module:
    """Return a net by name: the public robust ones, or one from the folder, trained first if it is not there."""
    if name.startswith("resnet4b"):
        radius = name.split()[1].split("/")[0]
        model = load_weights(build("resnet4b", 10), PUBLIC / f"robust_cifar10_eps{radius}.safetensors").eval()
        with torch.no_grad():
            for (
                weight
            ) in model.parameters():  # of the net for 8/255, a fifth; others' code is ten times as slow with them
                weight[weight.abs() < torch.finfo(weight.dtype).tiny] = 0
        return model
    recipe, path = RECIPES[name], KEPT / f"{name.replace(' ', '-')}.safetensors"
    if not path.exists():
        begun = time.process_time()
        model = train_net(recipe, pools[recipe.data])
        KEPT.mkdir(parents=True, exist_ok=True)
        save_file(model.state_dict(), path)
        print(f"trained {name} in {time.process_time() - begun:.0f} s", flush=True)
    model = recipe.layers()
    model.load_state_dict(load_file(path))
    return model.eval()


def right_samples(model: nn.Module, pool: Pool, count: int, start: int = 0) -> tuple[Tensor, Tensor]:
    """Return the first samples of a pool that the model gets right."""
    batch = pool.batch(np.arange(start, start + 3 * count))
    images = to_unit(batch.images).contiguous()
    with torch.no_grad():
        right = model(images).argmax(1) == batch.labels
    return images[right][:count], batch.labels[right][:count]


def name_data(net: str) -> str:
    """Return which images a net is for."""
    return CIFAR if net.startswith("resnet4b") else RECIPES[net].data


def find_pools() -> dict[str, tuple[Pool, Pool]]:
    """Return train and test pool by name of the images; nothing where a folder is not named."""
    places = {FASHION: os.environ.get("PUMA_FASHION"), CIFAR: os.environ.get("PUMA_CIFAR10")}
    if not PUBLIC.is_dir() or None in places.values():
        return {}
    return {
        name: (Pool.open(Path(str(place)) / "train"), Pool.open(Path(str(place)) / "test"))
        for name, place in places.items()
    }


def count_passes(count: int = 256) -> dict[str, dict[str, str]]:
    """Return forwards / backwards a sample of ``deepfool``: right samples in both norms, and wrong ones."""
    found: dict[str, dict[str, str]] = {}
    for net in TUNED_ON + REPORTED_ON:
        test = find_pools()[name_data(net)][1]
        model = find_net(net, {})
        batch = test.batch(np.arange(3 * count))
        images = to_unit(batch.images).contiguous()
        with torch.no_grad():
            right = model(images).argmax(1) == batch.labels
        found[net] = {}
        for name, some, norm in (("right", right, "linf"), ("right, L2", right, "l2"), ("wrong", ~right, "linf")):
            margins = measure_margins(model, images[some][:count], batch.labels[some][:count], norm=norm)
            passes = margins.forwards.float().mean().item(), margins.backwards.float().mean().item()
            uncrossed = int((~margins.crossed).sum())
            found[net][name] = f"{passes[0]:.1f} / {passes[1]:.1f}" + (f" ({uncrossed} uncrossed)" if uncrossed else "")
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(count_passes()))
