"""What holds for any model: sign, flip, invariance, statuses, and a model left as it was."""

import copy

import pytest
import torch
from torch import Tensor, nn

from margins.problems import METHODS, NORMS, affine, net_images, relabel, smooth_net
from puma.errors import PumaError
from puma.margins import Status, measure_margins


def setting() -> tuple[nn.Module, Tensor, Tensor]:
    """A net in training mode with labels of which about a quarter are wrong."""
    model, images = smooth_net(), net_images()
    frozen = copy.deepcopy(model).eval()
    with torch.no_grad():
        ranked = frozen(images).argsort(1, descending=True)
    labels = ranked[:, 0].clone()
    labels[::4] = ranked[::4, 1]
    return model, images, labels


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", METHODS)
def test_flips_just_past_the_margin_and_not_before(method: str, norm: str) -> None:
    model, images, labels = setting()
    result = measure_margins(model, images, labels, method=method, norm=norm, boundary=True)
    model.eval()
    assert result.crossed.float().mean() > 0.95
    assert result.boundary is not None
    on = result.crossed
    shift = result.boundary - images
    right = model(images).argmax(1) == labels
    length = shift.flatten(1).abs().amax(1) if norm == "linf" else shift.flatten(1).norm(dim=1)
    assert torch.equal(result.margin > 0, right)
    assert torch.allclose(length[on], result.margin[on].abs(), rtol=1e-5)
    assert ((result.boundary >= 0) & (result.boundary <= 1)).all()
    assert torch.equal((model(result.boundary).argmax(1) == labels)[on], ~right[on])
    just_before = images + 0.99 * shift
    assert torch.equal((model(just_before).argmax(1) == labels)[on], right[on])
    # one sample at a time, as rounding differs with the batch size
    alone = torch.cat([model(point[None]) for point in result.boundary]).argmax(1) == labels
    assert torch.equal(alone[on], ~right[on])


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", METHODS)
def test_batch_size_order_and_composition_do_not_matter(method: str, norm: str) -> None:
    model, images, labels = setting()
    whole = measure_margins(model, images, labels, method=method, norm=norm)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    shuffled = measure_margins(model, images[order], labels[order], method=method, norm=norm, batch_size=5)
    some = measure_margins(model, images[7:19], labels[7:19], method=method, norm=norm, batch_size=64)
    for other, index in ((shuffled, order), (some, torch.arange(7, 19))):
        assert torch.equal(other.status, whole.status[index])
        assert torch.equal(other.prediction, whole.prediction[index])
        assert torch.equal(other.margin > 0, whole.margin[index] > 0)
        torch.testing.assert_close(other.margin, whole.margin[index], rtol=2e-3, atol=1e-6)


def test_same_call_same_bits() -> None:
    model, images, labels = setting()
    first, second = (measure_margins(model, images, labels) for _ in range(2))
    assert torch.equal(first.margin, second.margin)
    assert torch.equal(first.forwards, second.forwards)


@pytest.mark.parametrize("method", METHODS)
def test_model_gradients_and_rng_are_left_as_they_were(method: str) -> None:
    model, images, labels = setting()
    modules = dict(model.named_modules())
    modules["1"].eval()
    modules["3"].weight.requires_grad_(False)
    modules["9"].weight.grad = torch.ones_like(modules["9"].weight)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    flags = [parameter.requires_grad for parameter in model.parameters()]
    random = torch.random.get_rng_state()
    measure_margins(model, images, labels, method=method)
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(modules["9"].weight.grad, torch.ones_like(modules["9"].weight))
    assert modules["3"].weight.grad is None
    assert torch.equal(torch.random.get_rng_state(), random)


def test_counts_are_passes_of_each_sample() -> None:
    model, images, labels = setting()
    calls = {"forward": 0}
    model.register_forward_hook(lambda *_: calls.__setitem__("forward", calls["forward"] + 1))
    result = measure_margins(model, images, labels)
    right = result.margin > 0
    assert (result.backwards[right] >= 3).all()
    assert (result.forwards >= 1 + 2 + 1).all()
    assert result.forwards.float().mean() < 15


