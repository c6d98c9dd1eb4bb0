"""Ties, logits near the ends of fp32's range, infinite gradients: a right status, and never a false crossing."""

import pytest
import torch
from torch import Tensor, nn

from margins.problems import METHODS, NORMS
from puma.margins import Margins, Status, measure_margins

_RANDOM = torch.Generator().manual_seed(0)
_IMAGES = 0.1 + 0.8 * torch.rand(6, 3, 4, 4, generator=_RANDOM)
_WEIGHT = torch.randn(4, 48, generator=_RANDOM)
_BIAS = -(_IMAGES.flatten(1) @ _WEIGHT.T).mean(0)


class Lines(nn.Module):
    """Affine logits, row by row and bit by bit the same in any batch, times a factor."""

    def __init__(self, weight: Tensor = _WEIGHT, bias: Tensor = _BIAS, factor: float = 1.0) -> None:
        super().__init__()
        self.weight, self.bias, self.factor = nn.Parameter(weight.clone()), nn.Parameter(bias.clone()), factor

    def forward(self, images: Tensor) -> Tensor:
        return ((images.flatten(1)[:, None] * self.weight).sum(2) + self.bias) * self.factor


class Twins(Lines):
    """The first two classes have the same logit everywhere: the second is never predicted."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.weight[1], self.bias[1] = self.weight[0], self.bias[0]


class Rounded(Lines):
    """Logits are whole numbers, so ties are everywhere; the gradient is that of the plain ones."""

    def forward(self, images: Tensor) -> Tensor:
        logits = super().forward(images)
        return logits + (logits.round() - logits).detach()


class Same(nn.Module):
    """One value for all classes."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1).mean(1, keepdim=True).expand(-1, 3) * 1.0


class Zero(nn.Module):
    """Two lines that cross, and are no larger than rounding where they do."""

    def forward(self, images: Tensor) -> Tensor:
        total = images.flatten(1).mean(1) - 0.75
        return torch.stack([-total, total], 1)


def measure(model: nn.Module, labels: Tensor, method: str, norm: str) -> Margins:
    """Measure, and see that every crossing is one by a plain forward, and the sign that of the prediction."""
    result = measure_margins(model, _IMAGES, labels, method=method, norm=norm, boundary=True)
    assert result.boundary is not None
    with torch.no_grad():
        right = model(_IMAGES).argmax(1) == labels
        beyond = (model(result.boundary).argmax(1) == labels) != right
        alone = torch.cat([model(point[None]) for point in result.boundary]).argmax(1) == labels
    assert beyond[result.crossed].all()
    assert (alone != right)[result.crossed].all()
    signed = result.margin.isfinite()
    assert torch.equal((result.margin > 0)[signed], right[signed])
    return result


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", METHODS)
def test_a_tie_is_no_crossing(method: str, norm: str, rank: int) -> None:
    for model in (Twins(), Rounded(), Zero(), Same()):
        with torch.no_grad():
            logits = model(_IMAGES)
        labels = logits.argmax(1) if rank == 0 else logits.argsort(dim=1, descending=True, stable=True)[:, 1]
        result = measure(model, labels, method, norm)
        assert not (result.status == Status.NON_FINITE).any()
        if isinstance(model, Same):
            assert (result.status == Status.ZERO_GRADIENT).all()
        if isinstance(model, Twins):
            never = labels == 1
            assert not result.crossed[never].any()
            if rank == 0 and method in ("deepfool", "tight"):  # past the twin, to a class that does overtake
                assert result.crossed.all()


@pytest.mark.parametrize("factor", [1e-40, 1e-30, 1e30, 1e37])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", METHODS)
def test_the_scale_of_logits_does_not_matter(method: str, norm: str, factor: float) -> None:
    with torch.no_grad():
        labels = Lines()(_IMAGES).argmax(1)
    labels[1] = (labels[1] + 1) % 4
    plain = measure(Lines(), labels, method, norm)
    scaled = measure(Lines(factor=factor), labels, method, norm)
    assert torch.equal(plain.status, scaled.status)
    # logits of 1e-40 have fewer digits
    torch.testing.assert_close(scaled.margin, plain.margin, rtol=1e-2 if factor == 1e-40 else 2e-3, atol=0)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", METHODS)
def test_an_infinite_gradient_is_a_status(method: str, norm: str) -> None:
    class Root(nn.Module):
        """The root of a distance: infinitely steep at the image itself."""

        def forward(self, images: Tensor) -> Tensor:
            way = (images.flatten(1) - 0.5).abs().sqrt().sum(1)
            return torch.stack([3 - way, 0 * way], 1)

    images = torch.full((2, 3, 4, 4), 0.5)
    result = measure_margins(Root(), images, torch.zeros(2, dtype=torch.int64), method=method, norm=norm)
    assert (result.status == Status.NON_FINITE).all()
    assert result.margin.isnan().all()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", METHODS)
def test_one_at_a_time_gives_the_same_bits(method: str, norm: str) -> None:
    """Where the model itself is the same in any batch, so are margins, to the last bit."""
    random = torch.Generator().manual_seed(2)
    images = torch.rand(100, 3, 4, 4, generator=random)
    labels = torch.randint(4, (100,), generator=random)
    model = Lines()
    together = measure_margins(model, images, labels, method=method, norm=norm, batch_size=100)
    chosen = range(0, 100, 13)
    alone = [measure_margins(model, images[i : i + 1], labels[i : i + 1], method=method, norm=norm) for i in chosen]
    for name in ("margin", "status", "rival", "prediction", "forwards", "backwards"):
        ours = torch.cat([getattr(one, name) for one in alone])
        assert torch.equal(ours, getattr(together, name)[chosen.start :: chosen.step]), name
