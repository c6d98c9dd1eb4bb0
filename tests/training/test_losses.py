import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from puma import PumaError, trades_loss
from puma.training.config import AttackConfig
from puma.training.losses import InnerAttack, compute_pgd_at, compute_standard, count_steps, shares_clean_logits

EPS, STEP, STEPS, BETA = 0.1, 0.04, 4, 5.0


def net(batchnorm: bool, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    middle: list[nn.Module] = [nn.BatchNorm2d(4)] if batchnorm else []
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), *middle, nn.SiLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    for parameter in model.parameters():
        parameter.data.mul_(3)  # far from uniform predictions, so that the losses mean something
    return model.double().train()  # so that rounding hides nothing


def batch(count: int = 9, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(count, 1, 6, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (count,), generator=generator)
    start = (images + EPS * (2 * torch.rand(images.shape, generator=generator, dtype=torch.float64) - 1)).clamp(0, 1)
    return images, labels, start


def plain_trades(model: nn.Module, images: Tensor, labels: Tensor, start: Tensor, *, eval_attack: bool) -> Tensor:
    """TRADES as its authors write it down, one strength for all: attack first, then both passes."""
    attacked_by = copy.deepcopy(model)
    attacked_by.train(not eval_attack)
    target = F.softmax(attacked_by(images), dim=1).detach()
    current = start.clone()
    for _ in range(STEPS):
        current.requires_grad_()
        divergence = nn.KLDivLoss(reduction="sum")(F.log_softmax(attacked_by(current), dim=1), target)
        gradient = torch.autograd.grad(divergence, current)[0]
        current = current.detach() + STEP * gradient.sign()
        current = torch.min(torch.max(current, images - EPS), images + EPS).clamp(0, 1)
    clean, attacked = model(images), model(current.detach())
    smooth = F.cross_entropy(clean, labels, label_smoothing=0.1)
    divergence = nn.KLDivLoss(reduction="batchmean")(F.log_softmax(attacked, dim=1), F.softmax(clean, dim=1))
    loss: Tensor = smooth + BETA * divergence
    return loss


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize(("batchnorm", "mode"), [(False, "eval"), (True, "eval"), (True, "batch")])
@pytest.mark.parametrize("per_sample", [False, True])
def test_constant_strength_is_plain_trades(batchnorm: bool, mode: str, per_sample: bool) -> None:
    ours, theirs = net(batchnorm), net(batchnorm)
    images, labels, start = batch()
    loss = trades_loss(
        ours,
        images,
        labels,
        torch.full((len(images),), EPS, dtype=torch.float64) if per_sample else EPS,
        step_size=STEP,
        steps=STEPS,
        batchnorm="batch" if mode == "batch" else "eval",
        start=start,
    )
    expected = plain_trades(theirs, images, labels, start, eval_attack=mode == "eval")
    torch.testing.assert_close(loss, expected, rtol=1e-14, atol=1e-14)
    for mine, their in zip(gradients(ours, loss), gradients(theirs, expected), strict=True):
        torch.testing.assert_close(mine, their, rtol=1e-12, atol=1e-12)
    for mine, their in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(mine, their, rtol=0, atol=0)


def test_the_generator_draws_the_start() -> None:
    model = net(False)
    images, labels, _ = batch()
    losses = [
        trades_loss(
            model, images, labels, EPS, step_size=STEP, steps=2, generator=torch.Generator().manual_seed(seed)
        ).item()
        for seed in (3, 3, 4)
    ]
    assert losses[0] == losses[1] != losses[2]


def test_negative_strength_raises_every_labels_probability() -> None:
    model = net(False)
    images, labels, _ = batch(64)
    attack = InnerAttack(step_size=STEP, steps=8, generator=torch.Generator().manual_seed(0))
    helped = attack.perturb(model, images, labels, -EPS)
    with torch.no_grad():
        before = F.cross_entropy(model(images), labels, reduction="none")
        after = F.cross_entropy(model(helped), labels, reduction="none")
    assert bool((after < before).all())
    assert float((helped - images).abs().max()) <= EPS + 1e-6


def test_signs_are_kept_apart_within_a_batch() -> None:
    model = net(False)
    images, labels, _ = batch(60)
    strength = torch.tensor([EPS, -EPS, 0.0]).repeat(20)
    attack = InnerAttack(step_size=STEP, steps=8, generator=torch.Generator().manual_seed(0))
    moved = attack.perturb(model, images, labels, strength)
    with torch.no_grad():
        rise = F.cross_entropy(model(moved), labels, reduction="none") - F.cross_entropy(
            model(images), labels, reduction="none"
        )
        clean, after = F.softmax(model(images), 1), F.softmax(model(moved), 1)
    assert bool((rise[1::3] < 0).all())
    assert torch.equal(moved[2::3], images[2::3])
    change = (after - clean).abs().sum(1)
    assert float(change[0::3].min()) > 0.01


def test_zero_strength_leaves_only_the_label_term() -> None:
    model = net(False)
    images, labels, _ = batch()
    loss = trades_loss(model, images, labels, 0.0, step_size=STEP, steps=3, label_smoothing=0.0)
    torch.testing.assert_close(loss, F.cross_entropy(model(images), labels), rtol=1e-6, atol=1e-6)


def test_the_loss_leaves_mode_and_gradients_alone() -> None:
    model = net(True)
    model[1].eval()
    images, labels, _ = batch()
    trades_loss(model, images, labels, EPS, step_size=STEP, steps=2)
    assert [module.training for module in model] == [True, False, True, True, True]
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_clean_logits_are_shared_only_when_they_are_the_same() -> None:
    assert shares_clean_logits(net(False), "eval")
    assert shares_clean_logits(net(True), "batch")
    assert not shares_clean_logits(net(True), "eval")
    assert shares_clean_logits(net(True).eval(), "eval")
    assert not shares_clean_logits(net(True).eval(), "batch")
    assert not shares_clean_logits(nn.Sequential(net(False), nn.Dropout()), "eval")


def test_sharing_clean_logits_saves_a_pass() -> None:
    calls = []
    images, labels, _ = batch()
    for mode in ("batch", "eval"):
        model = net(True)
        model[0].register_forward_hook(lambda *_, mode=mode: calls.append(mode))
        trades_loss(model, images, labels, EPS, step_size=STEP, steps=3, batchnorm=mode)
    assert calls.count("batch") == 3 + 2
    assert calls.count("eval") == 3 + 2 + 1


def test_pgd_at_is_ce_of_attacked_images_and_standard_of_clean_ones() -> None:
    model = net(False)
    images, labels, start = batch()
    attack = InnerAttack(step_size=STEP, steps=3, loss="ce", start=start)
    outcome = compute_pgd_at(model, images, labels, EPS, attack, label_smoothing=0.0)
    expected = F.cross_entropy(model(attack.perturb(model, images, labels, EPS)), labels)
    torch.testing.assert_close(outcome.loss, expected)
    plain = compute_standard(model, images, labels, label_smoothing=0.0)
    torch.testing.assert_close(plain.loss, F.cross_entropy(model(images), labels))
    assert outcome.loss > plain.loss


def test_steps_follow_the_strength() -> None:
    config = AttackConfig(eps=0.1, steps=10)
    strength = torch.tensor([0.0, 0.001, 0.01, 0.05, -0.05, 0.051, 0.1, -0.1, 0.3])
    assert count_steps(strength, config).tolist() == [0, 1, 1, 5, 5, 6, 10, 10, 10]


def test_a_budget_gives_what_the_same_steps_give_one_by_one() -> None:
    model = net(True).eval()
    images, labels, start = batch(24)
    strength = torch.linspace(-EPS, EPS, 24)
    steps = count_steps(strength, AttackConfig(eps=EPS, step_size=STEP, steps=5))
    together = InnerAttack(step_size=STEP, steps=steps, start=start, active_set=True)
    moved = together.perturb(model, images, labels, strength)
    for row in range(24):
        alone = InnerAttack(step_size=STEP, steps=int(steps[row]), start=start[row : row + 1])
        one = alone.perturb(model, images[row : row + 1], labels[row : row + 1], strength[row : row + 1])
        torch.testing.assert_close(moved[row : row + 1], one, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"start": torch.zeros(2, 1, 6, 6)}, "start must have the images' shape"),
        ({"attack_loss": "kll"}, "did you mean 'kl'"),
        ({"norm": "linff"}, "did you mean 'linf'"),
        ({"strength": torch.tensor([0.1, float("nan")] * 4 + [0.1])}, "finite"),
        ({"strength": torch.zeros(3)}, "shape"),
    ],
)
def test_bad_input_is_told(change: dict[str, object], sentence: str) -> None:
    images, labels, _ = batch()
    given: dict[str, object] = {"strength": EPS, "step_size": STEP, "steps": 1, **change}
    with pytest.raises(PumaError, match=sentence):
        trades_loss(net(False), images, labels, **given)  # type: ignore[arg-type]
