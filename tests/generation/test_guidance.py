"""Guidance against Gaussian images and a linear gap, where Bayes' rule says what must come out."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from conftest import MakePool, Run
from puma.attacks.norms import find_norm
from puma.cli import main
from puma.generation.edm import SolverConfig, list_levels, solve_heun
from puma.generation.guidance import Guide
from puma.pools import Pool

WIDTH, PIXELS = 0.2, 6
SLOPE = torch.tensor([0.9, -0.4, 0.2, 0.0, 0.7, -0.6], dtype=torch.float64)


class TwoLogits(nn.Module):
    """Class 0 has a linear logit of the pixels in [0, 1], class 1 always 0: the gap of class 0 is linear."""

    def forward(self, images: Tensor) -> Tensor:
        gap = (2 * images.flatten(1) - 1) @ SLOPE
        return torch.stack([gap, torch.zeros_like(gap)], 1)


def make_guide(count: int, target: float, spread: float, norm: str = "linf") -> Guide:
    labels, targets = torch.zeros(count, dtype=torch.int64), torch.full((count,), target, dtype=torch.float64)
    return Guide(TwoLogits(), labels, targets, spread, find_norm(norm))


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(("target", "spread"), [(0.05, 0.03), (-0.1, 0.2), (0.15, 0.01)])
def test_guided_samples_follow_bayes_rule(norm: str, target: float, spread: float) -> None:
    count = 4000
    guide = make_guide(count, target, spread, norm)

    def denoise_guided(noisy: Tensor, sigma: Tensor) -> Tensor:
        denoised = noisy * WIDTH**2 / (WIDTH**2 + sigma.square())[:, None, None, None]
        return guide.move(denoised, sigma, WIDTH)

    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(count, 1, 2, 3, dtype=torch.float64, generator=generator)
    samples = solve_heun(denoise_guided, noise, list_levels(SolverConfig(steps=128)))
    gaps = samples.flatten(1) @ SLOPE
    dual = float(2 * find_norm(norm).dual(SLOPE[None]))
    prior, noise_variance = WIDTH**2 * float(SLOPE @ SLOPE), (spread * dual) ** 2
    mean = prior * target * dual / (prior + noise_variance)
    variance = prior * noise_variance / (prior + noise_variance)
    assert float(gaps.mean()) == pytest.approx(mean, abs=4 * (variance / count) ** 0.5 + 2e-3)
    assert float(gaps.var()) == pytest.approx(variance, rel=0.12)
    beside = samples.flatten(1) - torch.outer(gaps, SLOPE) / (SLOPE @ SLOPE)  # what the gap does not see stays
    assert float(beside.var(0).sum()) == pytest.approx(WIDTH**2 * (PIXELS - 1), rel=0.06)


def test_an_image_that_is_decided_is_left_alone() -> None:
    guide = make_guide(2, 0.1, 0.01)
    images = torch.zeros(2, 1, 2, 3, dtype=torch.float64)
    moved = guide.move(images, torch.tensor([1e-4, 10.0], dtype=torch.float64), 0.5)
    assert float(moved[0].abs().max()) < 1e-5
    margin = guide.measure_gap(moved)[0] / (2 * find_norm("linf").dual(SLOPE[None]))
    assert float(margin[1]) == pytest.approx(0.1, rel=0.1)


def test_a_flat_model_moves_nothing() -> None:
    class Flat(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return 0 * images.flatten(1)[:, :2]

    guide = Guide(Flat(), torch.zeros(3, dtype=torch.int64), torch.ones(3), 0.1, find_norm("linf"))
    images = torch.randn(3, 1, 2, 3)
    torch.testing.assert_close(guide.move(images, torch.ones(3), 0.5), images)


@pytest.fixture
def generator(make_pool: MakePool, tmp_path: Path) -> Path:
    make_pool("images", 80, shape=(8, 8, 1))
    out = tmp_path / "generator"
    short = ["--samples-seen", "32", "--batch-size", "8", "--net.width", "8", "--grid-every", "0"]
    main(["generate", "train", str(tmp_path / "images"), "--recipe", "digits-8px", *short, "--out", str(out)])
    train = ["--model", "small-8px", "--samples-seen", "64", "--attack.steps", "1", "--held-out", "0"]
    main(["train", str(tmp_path / "images"), *train, "--out", str(tmp_path / "net")])
    return out


def test_the_verb_guides_repeats_itself_and_says_by_whom(generator: Path, tmp_path: Path, puma: Run) -> None:
    asked = [
        "--guide",
        str(tmp_path / "net"),
        "--band",
        "0",
        "2",
        "--eps",
        "0.1",
        "--block",
        "8",
        "--solver.steps",
        "3",
    ]
    for name, count in (("one", "8"), ("two", "11")):
        assert (
            puma("generate", "sample", str(generator), "--count", count, "--out", str(tmp_path / name), *asked)[0] == 0
        )
    plain = ["--block", "8", "--solver.steps", "3"]
    puma("generate", "sample", str(generator), "--count", "8", "--out", str(tmp_path / "plain"), *plain)
    one, two, unguided = (Pool.open(tmp_path / name).batch(range(8)).images for name in ("one", "two", "plain"))
    assert torch.equal(one, two)
    assert not torch.equal(one, unguided)
    described = json.loads((tmp_path / "one" / "pool.json").read_text())
    assert "guide" in json.dumps(described["links"])


def test_a_guide_of_other_classes_is_one_sentence(generator: Path, tmp_path: Path, puma: Run) -> None:
    assert puma("data", "import", "digits", "--out", str(tmp_path / "digits"))[0] == 0
    train = ["--model", "small-8px", "--samples-seen", "64", "--attack.steps", "1", "--held-out", "0"]
    assert puma("train", str(tmp_path / "digits/train"), *train, "--out", str(tmp_path / "ten"))[0] == 0
    guide = ["--guide", str(tmp_path / "ten"), "--band", "0", "2", "--eps", "0.1"]
    code, _, error = puma("generate", "sample", str(generator), "--count", "4", "--out", str(tmp_path / "no"), *guide)
    assert code == 2
    assert "10 classes" in error
    assert "Traceback" not in error
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--guide", "NET"], "--guide needs --band LOW HIGH and --eps"),
        (["--guide", "NET", "--band", "0", "2", "--eps", "8"], "did you mean 8/255"),
        (["--guide", "NET", "--band", "0", "2", "--eps", "0.1", "--guide-spread", "0"], "must be positive"),
        (["--guide", "small-14px", "--band", "0", "2", "--eps", "0.1"], ""),
        (["--eps", "0.1"], "--eps goes with --guide"),
        (["--guide", "NET", "--band", "2", "1", "--eps", "0.1"], "from a lower to a higher"),
    ],
)
def test_bad_guides_are_one_sentence(generator: Path, tmp_path: Path, puma: Run, words: list[str], said: str) -> None:
    asked = [str(tmp_path / "net") if word == "NET" else word for word in words]
    code, _, error = puma("generate", "sample", str(generator), "--count", "4", "--out", str(tmp_path / "no"), *asked)
    assert code == 2
    assert said in error
    assert "Traceback" not in error
    assert not (tmp_path / "no").exists()
