"""The theory against brute force, limits with a closed form, and students of finite size."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq, minimize, minimize_scalar
from scipy.special import ndtr

from puma.errors import PumaError
from puma.perceptron.problem import (
    Array,
    PerceptronTask,
    PoolPruning,
    TeacherKind,
    draw_training_set,
    kept_range,
    measure_overlap,
)
from puma.perceptron.students import Logistic, fit_maxmargin
from puma.perceptron.sweep import StudyPoint, compute_points
from puma.perceptron.theory import crossover_alpha, predict_students
from puma.perceptron.theory_equations import Ensemble, FreeCoordinates, LogisticTheory, lifted_pull

PRUNINGS = [PoolPruning(), PoolPruning("pe", 0.2), PoolPruning("pd", 0.2), PoolPruning("pe", 0.2, filtered=True)]


def density(value: float) -> float:
    return float(np.exp(-value * value / 2) / np.sqrt(2 * np.pi))


def moments(tau: float) -> tuple[float, float]:
    """Return rho and A by numerical integration."""
    one = 2 * quad(lambda g: (g - tau) * density(g), tau, 12)[0]
    two = 2 * quad(lambda g: (g - tau) ** 2 * density(g), tau, 12)[0]
    cross = 2 * quad(lambda g: g * (g - tau) * density(g), tau, 12)[0]
    return float(one / np.sqrt(two)), float(cross / np.sqrt(two))


@pytest.mark.parametrize("tau", [0.01, 0.3, 1.5])
def test_free_coordinates_match_numerical_integrals(tau: float) -> None:
    ensemble = Ensemble.of(PoolPruning(), 0.01, 200, "axis")
    found = FreeCoordinates.at(ensemble, np.log(tau))
    assert (found.rho, found.gain) == pytest.approx(moments(tau), rel=1e-8)
    near = FreeCoordinates.at(ensemble, np.log(tau * 1.001))
    assert (near.gain - found.gain) / (near.rho - found.rho) == pytest.approx(tau, rel=1e-2)


def margin_at(overlap_: float, tau: float, alpha: float, eps: float, pruning: PoolPruning, dense: bool) -> float:
    """Solve the constraint for kappa at given order parameters, by plain quadrature over u."""
    floor = eps * (np.sqrt(400 / np.pi) if dense else 1.0) if pruning.filtered else 0.0
    low, high = kept_range(pruning.strategy, pruning.keep, floor)
    rho, gain = moments(tau) if eps else (np.sqrt(2 / np.pi), 1.0)
    rest = np.sqrt(1 - overlap_**2)
    norm = np.sqrt(200) * rho if dense else overlap_ + rest * np.sqrt(200) * rho
    budget = gain**2 - overlap_**2 if dense else (rest * gain) ** 2
    nodes, weights = np.polynomial.legendre.leggauss(200)
    top = min(high, low + 8)
    u = (low + top) / 2 + (top - low) / 2 * nodes
    mass = weights * np.exp(-u * u / 2)
    mass /= mass.sum()

    def excess(kappa: float) -> float:
        x = (kappa + eps * norm - overlap_ * u) / rest
        second = (1 + x * x) * ndtr(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
        return float(alpha * rest**2 * (mass @ second) - budget)

    return float(brentq(excess, -5, 20))


@pytest.mark.parametrize("pruning", PRUNINGS[:3])
@pytest.mark.parametrize("alpha", [0.5, 2.5])
def test_without_attack_it_is_the_largest_margin_over_overlaps(pruning: PoolPruning, alpha: float) -> None:
    (found,) = predict_students([alpha], pruning)
    best = minimize_scalar(
        lambda r: -margin_at(r, 0.0, alpha, 0.0, pruning, False), bounds=(0.0, 0.9999), method="bounded",
        options={"xatol": 1e-7},
    )  # fmt: skip
    assert 1 / found.norm == pytest.approx(-best.fun, rel=1e-5)
    assert found.overlap == pytest.approx(best.x, abs=1e-3)


@pytest.mark.parametrize(("teacher", "eps"), [("axis", 0.1), ("dense", 0.03)])
@pytest.mark.parametrize("pruning", [PoolPruning(), PoolPruning("pd", 0.3)])
def test_under_attack_it_is_the_largest_margin_over_overlaps_and_thresholds(
    pruning: PoolPruning, teacher: TeacherKind, eps: float
) -> None:
    (found,) = predict_students([0.6], pruning, eps, teacher=teacher)

    def loss(state: Array) -> float:
        return -margin_at(float(state[0]), float(state[1]), 0.6, eps, pruning, teacher == "dense")

    best = minimize(loss, [found.overlap - 0.05, 0.5], method="Nelder-Mead", options={"xatol": 1e-5, "fatol": 1e-11})
    assert 1 / found.norm == pytest.approx(-best.fun, rel=1e-7)
    assert found.overlap == pytest.approx(best.x[0], abs=1e-4)


def test_known_values() -> None:
    cases = [(PoolPruning(), 4.0, 0.0631), (PoolPruning(), 8.0, 0.0183)]
    cases += [(PoolPruning("pe", 0.2), 8.0, 0.00077), (PoolPruning("pd", 0.2), 8.0, 0.00335)]
    for pruning, alpha, expected in cases:
        (found,) = predict_students([alpha], pruning)
        assert found.error == pytest.approx(expected, rel=6e-3)


def test_crossover() -> None:
    assert crossover_alpha(0.2) == pytest.approx(1.76, abs=0.01)
    assert 1.97 < crossover_alpha(0.01) < 2.0


@pytest.mark.parametrize("student", [None, Logistic()])
@pytest.mark.parametrize("eps", [0.0, 0.001, 0.01, 0.05])
def test_no_solution_is_lost(eps: float, student: Logistic | None) -> None:
    alphas = [0.3, 1.9, 2.1, 32.0]
    cases = [PoolPruning(), PoolPruning("pe", 0.3), PoolPruning("pe", 0.01), PoolPruning("pd", 0.01)]
    if eps:
        cases += [PoolPruning("pe", 0.01, filtered=True)]
    for pruning in cases:
        found = predict_students(alphas, pruning, eps, student=student)
        errors = np.array([prediction.error for prediction in found])
        if student is not None or eps == 0 or pruning.filtered or pruning.strategy == "pd":
            assert np.isfinite(errors).all()
        separable = [prediction.separable for prediction in found]
        assert separable == sorted(separable, reverse=True)
        assert (np.diff(errors[np.isfinite(errors)]) < 1e-9).all()


def test_a_curve_does_not_depend_on_its_other_points() -> None:
    (alone,) = predict_students([2.0], PoolPruning("pe", 0.05), student=Logistic())
    among = predict_students([0.4, 2.0, 9.0], PoolPruning("pe", 0.05), student=Logistic())[1]
    assert alone.error == pytest.approx(among.error, rel=1e-5)
    backwards = predict_students([9.0, 2.0], PoolPruning("pe", 0.05))
    assert [prediction.alpha for prediction in backwards] == [9.0, 2.0]


def test_at_a_strong_ridge_the_student_is_the_mean_sample() -> None:
    ridge, alpha, eps = 50.0, 2.0, 0.1
    (found,) = predict_students([alpha], PoolPruning(), eps, student=Logistic(ridge))
    lift = (np.sqrt(2 / np.pi) - eps) / (2 * ridge)
    tau = eps * np.sqrt(alpha * 200)
    square = 2 * ((1 + tau**2) * ndtr(-tau) - tau * density(tau))
    noise = np.sqrt(square / alpha) / (2 * ridge)
    assert found.norm == pytest.approx(np.hypot(lift, noise), rel=1e-2)
    assert found.overlap == pytest.approx(lift / np.hypot(lift, noise), rel=1e-2)


@pytest.mark.parametrize("eps", [0.0, 0.01])
def test_at_a_vanishing_ridge_the_logistic_student_is_the_hard_margin_one(eps: float) -> None:
    (hard,) = predict_students([1.0], PoolPruning(), eps)
    # the approach is slow, as one over the logarithm of the ridge
    gaps = []
    for ridge in (1e-4, 1e-7, 1e-12):
        (soft,) = predict_students([1.0], PoolPruning(), eps, student=Logistic(ridge))
        gaps.append(abs(soft.error / hard.error - 1))
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.02


def test_the_averages_over_samples_are_those_of_a_large_draw() -> None:
    ensemble = Ensemble.of(PoolPruning("pe", 0.3, filtered=True), 0.02, 200, "axis")
    rng = np.random.default_rng(0)
    u = np.abs(rng.standard_normal(1_000_000))
    u = u[(u > ensemble.low) & (u < ensemble.high)]
    h = rng.standard_normal(len(u))
    length, angle, shift, mu = 6.0, 0.4, 0.7, 0.3
    pull = lifted_pull(length * (np.cos(angle) * u + np.sin(angle) * h) - shift, mu)
    drawn = [pull.mean(), (pull**2).mean(), (pull * u).mean(), (pull * h).mean()]
    found = LogisticTheory(ensemble, 1e-5).averages(length, angle, shift, mu)
    np.testing.assert_allclose(found, drawn, rtol=1e-2)


def test_the_lifted_pull_solves_its_equation() -> None:
    margin = np.linspace(-300, 60, 400)
    for mu in (1e-3, 0.2, 5.0):
        pull = lifted_pull(margin, mu)
        lifted = margin + pull / mu
        np.testing.assert_allclose(pull, 1 / (1 + np.exp(lifted)), rtol=1e-7)


@pytest.mark.parametrize("teacher", ["axis", "dense"])
@pytest.mark.parametrize("pruning", PRUNINGS)
def test_hard_margin_students_meet_it(pruning: PoolPruning, teacher: TeacherKind) -> None:
    eps, errors, margins = 0.01, [], []
    for seed in range(6):
        drawn = draw_training_set(PerceptronTask(2.5, pruning, 150, teacher), eps, seed)
        found = fit_maxmargin(drawn.samples, eps)
        assert found.converged
        if found.separable:
            errors.append(measure_overlap(found.weights, drawn.teacher).error)
            margins.append(found.margin)
    (expected,) = predict_students([2.5], pruning, eps, dimension=150, teacher=teacher)
    if not expected.separable:
        assert len(errors) <= 3
        return
    assert np.mean(margins) == pytest.approx(1 / expected.norm, rel=0.12)
    assert np.mean(errors) == pytest.approx(expected.error, rel=0.25)


@pytest.mark.parametrize("eps", [0.0, 0.01])
@pytest.mark.parametrize("pruning", [*PRUNINGS[:3], PoolPruning("pe", 0.02)])
def test_logistic_students_meet_it_separable_or_not(pruning: PoolPruning, eps: float) -> None:
    task = PerceptronTask(6.0, pruning)
    outcomes = [compute_points([StudyPoint(task, Logistic(), eps, seed)])[0] for seed in range(6)]
    (expected,) = predict_students([6.0], pruning, eps, student=Logistic())
    assert np.mean([outcome.norm for outcome in outcomes]) == pytest.approx(expected.norm, rel=0.08)
    assert np.mean([outcome.error for outcome in outcomes]) == pytest.approx(expected.error, rel=0.2)


def test_alpha_must_be_positive() -> None:
    with pytest.raises(PumaError, match="positive"):
        predict_students([0.0], PoolPruning())
