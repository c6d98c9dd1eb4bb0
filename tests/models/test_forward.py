"""The nets against the same arithmetic written down flat: order of layers, activations, where shortcuts branch off."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from puma.models import build

State = dict[str, Tensor]


def conv(state: State, name: str, x: Tensor, stride: int = 1) -> Tensor:
    weight = state[f"{name}.weight"]
    return F.conv2d(x, weight, state.get(f"{name}.bias"), stride, weight.shape[-1] // 2)


def bn(state: State, name: str, x: Tensor) -> Tensor:
    mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
    scale = state[f"{name}.weight"] / (var + 1e-5).sqrt()
    return x * scale[:, None, None] + (state[f"{name}.bias"] - mean * scale)[:, None, None]


def resnet(state: State, x: Tensor) -> Tensor:
    x = F.relu(bn(state, "bn1", conv(state, "conv1", x)))
    for stage in range(1, 5):
        for block in range(2):
            at, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            y = F.relu(bn(state, f"{at}.bn1", conv(state, f"{at}.conv1", x, stride)))
            y = bn(state, f"{at}.bn2", conv(state, f"{at}.conv2", y))
            if f"{at}.shortcut.0.weight" in state:
                x = bn(state, f"{at}.shortcut.1", conv(state, f"{at}.shortcut.0", x, stride))
            x = F.relu(y + x)
    return x.mean((2, 3)) @ state["linear.weight"].T + state["linear.bias"]


def pre_activated(state: State, x: Tensor, at: str, stride: int) -> Tensor:
    y = bn(state, f"{at}.bn1", x)
    y = y * torch.sigmoid(y)
    if f"{at}.shortcut.weight" in state:
        x = conv(state, f"{at}.shortcut", y, stride)
    y = bn(state, f"{at}.bn2", conv(state, f"{at}.conv1", y, stride))
    return conv(state, f"{at}.conv2", y * torch.sigmoid(y)) + x


def head(state: State, x: Tensor) -> Tensor:
    x = bn(state, "bn", x)
    return (x * torch.sigmoid(x)).mean((2, 3)) @ state["linear.weight"].T + state["linear.bias"]


def preact_resnet(state: State, x: Tensor) -> Tensor:
    x = conv(state, "stem", x)
    for stage in range(4):
        for block in range(2):
            x = pre_activated(state, x, f"stages.{stage}.{block}", 2 if stage and block == 0 else 1)
    return head(state, x)


def preact_resnet_224(state: State, x: Tensor) -> Tensor:
    x = F.max_pool2d(conv(state, "stem.0", x, 2), 3, 2, 1)
    for stage in range(4):
        for block in range(2):
            x = pre_activated(state, x, f"stages.{stage}.{block}", 2 if stage and block == 0 else 1)
    return head(state, x)


def wide_resnet(state: State, x: Tensor) -> Tensor:
    x = conv(state, "conv", x)
    for group in range(1, 4):
        for block in range(4):
            x = pre_activated(state, x, f"group{group}.{block}", 2 if group > 1 and block == 0 else 1)
    return head(state, x)


@pytest.mark.parametrize(
    ("name", "flat", "size"),
    [
        ("resnet18-slim", resnet, 16),
        ("preactresnet18", preact_resnet, 8),
        ("preactresnet18-224px", preact_resnet_224, 32),
        ("wrn28-10", wide_resnet, 4),
    ],
)
def test_forward_pass(name: str, flat: Callable[[State, Tensor], Tensor], size: int) -> None:
    torch.manual_seed(0)
    model = build(name, 5)
    state = model.state_dict()
    for key, value in state.items():  # statistics and scales that are not 0 and 1
        if "running_var" in key or (value.dim() == 1 and key.endswith("weight")):
            value.uniform_(0.5, 1.5)
        elif "running_mean" in key or (value.dim() == 1 and key.endswith("bias")):
            value.uniform_(-0.3, 0.3)
    images = torch.rand(2, 3, size, size)
    with torch.no_grad():
        found = model.eval()(images)
        expected = flat(state, (images - state["normalize.mean"]) / state["normalize.std"])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