@pytest.mark.parametrize("method", METHODS)
def test_zero_gradient_is_a_status(method: str) -> None:
    class Flat(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            constant = torch.tensor([1.0, 0.0, -1.0])
            return constant + 0.0 * images.flatten(1).sum(1, keepdim=True)

    result = measure_margins(Flat(), net_images(6), torch.tensor([0, 1, 2, 0, 1, 2]), method=method)
    assert (result.status == Status.ZERO_GRADIENT).all()
    assert result.margin.isnan().all()


@pytest.mark.parametrize("method", METHODS)
def test_non_finite_logit_is_a_status_of_its_sample_only(method: str) -> None:
    problem = affine(3, shape=(3, 4, 4), count=8)

    class Spoilt(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            logits: Tensor = problem.model(images)
            broken = (images.flatten(1)[:, :1] == 1.0).to(logits)
            return logits + torch.where(broken > 0, torch.nan, 0.0)

    images = problem.images.clamp(0.1, 0.9)
    images[3, 0, 0, 0] = 1.0
    result = measure_margins(Spoilt(), images, problem.labels, method=method, boundary=True)
    assert result.status[3] == Status.NON_FINITE
    assert result.margin[3].isnan()
    assert result.boundary is not None
    assert torch.equal(result.boundary[3], images[3])
    others = torch.arange(8) != 3
    assert (result.status[others] == Status.CROSSED).all()


@pytest.mark.parametrize("method", METHODS)
def test_a_boundary_outside_the_box_is_not_crossed(method: str) -> None:
    class Always(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            total = images.flatten(1).mean(1)
            return torch.stack([total + 5, 0.3 * total], 1)

    result = measure_margins(Always(), net_images(6), torch.tensor([0, 1, 0, 1, 0, 1]), method=method)
    # a hundred steps of 2/255 do not come to the end of the pixel range
    assert (result.status == (Status.OUT_OF_STEPS if method == "fast" else Status.NOT_CROSSED)).all()
    assert result.margin.tolist() == [torch.inf, -torch.inf] * 3


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", METHODS)
def test_cap(method: str, norm: str) -> None:
    model, images, labels = setting()
    free = measure_margins(model, images, labels, method=method, norm=norm)
    cap = float(free.margin.abs().median())
    capped = measure_margins(model, images, labels, method=method, norm=norm, cap=cap)
    beyond = capped.status == Status.CAPPED
    assert 0.2 < beyond.float().mean() < 0.8
    assert torch.equal(capped.margin[beyond].abs(), torch.full_like(capped.margin[beyond], cap))
    assert torch.equal(capped.margin > 0, free.margin > 0)
    assert (capped.margin[capped.crossed].abs() <= cap * (1 + 1e-6)).all()
    assert not (beyond & (free.margin.abs() < 0.8 * cap)).any()
    if method == "deepfool" and norm == "linf":  # an L2 ray is followed to the boundary all the same
        assert capped.forwards.float().mean() < free.forwards.float().mean()


def test_rival_is_the_class_on_the_other_side() -> None:
    model, images, labels = setting()
    result = measure_margins(model, images, labels, boundary=True)
    model.eval()
    right = result.margin > 0
    assert result.boundary is not None
    assert torch.equal(model(result.boundary).argmax(1)[right], result.rival[right])
    assert (result.rival != labels).all()


def test_methods_rank_as_they_should() -> None:
    model, images, labels = setting()
    length = {method: measure_margins(model, images, labels, method=method).margin.abs().mean() for method in METHODS}
    assert length["tight"] <= length["deepfool"] <= 1.02 * length["deepfool-classic"]


@pytest.mark.parametrize("shape", [(7,), (1, 5, 6), (2, 3, 4, 5)])
@pytest.mark.parametrize("method", METHODS)
def test_any_image_shape(method: str, shape: tuple[int, ...]) -> None:
    problem = affine(4, shape=shape, count=10)
    result = measure_margins(problem.model, problem.images, problem.labels, method=method, boundary=True)
    assert result.crossed.all()
    assert result.boundary is not None
    assert result.boundary.shape == problem.images.shape


def test_many_classes() -> None:
    problem = affine(21_000, shape=(2, 3, 3), count=6)
    result = measure_margins(problem.model, problem.images, problem.labels)
    assert result.crossed.all()
    assert result.forwards.float().mean() < 15


def test_autocast_and_double_precision() -> None:
    model, images, labels = setting()
    plain = measure_margins(model, images, labels)
    rough = measure_margins(model, images, labels, autocast=torch.bfloat16)
    assert torch.equal(rough.margin > 0, plain.margin > 0)
    torch.testing.assert_close(rough.margin, plain.margin, rtol=0.25, atol=1e-3)
    exact = measure_margins(model.double(), images.double(), labels)
    torch.testing.assert_close(exact.margin, plain.margin, rtol=5e-3, atol=1e-5)
    with pytest.raises(PumaError, match=r"pass model\.float"):
        measure_margins(model.half(), images, labels)


def test_knife_edge_keeps_the_sign() -> None:
    """Samples moved onto the boundary: whatever the rounding, the sign is that of the prediction."""
    problem = affine(3, count=20)
    result = measure_margins(problem.model, problem.images, problem.labels, boundary=True)
    assert result.boundary is not None
    edge = measure_margins(problem.model, result.boundary, problem.labels)
    with torch.no_grad():
        right = problem.model(result.boundary).argmax(1) == problem.labels
    assert torch.equal(edge.margin > 0, right)
    assert (edge.margin != 0).all()
    assert edge.margin.abs().max() < 1e-3


def test_wrong_sample_reaches_its_label_not_just_another_class() -> None:
    problem = relabel(affine(10, count=20, uneven=False), 4)
    result = measure_margins(problem.model, problem.images, problem.labels, boundary=True)
    assert result.boundary is not None
    with torch.no_grad():
        reached = problem.model(result.boundary).argmax(1)
    assert torch.equal(reached[result.crossed], problem.labels[result.crossed])


def test_algorithm_1_on_cross_entropy_stalls_on_confident_samples_and_says_so() -> None:
    """Logits of a confident model round cross-entropy's gradient to zero; the gap's is not."""
    problem = affine(3, count=12)
    model = nn.Sequential(problem.model, Scaled(200.0))
    printed = measure_margins(model, problem.images, problem.labels, method="fast-ce")
    corrected = measure_margins(model, problem.images, problem.labels, method="fast")
    assert corrected.crossed.all()
    assert (printed.status == Status.ZERO_GRADIENT).any()
    assert printed.margin[~printed.crossed].isnan().all()


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, logits: Tensor) -> Tensor:
        return self.factor * logits


def test_rivals_that_race_stay_together_in_batches_of_one() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 24), torch.nn.ReLU(), torch.nn.Linear(24, 6))
    images, labels = torch.rand(40, 1, 4, 4), torch.arange(40) % 6
    one, many = (measure_margins(model, images, labels, method="tight", batch_size=size) for size in (1, 64))
    assert torch.equal(one.status, many.status)
    torch.testing.assert_close(one.margin, many.margin, rtol=1e-4, atol=1e-6)
