"""Affine models have exact margins: closed forms, linear programs, least-distance programs."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from margins.problems import ENGINE, METHODS, NORMS, Affine, affine, many_twins, relabel
from oracles import boxed_linear_margin, linear_margin
from puma.margins import Status, measure_margins


def exact(problem: Affine, norm: str) -> NDArray[np.float64]:
    labels = problem.labels.tolist()
    return np.array(
        [
            boxed_linear_margin(problem.weight, problem.bias, problem.pixels(i), label, norm)
            for i, label in enumerate(labels)
        ]
    )


def assert_exact(margin: torch.Tensor, wanted: NDArray[np.float64]) -> None:
    """Signs the same, lengths never below exact, above by at most the finish's tolerance and fp32 rounding."""
    found = margin.double().numpy()
    assert (np.sign(found) == np.sign(wanted)).all()
    rounded = 2**-25 * 48**0.5  # a boundary point's pixels, each by half of fp32's spacing below 1
    assert (np.abs(found) >= (1 - 1e-5) * np.abs(wanted) - rounded).all()
    assert (np.abs(found) <= (1 + 1e-3) * np.abs(wanted) + 3e-6).all()


@pytest.mark.parametrize("method", ENGINE)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("classes", [2, 10, 100])
def test_closed_form_far_from_the_box(classes: int, norm: str, method: str) -> None:
    problem = affine(classes, spread=0.02)
    result = measure_margins(problem.model, problem.images, problem.labels, norm=norm, method=method)
    wanted = np.array(
        [
            linear_margin(problem.weight, problem.bias, problem.pixels(i), int(label), norm)
            for i, label in enumerate(problem.labels)
        ]
    )
    assert (result.status == Status.CROSSED).all()
    assert_exact(result.margin, wanted)


@pytest.mark.parametrize("method", ENGINE)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("classes", [400, 1000])
def test_the_nearest_of_many_twins_is_found(classes: int, norm: str, method: str) -> None:
    """Above 256 classes norms are estimated from 64 differences: the same rivals, but for near ties."""
    problem = many_twins(classes)
    result = measure_margins(problem.model, problem.images, problem.labels, norm=norm, method=method)
    wanted = np.array(
        [
            linear_margin(problem.weight, problem.bias, problem.pixels(i), int(label), norm)
            for i, label in enumerate(problem.labels)
        ]
    )
    ratio = result.margin.double().numpy() / wanted
    print(f"{classes} {norm} {method}: mean {ratio.mean():.4f}, exact {(ratio < 1 + 2e-3).mean():.2f}")
    assert ratio.min() > 1 - 1e-4
    assert ratio.mean() < 1.02
    assert (ratio < 1 + 2e-3).mean() > 0.55


@pytest.mark.parametrize("method", ENGINE)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("classes", [2, 10, 100])
def test_active_box(classes: int, norm: str, method: str) -> None:
    problem = affine(classes, edge=True, count=24 if classes < 100 else 5)
    result = measure_margins(problem.model, problem.images, problem.labels, norm=norm, method=method)
    assert_exact(result.margin, exact(problem, norm))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("norm", NORMS)
def test_the_box_matters_in_these_problems(norm: str, method: str) -> None:
    problem = affine(2, edge=True, count=24)
    free = np.array(
        [
            linear_margin(problem.weight, problem.bias, problem.pixels(i), int(label), norm)
            for i, label in enumerate(problem.labels)
        ]
    )
    boxed = exact(problem, norm)
    assert (boxed > 1.05 * free).mean() > 0.5
    result = measure_margins(problem.model, problem.images, problem.labels, norm=norm, method=method)
    assert (result.margin.numpy() > (1 - 1e-4) * boxed).all()


@pytest.mark.parametrize(("method", "mean", "worst"), [("deepfool", 1.12, 1.5), ("tight", 1.012, 1.05)])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("classes", "rank"), [(2, 1), (10, 1), (10, 3), (100, 1), (100, 5)])
def test_wrong_samples(classes: int, rank: int, norm: str, method: str, mean: float, worst: float) -> None:
    problem = relabel(affine(classes, edge=True, count=24, uneven=False), rank)
    result = measure_margins(problem.model, problem.images, problem.labels, norm=norm, method=method)
    wanted = exact(problem, norm)
    reachable = np.isfinite(wanted)
    assert (result.margin < 0).all()
    assert (result.status[torch.from_numpy(reachable)] == Status.CROSSED).all()
    ratio = result.margin.numpy()[reachable] / wanted[reachable]
    assert ratio.min() > 1 - 1e-4
    assert ratio.mean() < mean
    assert ratio.max() < worst


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("norm", NORMS)
def test_two_classes_are_exact_for_every_method_and_sign(norm: str, method: str) -> None:
    problem = affine(2, spread=0.02)
    labels = problem.labels.clone()
    labels[::2] = 1 - labels[::2]
    both = Affine(problem.model, problem.images, labels, problem.weight, problem.bias)
    result = measure_margins(problem.model, problem.images, labels, norm=norm, method=method)
    assert_exact(result.margin, exact(both, norm))


@pytest.mark.parametrize("method", ["fast", "deepfool-classic"])
@pytest.mark.parametrize("norm", NORMS)
def test_walks_are_never_below_exact(norm: str, method: str) -> None:
    for problem in (affine(10, edge=True, count=24), relabel(affine(10, edge=True, count=24, uneven=False), 2)):
        result = measure_margins(problem.model, problem.images, problem.labels, norm=norm, method=method)
        wanted = exact(problem, norm)
        crossed = result.crossed.numpy()
        assert crossed.mean() > 0.9
        ratio = result.margin.numpy()[crossed] / wanted[crossed]
        assert ratio.min() > 1 - 1e-4
        assert ratio.mean() < 1.5


@given(
    classes=st.integers(2, 12),
    seed=st.integers(0, 10_000),
    low=st.floats(-3, 3),
    width=st.floats(0.1, 300),
    gain=st.sampled_from([1e-4, 1.0, 1e4]),
)
@settings(max_examples=25, deadline=None)
def test_bounds_and_logit_scale_only_rescale(classes: int, seed: int, low: float, width: float, gain: float) -> None:
    problem = affine(classes, seed=seed, count=8, edge=True)
    plain = measure_margins(problem.model, problem.images, problem.labels)

    class Rescaled(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = gain * problem.model((images - low) / width)
            return logits

    ends = torch.tensor([low, low + width])
    images = (low + width * problem.images).clamp(*ends)
    moved = measure_margins(Rescaled(), images, problem.labels, bounds=(low, low + width))
    assert torch.allclose(moved.margin / width, plain.margin, rtol=5e-3, atol=1e-5)
