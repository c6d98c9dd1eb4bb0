"""A whole TRADES-10 step against plain ones as published codes write them: ``python -m benchmarks train_step``.

Plain means fp32, NCHW, a Python loop over parameters for the average, torch's default SGD. The authors of TRADES attack
in eval mode and compute the clean prediction anew in every attack step; Wang et al. attack with BN in training mode
and compute it once before the attack. Ours is compared with each under the same BN policy, and with the bare
passes it cannot do without; bf16 and BN folded into the convolutions of the eval-mode attack stand beside it. Before
that, a net of which a fifth of the weights are subnormal, as of a public robust net, is passed with and without them.
Seconds are processor time of one thread. About eight minutes on a free core.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.side_by_side import interleaved, print_table
from puma.models import build, flush_subnormals, frozen
from puma.models.prepare import BatchNormMode
from puma.processes import ProcessGroup
from puma.training import TrainConfig
from puma.training.batches import TrainBatch
from puma.training.config import AttackConfig, ComputeConfig
from puma.training.step import make_train_state, train_step

EPS, STEP, STEPS, BETA = 8 / 255, 2 / 255, 10, 5.0


def main() -> None:
    torch.manual_seed(0)
    compare_subnormals()
    for name, count, rounds in (("resnet18-slim", 32, 5), ("resnet18", 8, 3)):
        for policy in ("eval", "batch"):
            compare(name, count, rounds, "batch" if policy == "batch" else "eval")


def compare_subnormals(share: float = 0.2) -> None:
    """A forward and a backward pass with subnormal weights, as they are and flushed."""
    net = build("resnet4b", 10).eval().requires_grad_(False)
    for weight in net.parameters():
        weight[torch.rand(weight.shape) < share] = 1e-40
    images = torch.rand(64, 3, 32, 32, requires_grad=True)

    def once() -> None:
        torch.autograd.grad(net(images).sum(), images)

    def flushed() -> None:
        with flush_subnormals():
            once()

    ways: dict[str, Callable[[], object]] = {"flushed": flushed, "as it is": once}
    print_table("resnet4b, a fifth of the weights subnormal", interleaved(ways, rounds=3), "flushed")


def compare(name: str, count: int, rounds: int, policy: BatchNormMode) -> None:
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(256, size=(count, 32, 32, 3)).astype(np.uint8)).permute(0, 3, 1, 2)
    labels = torch.from_numpy(rng.integers(10, size=count))
    batch = TrainBatch(1, pixels, labels, torch.full((count,), EPS), np.arange(count), count)
    attack = AttackConfig(eps=EPS, step_size=STEP, steps=STEPS, batchnorm=policy)
    config = replace(TrainConfig(model=name, batch_size=count), attack=attack)
    processes = ProcessGroup(0, 1, torch.device("cpu"))
    state = make_train_state(build(name, 10), config, processes)
    fast: dict[str, TrainConfig] = {"puma, bf16": replace(config, compute=ComputeConfig(precision="bf16"))}
    if policy == "eval":
        fast["puma, folded"] = replace(config, compute=ComputeConfig(fold_batchnorm=True))
        fast["puma, bf16, folded"] = replace(config, compute=ComputeConfig(precision="bf16", fold_batchnorm=True))
    states = {label: make_train_state(build(name, 10), one, processes) for label, one in fast.items()}
    bare = build(name, 10).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    images = (pixels.float() / 255).contiguous()
    last = images.contiguous(memory_format=torch.channels_last)
    ways: dict[str, Callable[[], object]] = {
        "puma": lambda: train_step(state, batch, config),
        "bare passes": lambda: bare_passes(bare, last, policy),
        "plain": plain_step(build(name, 10), images, labels, policy),
        **{label: partial(train_step, states[label], batch, one) for label, one in fast.items()},
    }
    print_table(f"{name}, {count} images, BN in the attack: {policy}", interleaved(ways, rounds=rounds), "puma")


def bare_passes(model: nn.Module, images: Tensor, policy: BatchNormMode) -> None:
    """The passes of one step and nothing else: the attack's to the image, the loss's to the weights."""
    with frozen(model, policy):
        if policy == "eval":
            with torch.no_grad():
                model(images)
        for _ in range(STEPS):
            point = images.detach().requires_grad_()
            torch.autograd.grad(model(point).sum(), point)
    model.zero_grad()
    loss: Tensor = model(images).sum() + model(images).sum()
    loss.backward()  # type: ignore[no-untyped-call]


def plain_step(model: nn.Module, images: Tensor, labels: Tensor, policy: BatchNormMode) -> Callable[[], object]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, nesterov=True, weight_decay=5e-4)
    average = copy.deepcopy(model)

    def step() -> None:
        attacked = attack_as_trades(model, images) if policy == "eval" else attack_as_wang(model, images)
        model.train()
        optimizer.zero_grad()
        clean = model(images)
        robust = F.kl_div(F.log_softmax(model(attacked), 1), F.softmax(clean, 1), reduction="batchmean")
        loss = F.cross_entropy(clean, labels, label_smoothing=0.1) + BETA * robust
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        for mine, its in zip(average.parameters(), model.parameters(), strict=True):
            mine.data *= 0.995
            mine.data += its.data * 0.005

    return step


def attack_as_trades(model: nn.Module, images: Tensor) -> Tensor:
    model.eval()
    current = images + 0.001 * torch.randn_like(images)
    for _ in range(STEPS):
        current.requires_grad_()
        divergence = F.kl_div(F.log_softmax(model(current), 1), F.softmax(model(images), 1), reduction="sum")
        current = stepped(current, torch.autograd.grad(divergence, [current])[0], images)
    return current


def attack_as_wang(model: nn.Module, images: Tensor) -> Tensor:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats = False
    target = F.softmax(model(images), 1)
    current = images + torch.empty_like(images).uniform_(-EPS, EPS)
    for _ in range(STEPS):
        current.requires_grad_()
        divergence = F.kl_div(F.log_softmax(model(current), 1), target, reduction="sum")
        current = stepped(current, torch.autograd.grad(divergence, [current], retain_graph=True)[0], images)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats = True
    return current


def stepped(current: Tensor, gradient: Tensor, images: Tensor) -> Tensor:
    moved = current.detach() + STEP * torch.sign(gradient.detach())
    return torch.clamp(torch.min(torch.max(moved, images - EPS), images + EPS), 0.0, 1.0)


if __name__ == "__main__":
    begun = time.perf_counter()
    main()
    print(f"{time.perf_counter() - begun:.0f} s")
