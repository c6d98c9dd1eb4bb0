from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from puma.attacks import bim, fgsm, pgd
from puma.attacks.pgd import run_pgd
from puma.errors import PumaError

EPS = 0.03


class Linear(nn.Module):
    """A linear classifier on flattened images: its worst perturbation is known exactly."""

    def __init__(self, classes: int = 2, shape: tuple[int, ...] = (2, 3, 3), seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        size = torch.Size(shape).numel()
        self.weight = nn.Parameter(torch.randn(classes, size, generator=generator, dtype=torch.float64))

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) @ self.weight.to(images.dtype).T


class Net(nn.Module):
    """A small net with everything an attack might disturb: BN, dropout, a frozen parameter, mixed modes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.bn = nn.BatchNorm2d(6)
        self.dropout = nn.Dropout(0.5)
        self.linear = nn.Linear(6 * 5 * 5, 4)

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.silu(self.bn(self.conv(images)))
        out: Tensor = self.linear(self.dropout(hidden.flatten(1)))
        return out


def batch(count: int = 8, shape: tuple[int, ...] = (3, 5, 5), classes: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(count, *shape, generator=generator)
    return images, torch.randint(classes, (count,), generator=generator)


@pytest.fixture
def net() -> Net:
    torch.manual_seed(1)
    net = Net()
    for _ in range(3):
        net(torch.rand(16, 3, 5, 5))
    return net


def direction_of_rise(model: Linear, labels: Tensor, shape: torch.Size) -> Tensor:
    """Gradient of the two-class loss with respect to the image, up to a positive factor."""
    return (model.weight[1 - labels] - model.weight[labels]).detach().view(shape)


@pytest.mark.parametrize("loss", ["ce", "cw"])
@pytest.mark.parametrize("random_start", [False, True])
@pytest.mark.parametrize("sign", [1, -1])
def test_linf_reaches_the_worst_corner_of_a_linear_model(loss: str, random_start: bool, sign: int) -> None:
    model = Linear()
    images, labels = batch(shape=(2, 3, 3), classes=2)
    images = images.double()
    found = pgd(model, images, labels, sign * EPS, step_size=EPS / 4, steps=12, loss=loss, random_start=random_start)
    corner = images + sign * EPS * direction_of_rise(model, labels, images.shape).sign()
    torch.testing.assert_close(found, corner.clamp(0, 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
def test_l2_reaches_the_worst_point_of_a_linear_model(sign: int) -> None:
    model = Linear()
    images, labels = batch(shape=(2, 3, 3), classes=2)
    images = images.double() * 0.2 + 0.4  # far from the bounds
    found = pgd(model, images, labels, sign * 0.1, step_size=0.05, steps=60, norm="l2")
    gradient = direction_of_rise(model, labels, images.shape).flatten(1)
    worst = images + sign * 0.1 * (gradient / gradient.norm(dim=1, keepdim=True)).view(images.shape)
    torch.testing.assert_close(found, worst, rtol=0, atol=1e-6)


def test_fgsm_is_one_full_step_and_bim_starts_at_the_image(net: Net) -> None:
    images, labels = batch()
    net.eval()
    point = images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(net(point), labels), point)
    assert torch.equal(fgsm(net, images, labels, EPS), (images + EPS * gradient.sign()).clamp(0, 1))
    assert torch.equal(
        bim(net, images, labels, EPS, step_size=0.01, steps=1), (images + 0.01 * gradient.sign()).clamp(0, 1)
    )


def plain_pgd(
    net: Net,
    images: Tensor,
    labels: Tensor,
    eps: float,
    *,
    step_size: float,
    steps: int,
    loss: Callable[[Tensor, Tensor, Tensor], Tensor],
    generator: torch.Generator,
) -> Tensor:
    """Straight from the papers, one scalar strength, nothing shared with the code under test."""
    net.eval()
    clean = net(images).detach()
    current = (images + (torch.rand(images.shape, generator=generator) * 2 - 1) * eps).clamp(0, 1)
    for _ in range(steps):
        current.requires_grad_()
        value = loss(net(current), labels, clean)
        (gradient,) = torch.autograd.grad(value, current)
        current = current.detach() + step_size * gradient.sign()
        current = torch.max(torch.min(current, images + eps), images - eps).clamp(0, 1)
    return current


def kl(logits: Tensor, labels: Tensor, clean: Tensor) -> Tensor:
    return F.kl_div(F.log_softmax(logits, 1), F.softmax(clean, 1), reduction="sum")


def cw(logits: Tensor, labels: Tensor, clean: Tensor) -> Tensor:
    label = F.one_hot(labels, logits.shape[1]).bool()
    return (logits.masked_fill(label, -1e9).max(1).values - logits[label]).sum()


def ce(logits: Tensor, labels: Tensor, clean: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="sum")


@pytest.mark.parametrize(("name", "loss"), [("ce", ce), ("kl", kl), ("cw", cw)])
def test_agrees_with_a_plain_implementation(net: Net, name: str, loss: Callable[..., Tensor]) -> None:
    images, labels = batch(32)
    one, two = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    expected = plain_pgd(net, images, labels, EPS, step_size=0.01, steps=7, loss=loss, generator=one)
    found = pgd(net, images, labels, EPS, step_size=0.01, steps=7, loss=name, generator=two)
    assert ((found - expected).abs() < 1e-6).float().mean() > 0.999  # a gradient at rounding level may change its sign


@given(
    eps=st.lists(st.floats(-0.5, 0.5, width=32), min_size=6, max_size=6),
    norm=st.sampled_from(["linf", "l2"]),
    active_set=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_stays_in_the_ball_and_the_bounds(eps: list[float], norm: str, active_set: bool) -> None:
    images, labels = batch(6, (2, 3, 3), 3)
    strength = torch.tensor(eps)
    model = Linear(3)
    found = run_pgd(model, images, labels, strength, step_size=0.1, steps=4, norm=norm, active_set=active_set)
    change = (found - images).flatten(1)
    length = change.abs().amax(1) if norm == "linf" else change.norm(dim=1)
    assert (length <= strength.abs() + 1e-6).all()
    assert found.min() >= 0
    assert found.max() <= 1
    assert torch.equal(found[strength == 0], images[strength == 0])


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_each_sample_is_attacked_as_if_alone(net: Net, norm: str) -> None:
    images, labels = batch(6)
    strength = torch.tensor([0.05, -0.05, 0.0, 0.01, -0.002, 0.2])
    steps = torch.tensor([3, 5, 5, 1, 0, 4])
    call = {"step_size": 0.02, "random_start": False, "norm": norm, "step_ratio": 0.5}
    found = run_pgd(net, images, labels, strength, steps=steps, **call)  # type: ignore[arg-type]
    for row in range(len(images)):
        own = slice(row, row + 1)
        alone = run_pgd(net, images[own], labels[own], float(strength[row]), steps=int(steps[row]), **call)  # type: ignore[arg-type]
        torch.testing.assert_close(found[own], alone, rtol=0, atol=1e-5)


def test_step_is_a_share_of_a_small_strength() -> None:
    model = Linear()
    images, labels = batch(2, (2, 3, 3), 2)
    images = images * 0.2 + 0.4
    strength = torch.tensor([0.001, 0.1])
    found = run_pgd(model, images, labels, strength, step_size=0.02, steps=1, random_start=False, step_ratio=0.25)
    step = (found - images).flatten(1).abs().amax(1)
    torch.testing.assert_close(step, torch.tensor([0.00025, 0.02]), rtol=1e-3, atol=1e-7)


def test_negative_strength_lowers_the_loss(net: Net) -> None:
    images, labels = batch(64)
    before = F.cross_entropy(net.eval()(images), labels, reduction="none")
    helped = pgd(net, images, labels, -0.1, step_size=0.02, steps=10, random_start=False)
    assert (F.cross_entropy(net(helped), labels, reduction="none") < before).all()


def test_negative_loss_is_used_where_strength_is_negative(net: Net) -> None:
    images, labels = batch(10)
    strength = torch.tensor([0.05, -0.05] * 5)
    both = run_pgd(net, images, labels, strength, step_size=0.01, steps=5, loss="kl", negative_loss="ce",
               generator=torch.Generator().manual_seed(0))  # fmt: skip
    only_kl, only_ce = (
        run_pgd(
            net,
            images,
            labels,
            strength,
            step_size=0.01,
            steps=5,
            loss=loss,
            generator=torch.Generator().manual_seed(0),
        )
        for loss in ("kl", "ce")
    )
    torch.testing.assert_close(both[0::2], only_kl[0::2])
    torch.testing.assert_close(both[1::2], only_ce[1::2])
    assert not torch.allclose(both[1::2], only_kl[1::2], atol=1e-3)


def test_zero_strength_returns_every_bit(net: Net) -> None:
    images, labels = batch()
    images[0, 0, 0, 0] = -0.0
    found = pgd(net, images, labels, 0.0, step_size=0.1, steps=3)
    assert torch.equal(found.view(torch.int32), images.view(torch.int32))
    assert found.data_ptr() != images.data_ptr()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_active_set_gives_the_same_for_less_work(norm: str) -> None:
    model = Linear(3)
    images, labels = batch(40, (2, 3, 3), 3)
    images = images.double()
    strength = torch.linspace(-0.05, 0.1, 40, dtype=torch.float64)
    rows_seen: list[int] = []
    model.register_forward_hook(lambda _module, inputs, _output: rows_seen.append(len(inputs[0])))
    steps = (strength.abs() / 0.01).ceil().long()

    def attack(active_set: bool) -> Tensor:
        rows_seen.clear()
        return run_pgd(model, images, labels, strength, step_size=0.02, steps=steps, loss="cw", norm=norm,
                   active_set=active_set, generator=torch.Generator().manual_seed(0))  # fmt: skip

    everything, all_rows = attack(False), sum(rows_seen)
    compacted, active_rows = attack(True), sum(rows_seen)
    torch.testing.assert_close(compacted, everything, rtol=0, atol=1e-12)
    assert active_rows < 0.6 * all_rows


def test_active_set_lets_go_of_samples_that_stand_still() -> None:
    model = Linear()
    images, labels = batch(5, (2, 3, 3), 2)
    calls: list[None] = []
    model.register_forward_hook(lambda *_: calls.append(None))
    run_pgd(model, images, labels, EPS, step_size=EPS, steps=50, loss="cw", random_start=False, active_set=True)
    assert len(calls) == 2  # one step to the corner, one that shows it stays there


def test_leaves_the_model_as_it_was(net: Net) -> None:
    net.train()
    net.dropout.eval()
    net.linear.weight.requires_grad_(False)
    net.conv.bias.grad = torch.ones(6)  # type: ignore[union-attr]
    modes = [module.training for module in net.modules()]
    flags = [parameter.requires_grad for parameter in net.parameters()]
    state = {name: value.clone() for name, value in net.state_dict().items()}
    images, labels = batch()
    for batchnorm in ("eval", "batch"):
        run_pgd(net, images, labels, EPS, step_size=0.01, steps=2, batchnorm=batchnorm)
    with pytest.raises(PumaError):
        run_pgd(net, images, labels + 4, EPS, step_size=0.01, steps=2)
    assert [module.training for module in net.modules()] == modes
    assert [parameter.requires_grad for parameter in net.parameters()] == flags
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert net.conv.weight.grad is None
    assert torch.equal(net.conv.bias.grad, torch.ones(6))  # type: ignore[union-attr]
    assert net.bn.track_running_stats


def test_batch_statistics_are_those_of_training_mode(net: Net) -> None:
    images, labels = batch(16)
    found = run_pgd(net, images, labels, EPS, step_size=EPS, steps=1, random_start=False, batchnorm="batch")
    net.eval()
    net.bn.train()
    point = images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(net(point), labels), point)
    assert torch.equal(found, (images + EPS * gradient.sign()).clamp(0, 1))


def test_works_without_gradients_around_it(net: Net) -> None:
    images, labels = batch()
    call = {"step_size": 0.01, "steps": 3, "random_start": False}
    expected = pgd(net, images, labels, EPS, **call)  # type: ignore[arg-type]
    with torch.no_grad():
        assert torch.equal(pgd(net, images, labels, EPS, **call), expected)  # type: ignore[arg-type]
    with torch.inference_mode():
        inside = images.clone()
        assert torch.equal(pgd(net, inside, labels.clone(), EPS, **call), expected)  # type: ignore[arg-type]
    assert not expected.requires_grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_any_floating_dtype(net: Net, dtype: torch.dtype) -> None:
    images, labels = batch()
    found = pgd(net.to(dtype), images.to(dtype), labels, EPS, step_size=0.01, steps=3)
    assert found.dtype == dtype
    assert (found.float() - images.to(dtype).float()).abs().max() < EPS + 0.01


def test_same_generator_same_attack(net: Net) -> None:
    images, labels = batch()
    one, two, other = (
        pgd(net, images, labels, EPS, step_size=0.01, steps=2, generator=torch.Generator().manual_seed(seed))
        for seed in (5, 5, 6)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_given_start_is_brought_into_the_ball(net: Net, norm: str) -> None:
    images, labels = batch()
    wanted = images + 0.02 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    found = run_pgd(net, images, labels, EPS, step_size=0.01, steps=0, norm=norm, start=wanted)
    change, given = (found - images).flatten(1), (wanted - images).flatten(1)
    if norm == "linf":
        expected = (images + given.clamp(-EPS, EPS).view(images.shape)).clamp(0, 1)
        torch.testing.assert_close(found, expected)
    else:
        assert (change.norm(dim=1) <= EPS * (1 + 1e-5)).all()
        inside = (found > 0) & (found < 1)
        ratio = (change.view(images.shape) / given.view(images.shape))[inside]
        assert ratio.min() > 0  # the same direction, shorter
    kl = run_pgd(net, images, labels, EPS, step_size=0.01, steps=2, loss="kl", random_start=False, start=wanted)
    assert not torch.equal(kl, images)


def test_l2_start_is_uniform_in_the_ball() -> None:
    model = Linear(shape=(5,))
    images = torch.full((20_000, 5), 0.5)
    start = pgd(model, images, torch.zeros(20_000, dtype=torch.int64), 0.2, step_size=1, steps=0, norm="l2",
                generator=torch.Generator().manual_seed(0))  # fmt: skip
    share_of_volume = ((start - images).norm(dim=1) / 0.2) ** 5  # uniform on [0, 1] for a uniform point
    assert share_of_volume.max() <= 1 + 1e-5
    quantiles = torch.quantile(share_of_volume, torch.tensor([0.25, 0.5, 0.75]))
    torch.testing.assert_close(quantiles, torch.tensor([0.25, 0.5, 0.75]), rtol=0, atol=0.02)


def test_passes_are_as_few_as_possible(net: Net) -> None:
    images, labels = batch()
    calls: list[None] = []
    net.register_forward_hook(lambda *_: calls.append(None))
    run_pgd(net, images, labels, EPS, step_size=0.01, steps=5)
    assert len(calls) == 5
    run_pgd(net, images, labels, EPS, step_size=0.01, steps=5, loss="kl", clean_logits=torch.zeros(8, 4))
    assert len(calls) == 10


def test_empty_batch(net: Net) -> None:
    images, labels = batch(4)
    for active_set in (False, True):
        found = run_pgd(net, images[:0], labels[:0], EPS, step_size=0.01, steps=2, active_set=active_set)
        assert found.shape == (0, 3, 5, 5)


def test_images_that_require_a_gradient_are_taken_as_they_are(net: Net) -> None:
    images, labels = batch()
    found = pgd(net, images.requires_grad_(), labels, EPS, step_size=0.01, steps=2)
    assert not found.requires_grad
    assert images.grad is None


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_l2_moves_along_gradients_of_any_size(scale: float) -> None:
    model = Linear()
    images, labels = batch(4, (2, 3, 3), 2)
    images = images * 0.2 + 0.4
    expected = pgd(model, images, labels, 0.1, step_size=0.1, steps=1, norm="l2", loss="cw", random_start=False)
    model.weight.data *= scale
    found = pgd(model, images, labels, 0.1, step_size=0.1, steps=1, norm="l2", loss="cw", random_start=False)
    torch.testing.assert_close(found, expected)


def test_parameters_are_not_differentiated(net: Net) -> None:
    images, labels = batch()
    seen: list[bool] = []
    net.register_forward_hook(lambda *_: seen.extend(p.requires_grad for p in net.parameters()))
    pgd(net, images, labels, EPS, step_size=0.01, steps=1)
    assert seen
    assert not any(seen)


class OnceBroken(Linear):
    """Its gradient is NaN the first time only."""

    calls = 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(images) * (torch.nan if self.calls == 1 else 1.0)


class Detached(Linear):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).detach()


class Broken(Linear):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) * torch.nan


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"norm": "linff"}, "unknown norm 'linff'; did you mean 'linf'"),
        ({"loss": "xent"}, "unknown attack loss 'xent'"),
        ({"negative_loss": ""}, "unknown attack loss ''"),
        ({"images": torch.zeros(3, 2, 3, 3, dtype=torch.uint8)}, "must be floating point"),
        ({"images": torch.full((3, 2, 3, 3), 2.0)}, "pixels from 2 to 2"),
        ({"images": torch.full((3, 2, 3, 3), torch.nan)}, "got NaN"),
        ({"images": torch.zeros(3)}, "must be a batch"),
        ({"labels": torch.tensor([0, 1, 2])}, "labels must lie in 0..1 for this model's 2 classes, got 0..2"),
        ({"labels": torch.tensor([0, -1, 1])}, "got -1..1"),
        ({"labels": torch.tensor([0.0, 1, 1])}, "labels must be int64"),
        ({"eps": torch.tensor([0.1, 0.2])}, r"eps must be a number or have shape \(3,\), got shape \(2,\)"),
        ({"eps": torch.nan}, "eps must be finite"),
        ({"step_size": 0.0}, "step_size and step_ratio must be positive"),
        ({"steps": -1}, "steps must be a whole number and not negative, got -1"),
        ({"steps": torch.tensor([1, 2, -1])}, "non-negative integers"),
        ({"bounds": (1.0, 0.0)}, "low < high"),
        ({"loss": "kl", "random_start": False}, "no gradient at the image itself"),
        ({"start": torch.zeros(3, 2, 3)}, "start must have the images' shape"),
        ({"active_set": True, "batchnorm": "batch"}, "active_set needs batchnorm='eval'"),
        ({"model": Detached()}, "no gradient with respect to its input"),
        ({"model": Broken()}, "gradient is not finite"),
        ({"model": OnceBroken(), "steps": 3}, "gradient is not finite"),
        ({"batchnorm": "bacth"}, "unknown batchnorm 'bacth'; did you mean 'batch'"),
        ({"loss": "kl", "clean_logits": torch.zeros(1, 2)}, r"clean_logits must have shape \(3, 2\), got \(1, 2\)"),
        ({"steps": 2.5}, "steps must be a whole number"),
        ({"model": nn.Identity()}, "must give logits of shape"),
    ],
)
def test_bad_input_is_one_clear_sentence(change: dict[str, object], sentence: str) -> None:
    images, labels = batch(3, (2, 3, 3), 2)
    call = {"model": Linear(), "images": images, "labels": labels, "eps": EPS, "step_size": 0.01, "steps": 1} | change
    with pytest.raises(PumaError, match=sentence):
        run_pgd(**call)  # type: ignore[arg-type]


def test_usual_defaults_are_ten_steps_of_a_quarter_of_each_radius(net: Net) -> None:
    images, labels = batch(6)
    one, two = torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)
    said = pgd(net, images, labels, EPS, steps=10, step_size=EPS / 4, generator=one)
    assert torch.equal(pgd(net, images, labels, EPS, generator=two), said)
    strength = torch.tensor([0.05, -0.05, 0.0, 0.01, -0.002, 0.2])
    step = (pgd(net, images * 0.2 + 0.4, labels, strength, steps=1, random_start=False) - (images * 0.2 + 0.4)).abs()
    torch.testing.assert_close(step.flatten(1).amax(1), strength.abs() / 4, rtol=1e-3, atol=1e-6)


def test_numpy_arrays_and_lists_are_taken(net: Net) -> None:
    images, labels = batch()
    expected = pgd(net, images, labels, EPS, random_start=False)
    assert torch.equal(pgd(net, images.numpy(), labels.numpy().astype(np.int32), EPS, random_start=False), expected)
    assert torch.equal(pgd(net, images, labels.tolist(), EPS, random_start=False), expected)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"images": [[0.5]]}, "images must be a tensor or numpy array of shape .* got list"),
        ({"images": torch.utils.data.TensorDataset(torch.zeros(2))}, "got TensorDataset; a Dataset becomes a pool"),
        ({"labels": "cat"}, "labels must be a tensor, numpy array or list, got str"),
        ({"labels": ["cat", "dog", "cat"]}, "labels must be whole numbers, one per image"),
        ({"labels": [0.5, 1, 1]}, "labels must be int64"),
    ],
)
def test_wrong_kinds_are_one_clear_sentence(change: dict[str, object], sentence: str) -> None:
    images, labels = batch(3, (2, 3, 3), 2)
    with pytest.raises(PumaError, match=sentence):
        pgd(**({"model": Linear(), "images": images, "labels": labels, "eps": EPS} | change))  # type: ignore[arg-type]


@pytest.mark.parametrize("attack", [pgd, fgsm, bim])
@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_a_model_of_another_precision_is_attacked_in_its_own(attack: Callable[..., Tensor], kind: torch.dtype) -> None:
    images, labels = batch()
    model = nn.Sequential(nn.Flatten(), nn.Linear(75, 4))
    attacked = attack(model.to(kind), images, labels, EPS)
    assert attacked.dtype == images.dtype
    assert 0 < (attacked - images).abs().max() <= EPS + 1e-6
    wide = attack(model.float(), images.double(), labels, EPS)
    assert wide.dtype == torch.float64


@pytest.mark.parametrize("loss", ["ce", "kl"])
def test_what_a_model_cannot_take_is_one_sentence(loss: str) -> None:
    images, labels = batch()
    with pytest.raises(PumaError, match=r"the model cannot take torch.float32 images of shape \(3, 5, 5\): "):
        pgd(nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), images, labels, EPS, loss=loss)
