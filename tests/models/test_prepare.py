"""The copy for measuring gives the same logits, and leaves the model alone."""

import pytest
import torch
from torch import Tensor, nn

from puma.models import build
from puma.models.prepare import fold_batchnorm, frozen, prepare_model


def settled(name: str) -> nn.Module:
    """A model whose BN statistics are not trivial."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build(name, 10)
        model.train()
        for _ in range(3):
            model(torch.rand(8, model_channels(name), 32, 32))
    return model.eval()


def model_channels(name: str) -> int:
    return 1 if name.startswith("small") else 3


@pytest.mark.parametrize(
    ("name", "left"), [("resnet18-slim", 0), ("preactresnet18", 9), ("small-14px", 0), ("resnet4b", 0)]
)
def test_same_logits_with_batchnorm_folded(name: str, left: int) -> None:
    model = settled(name)
    images = torch.rand(6, model_channels(name), 32, 32)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    ready = prepare_model(model, images)
    assert ready is not model
    with torch.no_grad():
        torch.testing.assert_close(ready(images), model(images), rtol=1e-3, atol=1e-4)
    assert sum(isinstance(module, nn.BatchNorm2d) for module in ready.modules()) == left
    assert not any(parameter.requires_grad for parameter in ready.parameters())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_convolution_used_twice_is_not_folded() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn, self.head = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Linear(3, 2)

        def forward(self, images: Tensor) -> Tensor:
            logits: Tensor = self.head((self.bn(self.conv(images)) + self.conv(images)).mean((2, 3)))
            return logits

    model = Twice().eval()
    assert fold_batchnorm(model) is model


def test_a_model_that_cannot_be_traced_or_copied_is_used_as_it_is() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(12, 2)

        def forward(self, images: Tensor) -> Tensor:
            logits: Tensor = self.linear(images.flatten(1))
            return logits if logits.sum() > 0 else 2 * logits

    class Unique(nn.Module):
        def __deepcopy__(self, memo: object) -> nn.Module:
            raise RuntimeError("only one of me")

        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1)[:, :2]

    images = torch.rand(3, 3, 2, 2)
    model = Branching()
    with torch.no_grad():
        assert torch.equal(prepare_model(model, images)(images), model(images))
    unique = Unique()
    assert prepare_model(unique, images) is unique


def test_the_copy_has_no_subnormal_weights() -> None:
    model = build("resnet4b", 10).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter[parameter.abs() < parameter.abs().median()] = 1e-40
    before = {key: value.clone() for key, value in model.state_dict().items()}
    images = torch.rand(4, 3, 32, 32)
    with frozen(model):  # as where it is measured: subnormal numbers count as 0 there
        ready = prepare_model(model, images)
    assert any((p == 0).any() for p in ready.parameters())
    assert all(((p == 0) | (p.abs() > 1e-38)).all() for p in ready.parameters())
    with torch.no_grad():
        torch.testing.assert_close(ready(images), model(images))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_subnormal_weights_that_count_are_kept() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e-39)
    images = torch.rand(4, 1, 4, 4)
    ready = prepare_model(model, images)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in ready.state_dict().items())
    with torch.no_grad():
        assert (ready(images) != 0).all()
