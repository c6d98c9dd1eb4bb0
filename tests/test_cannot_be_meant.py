"""What can be computed but cannot be meant is refused, or said: radii beyond the pixels, models that do not fit."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import puma as library
from conftest import MakePool, Run
from puma.attacks.norms import check_radius
from puma.errors import PumaError
from puma.evaluation import EvaluationConfig, evaluate_pool
from puma.margins import Margins, measure_pool
from puma.margins.distribution import warn_of_model
from puma.planning import Plan
from puma.planning.build import make_plan
from puma.scores import Scores
from puma.training import TrainConfig
from puma.training.batches import load_samples
from puma.training.config import AttackConfig

DID_YOU_MEAN = r"at most 1 .*got 8; did you mean 8/255\?"


class Linear(nn.Sequential):
    """A linear classifier of images of any size that has as many pixels."""

    def __init__(self, pixels: int, classes: int) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Flatten(), nn.Linear(pixels, classes))


@pytest.fixture
def batch() -> tuple[nn.Module, Tensor, Tensor]:
    return Linear(12, 3), torch.rand(4, 3, 2, 2), torch.tensor([0, 1, 2, 0])


def test_a_radius_beyond_the_pixels_is_refused_by_the_library(
    batch: tuple[nn.Module, Tensor, Tensor], make_pool: MakePool
) -> None:
    model, images, labels = batch
    pool = make_pool(shape=(8, 8, 1), num_classes=3)
    for call in (
        lambda: library.pgd(model, images, labels, 8),
        lambda: library.pgd(model, images, labels, torch.tensor([0.1, 0.1, 0.1, -8.0])),
        lambda: library.fgsm(model, images, labels, 8.0),
        lambda: library.evaluate(model, images, labels, 8),
        lambda: library.trades_loss(model, images, labels, 8.0),
        lambda: library.measure_margins(model, images, labels, cap=8),
        lambda: library.adaptive_strength(torch.zeros(3), 8),
        lambda: make_plan(pool, prune_random=0.2, eps=8),
    ):
        with pytest.raises(PumaError, match=DID_YOU_MEAN):
            call()
    with pytest.raises(PumaError, match=r"attack\.eps 8 is larger .* did you mean 8/255"):
        library.train("small-8px", pool, out="never", eps=8)
    with pytest.raises(PumaError, match=r"attack\.step_size 2 is larger .* did you mean 2/255"):
        library.train("small-8px", pool, out="never", eps=0.1, step_size=2)


def test_other_norms_and_bounds_have_other_limits(batch: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, images, labels = batch
    assert library.pgd(model, images * 255, labels, 8, bounds=(0, 255)).shape == images.shape
    assert library.pgd(model, images, labels, 3.4, norm="l2").shape == images.shape  # the square root of 12 is 3.46
    with pytest.raises(PumaError, match=r"at most 3.464 in l2 .* got 128; did you mean 128/255\?"):
        library.pgd(model, images, labels, 128, norm="l2")
    with pytest.raises(PumaError, match="give a smaller one"):
        check_radius(1000)
    check_radius(torch.zeros(0))
    check_radius(1.0)
    assert library.pgd(model, images, labels, 1.0).shape == images.shape


def test_the_command_line_refuses_it_everywhere(puma: Run, tmp_path: Path) -> None:
    digits, plan = tmp_path / "digits", tmp_path / "p.parquet"
    puma("data", "import", "digits", "--out", str(digits))
    weights = ("--model", "small-8px", "--weights", "never.pt")
    out = ("--out", str(tmp_path / "out"))
    for words in (
        ("plan", str(digits / "train"), "--prune-random", "0.2", "--eps", "8", "--out", str(plan)),
        ("plan", str(digits / "train"), "--prune-random", "0.2", "--gap", "8", "--out", str(plan)),
        ("train", str(digits / "train"), *out, "--attack.eps", "8"),
        ("iterate", str(digits / "train"), *out, "--attack.eps", "8"),
        ("evaluate", "small-8px", str(digits / "test"), "--eps", "8", *weights[2:], *out),
        ("run", "tab-summary", "--preset", "smoke", "--eps", "8", *out, "--work", str(tmp_path / "work")),
    ):
        code, _, told = puma(*words)
        assert (code, told.count("\n")) == (2, 1)
        assert "did you mean 8/255" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits"]


def test_a_plan_of_another_norm_or_beyond_the_pixels_is_not_trained(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(shape=(8, 8, 1), num_classes=3)
    margin = np.linspace(-1, 1, len(pool), dtype=np.float32)
    found = Scores("margin", pool.sample_id, margin, pool.fingerprint, {"norm": "l2"})
    make_plan(pool, found, eps=0.5).save(tmp_path / "l2.parquet")
    with pytest.raises(PumaError, match=r"strengths are margins in l2, attack\.norm is linf"):
        load_samples(TrainConfig(), [pool], tmp_path / "l2.parquet")
    with pytest.raises(PumaError, match="measured in l2, strengths are asked for in linf"):
        make_plan(pool, found, eps=0.5, norm="linf")
    strength = torch.full((len(pool),), 8.0)
    ids, keep = torch.from_numpy(pool.sample_id), torch.ones(len(pool), dtype=torch.bool)
    Plan(ids, keep, strength, pool.fingerprint).save(tmp_path / "wide.parquet")
    with pytest.raises(PumaError, match="the plan's strength must be " + DID_YOU_MEAN):
        load_samples(TrainConfig(), [pool], tmp_path / "wide.parquet")
    other = load_samples(TrainConfig(attack=AttackConfig(norm="l2", eps=0.25)), [pool], tmp_path / "l2.parquet")
    assert any("made for eps 0.5, attack.eps is 0.25" in sentence for sentence in other.warnings)
    with pytest.raises(PumaError, match=r"attack.eps must be at most 8 in l2 .* did you mean 128/255"):
        load_samples(TrainConfig(attack=AttackConfig(norm="l2", eps=128)), [pool], None)


def test_a_margin_model_that_knows_little_is_told() -> None:
    right = np.array([1] * 15 + [-1] * 85, dtype=np.float32)
    assert "right on 15.0% of the samples, hardly better than a guess among 10 classes" in warn_of_model(right, 10)[0]
    assert "wrong on most of them" in warn_of_model(np.array([1, -1, -1], dtype=np.float32), 10)[0]
    assert "hardly better" in warn_of_model(np.array([1, -1], dtype=np.float32), 2)[0]
    assert warn_of_model(np.array([1, 1, -1, np.nan, np.nan], dtype=np.float32), 10) == []


def test_a_model_with_more_classes_or_for_other_images_is_told(make_pool: MakePool) -> None:
    pool = make_pool(shape=(2, 2, 3), num_classes=3)
    config = EvaluationConfig(attacks=("clean",), masking_samples=0)
    found = evaluate_pool(Linear(12, 10), pool, 0.1, config)
    assert "knows 10 classes, the pool has 3" in found.warnings[0]
    assert evaluate_pool(Linear(12, 3), pool, 0.1, config).warnings == ()
    with pytest.warns(UserWarning, match="knows 10 classes, the pool has 3"):
        assert isinstance(measure_pool(Linear(12, 10), pool), Margins)
    for act in (lambda net: evaluate_pool(net, pool, 0.1, config), lambda net: measure_pool(net, pool)):
        with pytest.raises(PumaError, match=r"cannot take images of .*\(3, 2, 2\)"):
            act(Linear(48, 3))
        with pytest.raises(PumaError, match=r"labels must lie in 0..1 for this model's 2 classes"):
            act(Linear(12, 2))


def test_a_run_is_not_used_on_images_of_another_size(make_pool: MakePool, tmp_path: Path, puma: Run) -> None:
    pool = make_pool("grey", shape=(8, 8, 1), num_classes=3)
    run = library.train("small-8px", pool, out=tmp_path / "run", samples_seen=50, batch_size=50, log_every=1)
    assert library.load_model(run.path, image_shape=(8, 8, 1))(torch.rand(1, 1, 8, 8)).shape == (1, 3)
    for name, shape in (("large", (14, 14, 1)), ("colour", (8, 8, 3))):
        other = make_pool(name, shape=shape, num_classes=3).stores[0].path
        told = f"trained on images of 8 x 8 x 1 (height, width, channels), these have {' x '.join(map(str, shape))}"
        for words in (
            ("evaluate", str(run.path), str(other)),
            ("margins", str(other), "--model", str(run.path), "--out", str(tmp_path / "m.parquet")),
        ):
            code, _, error = puma(*words)
            assert code == 2
            assert told in error.splitlines()[-1]
