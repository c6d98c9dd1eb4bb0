"""Signed margins side by side with foolbox, adv-lib and a plain Algorithm 1, on nets tuned on and others, apart.

``PUMA_CIFAR10=DIR PUMA_FASHION=DIR python -m benchmarks margins`` (folders of ``puma data import``; nets:
margin_nets.py, and CONTRIBUTING.md for ``PUMA_ROBUST_NETS``). About ten minutes on one core. ``PUMA_EARLIER=SRC``
names the ``src`` folder of an earlier version, whose passes are told beside. ``PUMA_MARGIN_GROUPS=reported`` leaves
the nets out that were tuned on. Prints a table for each net, writes all to ``results/margins/`` as CSV and Markdown,
and draws time against tightness.

Time is processor time on right samples only, as the other libraries have no margins for wrong ones; the methods take
turns. Ratio is the mean over samples of distance / shortest distance that any method found, so 1 is best.
"""

import csv
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.margin_nets import REPORTED_ON, TUNED_ON, find_net, find_pools, name_data, right_samples
from benchmarks.side_by_side import stand_in
from puma.margins import METHODS, Margins, measure_margins
from puma.models import build

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "results" / "margins"
COUNT, BATCH, LARGE_BATCH, ROUNDS = 256, 128, 256, 2
SLOW = {"adv-lib FAB-30": 64}  # measured on so many samples, its time scaled up
OURS = tuple(METHODS)
BASE, RIVAL, DEFAULT = "foolbox LinfDeepFool", "adv-lib df", "puma deepfool"


@dataclass(frozen=True)
class Outcome:
    """One method on one net: seconds of each round, passes per sample, distances and success per sample."""

    seconds: list[float]
    forwards: float
    backwards: float
    distance: Tensor
    success: float


class Counted(nn.Module):
    """A model that counts the samples that pass through it, each way."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.forwards = self.backwards = 0

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        self.forwards += len(images)
        logits: Tensor = self.model(images)
        if logits.requires_grad:
            logits.register_hook(self._count)  # type: ignore[no-untyped-call]
        return logits

    def _count(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


def naive_algorithm_1(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Algorithm 1 with its slips corrected and nothing else: whole batches, fixed steps, ten bisections."""
    points = images.clone()
    for _ in range(100):
        points = points.detach().requires_grad_()
        logits = model(points)
        walking = logits.argmax(1) == labels
        if not walking.any():
            break
        loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
        step = 2 / 255 * torch.autograd.grad(loss, points)[0].sign()
        points = torch.where(walking[:, None, None, None], (points + step).clamp(0, 1), points)
    points = points.detach()
    low, high = torch.zeros(len(images)), torch.ones(len(images))
    for _ in range(10):
        middle = (low + high) / 2
        with torch.no_grad():
            inside = model(images + middle[:, None, None, None] * (points - images)).argmax(1) == labels
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    return images + high[:, None, None, None] * (points - images)


def other_libraries() -> dict[str, Callable[[nn.Module, Tensor, Tensor], Tensor]]:
    stand_in("torchvision", "torchvision.models", "visdom", "tqdm")
    from adv_lib.attacks import df, fab

    foolbox: Any = importlib.import_module("foolbox")

    def linf_deepfool(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        wrapped = foolbox.PyTorchModel(model.eval(), bounds=(0, 1))
        attack = foolbox.attacks.LinfDeepFoolAttack()
        found: Tensor = attack.run(wrapped, images, foolbox.criteria.Misclassification(labels))
        return found

    def in_batches(attack: Callable[..., Tensor]) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
        def run(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
            parts = zip(images.split(BATCH), labels.split(BATCH), strict=True)  # type: ignore[no-untyped-call]
            return torch.cat([attack(model, *part).detach() for part in parts])

        return run

    inf = float("inf")
    return {
        BASE: in_batches(linf_deepfool),
        RIVAL: in_batches(lambda m, x, y: df(m, x, y, norm=inf)),
        "adv-lib FAB-30": in_batches(lambda m, x, y: fab(m, x, y, norm=inf, n_iter=30)),
        "naive Algorithm 1": in_batches(naive_algorithm_1),
    }


def ours(method: str, **options: Any) -> Callable[[nn.Module, Tensor, Tensor], Margins]:
    return lambda model, images, labels: measure_margins(
        model, images, labels, method=method, boundary=True, **{"batch_size": BATCH, **options}
    )


def compare(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Outcome]:
    """Run every method in turns."""
    ways: dict[str, Callable[[nn.Module, Tensor, Tensor], Any]] = {
        **other_libraries(),
        **{f"puma {method}": ours(method) for method in OURS},
        f"{DEFAULT}, batch {LARGE_BATCH}": ours("deepfool", batch_size=LARGE_BATCH),
        f"{DEFAULT}, bf16": ours("deepfool", batch_size=LARGE_BATCH, autocast=torch.bfloat16),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    results: dict[str, tuple[Tensor, float, float]] = {}
    for way in ways.values():
        way(model, images[:16], labels[:16])
    names = list(ways)
    for turn in range(ROUNDS):
        for name in names[turn:] + names[:turn]:
            count = SLOW.get(name, len(images))
            counted = Counted(model)
            begun = time.process_time()
            # ours count for themselves, and know the model from the first try, as in a run over a pool
            found = ways[name](model if name.startswith("puma") else counted, images[:count], labels[:count])
            seconds[name].append((time.process_time() - begun) * len(images) / count)
            if isinstance(found, Margins):
                assert found.boundary is not None
                passes = found.forwards.float().mean().item(), found.backwards.float().mean().item()
                results[name] = (found.boundary, *passes)
            else:
                results[name] = (found, counted.forwards / count, counted.backwards / count)
    outcomes = {}
    for name, (points, forwards, backwards) in results.items():
        count = len(points)
        with torch.no_grad():
            success = (model(points).argmax(1) != labels[:count]).float().mean().item()
        distance = torch.full((len(images),), torch.nan)
        distance[:count] = (points - images[:count]).flatten(1).abs().amax(1)
        outcomes[name] = Outcome(seconds[name], forwards, backwards, distance, success)
    return outcomes


def tabulate(group: str, net: str, outcomes: dict[str, Outcome]) -> list[dict[str, object]]:
    best = torch.stack([outcome.distance.nan_to_num(nan=torch.inf) for outcome in outcomes.values()]).amin(0)
    base, rival = (statistics.median(outcomes[name].seconds) for name in (BASE, RIVAL))
    return [
        {
            "nets": group,
            "net": net,
            "method": name,
            "seconds": round(statistics.median(outcome.seconds), 3),
            "time_vs_foolbox": round(statistics.median(outcome.seconds) / base, 3),
            "times_as_fast_as_df": round(rival / statistics.median(outcome.seconds), 2),
            "forwards": round(outcome.forwards, 1),
            "backwards": round(outcome.backwards, 1),
            "ratio": round((outcome.distance / best).nanmean().item(), 4),
            "success": round(outcome.success, 4),
        }
        for name, outcome in outcomes.items()
    ]


def markdown(rows: list[dict[str, object]]) -> str:
    head = list(rows[0])
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(str(row[key]) for key in head)} |" for row in rows)]) + "\n"


def draw(rows: list[dict[str, object]], path: Path) -> None:
    from matplotlib.figure import Figure

    nets = sorted({str(row["net"]) for row in rows})
    figure = Figure(figsize=(4.5 * len(nets), 4.2), layout="constrained")
    for axes, net in zip(figure.subplots(1, len(nets), sharey=True, squeeze=False)[0], nets, strict=True):
        for row in (row for row in rows if row["net"] == net):
            mine = str(row["method"]).startswith("puma")
            where = float(str(row["time_vs_foolbox"])), float(str(row["ratio"]))
            axes.scatter(*where, color="tab:orange" if mine else "tab:grey", zorder=3)
            axes.annotate(str(row["method"]), where, xytext=(6, 4), textcoords="offset points", fontsize=8)
        axes.set_xscale("log")
        axes.set_title(net)
        axes.set_xlabel("processor time, foolbox = 1")
        axes.margins(x=0.25)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("distance / shortest found (1 is best)")
    figure.savefig(path, dpi=150)


def processor_time(way: Callable[[], object], rounds: int = 3) -> float:
    way()
    seconds = []
    for _ in range(rounds):
        begun = time.process_time()
        way()
        seconds.append(time.process_time() - begun)
    return min(seconds)


def widen(model: nn.Module, classes: int) -> nn.Module:
    """Give a net many more classes: noisy mixtures of its own, a little less likely."""
    wide = build("resnet4b", classes)
    state = model.state_dict()
    random = torch.Generator().manual_seed(0)
    mix = torch.softmax(2 * torch.randn(classes, 10, generator=random), 1)
    weight, bias = mix @ state["linear2.weight"], mix @ state["linear2.bias"] - 0.5
    weight += 0.2 * weight.std() * torch.randn(weight.shape, generator=random)
    weight[:10], bias[:10] = state["linear2.weight"], state["linear2.bias"]
    wide.load_state_dict({**state, "linear2.weight": weight, "linear2.bias": bias})
    return wide.eval()


def classes_and_cost(model: nn.Module, images: Tensor, labels: Tensor) -> str:
    """10 against 1000 classes, and ResNet-18 in multiples of one forward and backward."""
    lines = []
    few = processor_time(lambda: measure_margins(model, images, labels))
    wide = widen(model, 1000)
    with torch.no_grad():
        labels_wide = wide(images).argmax(1)
    many = processor_time(lambda: measure_margins(wide, images, labels_wide))
    lines.append(f"1000 classes against 10, deepfool: {many / few:.2f} times the time")
    big = build("resnet18", 10).eval()
    some = images[:64]
    with torch.no_grad():
        guesses = big(some).argmax(1)

    def once() -> None:
        points = some.clone().requires_grad_()
        torch.autograd.grad(big(points).sum(), points)

    unit = processor_time(once, rounds=2)
    for method in ("deepfool", "fast"):
        cost = processor_time(lambda chosen=method: measure_margins(big, some, guesses, method=chosen), rounds=1)  # type: ignore[misc]
        lines.append(f"ResNet-18, {method}: {cost / unit:.1f} forward+backward per sample ({unit / 64:.3f} s each)")
    return "\n\n".join(lines)


def earlier_passes(source: str) -> dict[str, dict[str, str]]:
    """Ask another version of the package for the passes of its search."""
    path = os.pathsep.join([source, str(ROOT)])
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.margin_nets"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    passes: dict[str, dict[str, str]] = json.loads(found.stdout.splitlines()[-1])
    return passes


def tell_passes() -> str:
    """Forwards / backwards a sample of ``deepfool``, by net, in this version and the earlier one."""
    versions = {"now": earlier_passes(str(ROOT / "src"))}
    if "PUMA_EARLIER" in os.environ:
        versions = {"before": earlier_passes(os.environ["PUMA_EARLIER"]), **versions}
    keys = list(next(iter(versions["now"].values())))
    lines = [f"| net | {' | '.join(f'{key}, {version}' for key in keys for version in versions)} |"]
    lines.append("|" + "---|" * (1 + len(keys) * len(versions)))
    lines += [
        f"| {net} | {' | '.join(found[net][key] for key in keys for found in versions.values())} |"
        for net in versions["now"]
    ]
    return "\n".join(lines)


def main() -> None:
    torch.set_num_threads(1)
    pools = find_pools()
    if not pools:
        print("skipped: needs PUMA_CIFAR10, PUMA_FASHION and PUMA_ROBUST_NETS; see CONTRIBUTING.md")
        return
    rows: list[dict[str, object]] = []
    wanted = os.environ.get("PUMA_MARGIN_GROUPS", "tuned,reported").split(",")
    for group, nets in (("tuned on", TUNED_ON), ("reported", REPORTED_ON)):
        for net in nets if group.split()[0] in wanted else ():
            train, test = pools[name_data(net)]
            model = find_net(net, {name_data(net): train})
            images, labels = right_samples(model, test, COUNT)
            rows += (found := tabulate(group, net, compare(model, images, labels)))
            print(markdown(found), flush=True)
    notes = f"{tell_passes()}\n\n{classes_and_cost(model, images, labels)}"
    print(notes)
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / "benchmark.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (OUT / "benchmark.md").write_text(f"{markdown(rows)}\n{notes}\n", encoding="utf-8")
    draw([row for row in rows if row["nets"] == "reported"] or rows, OUT / "benchmark.png")
    print(f"written: {OUT}")


if __name__ == "__main__":
    main()
