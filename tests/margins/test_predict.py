"""Predicted margins: exact where slopes are, covered as promised, agreeing as expected, the same after a kill."""

import builtins
import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn

from margins.problems import smooth_net
from puma.cli import main
from puma.errors import PumaError
from puma.margins import Margins, PredictConfig, Status, measure_pool, read_margins
from puma.margins.compare import compare_columns
from puma.margins.predict_features import CORE, open_reader
from puma.margins.predict_fit import calibrate_half_width, fit_predictor
from puma.margins.predict_select import ErrorModel, PoolEstimate, learn_errors, plan_measuring
from puma.planning import make_plan
from puma.pools import Pool

COLUMNS = ("sample_id", "margin", "status", "label", "prediction", "rival", "forwards", "backwards", "half_width")


def same(one: Margins, two: Margins) -> bool:
    return all(torch.equal(getattr(one, name), getattr(two, name)) for name in COLUMNS)


def image_pool(count: int = 400, classes: int = 4, seed: int = 0) -> Pool:
    random = torch.Generator().manual_seed(seed)
    images = 0.3 + 0.4 * torch.rand(count, 1, 6, 6, generator=random)
    return Pool.from_tensors(images, torch.arange(count) % classes)


def learned_pool(model: nn.Module, count: int) -> Pool:
    """Images of which the model knows most: each fourth has the class that it puts second."""
    random = torch.Generator().manual_seed(0)
    images = 0.3 + 0.4 * torch.rand(count, 1, 6, 6, generator=random)
    with torch.no_grad():
        ranked = model.eval()(images).argsort(1, descending=True)
    labels = torch.where(torch.arange(count) % 4 > 0, ranked[:, 0], ranked[:, 1])
    return Pool.from_tensors(images, labels, class_names=[str(name) for name in range(ranked.shape[1])])


def linear_net(classes: int = 4, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(36, classes))


class NoHead(nn.Module):
    """Logits that are not the output of a linear layer, as any module may have them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear_net()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = 3 * self.inner(images)
        return logits


def test_of_two_classes_of_an_affine_model_the_margin_is_the_scaled_gap() -> None:
    # gap / |w|_1 for every sample: the slope is one number, so that predictions are exact
    pool, model = image_pool(300, 2), linear_net(2)
    found = measure_pool(model, pool, method="predicted", predicting=PredictConfig(measure=0.3))
    exact = measure_pool(model, pool)
    predicted = found.status == Status.PREDICTED
    assert int(predicted.sum()) == 210
    assert found.half_width is not None
    torch.testing.assert_close(found.margin, exact.margin, rtol=0.01, atol=1e-6)
    assert torch.equal(found.margin.sign(), exact.margin.sign())
    assert bool((found.half_width[predicted] > 0).all())
    assert bool((found.half_width[~predicted] == 0).all())
    assert torch.equal(found.margin[~predicted], exact.margin[~predicted])
    assert torch.equal(found.prediction, exact.prediction)
    assert torch.equal(found.label, exact.label)
    assert set(found.forwards[predicted].tolist()) == {1}
    assert set(found.backwards[predicted].tolist()) == {0}


def noisy_samples(count: int, seed: int) -> tuple[Any, Any]:
    """Features of which two decide over the slope, and over how noisy it is."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(count, len(CORE) + 6)).astype(np.float32)
    gap = features[:, 0] * 3
    features[:, 0], features[:, 1] = gap, np.log(np.abs(gap))
    features[:, len(CORE) - 2 : len(CORE)] = random.integers(4, size=(count, 2))
    noise = 0.1 + 0.2 * (features[:, 4] > 0)
    slope = 0.5 * features[:, -1] + 0.3 * np.abs(features[:, -2]) + noise * random.normal(size=count)
    return features, gap.astype(np.float64) * np.exp(slope)


def test_half_widths_cover_as_many_as_they_promise() -> None:
    features, margin = noisy_samples(1500, 0)
    fitted = fit_predictor(features, margin)
    for level in (0.8, 0.9):
        factor = calibrate_half_width(margin, fitted.held_margin, fitted.held_spread, level)
        fresh, truth = noisy_samples(20_000, 1)
        predicted, spread = fitted.predict(fresh)
        inside = np.abs(truth - predicted) <= factor * np.abs(predicted) * spread
        assert inside.mean() == pytest.approx(level, abs=0.025)  # two standard errors of the quantile
        for kind in (fresh[:, 4] > 0, fresh[:, 4] <= 0):  # the spread knows which samples are noisy
            assert inside[kind].mean() == pytest.approx(level, abs=0.06)


def test_few_witnesses_cover_as_many_as_they_promise_on_average() -> None:
    random = np.random.default_rng(0)
    for count in (60, 150):
        covered = np.empty(4000)
        for draw in range(len(covered)):  # an error of e has the rank 1 - exp(-e) among all
            errors = random.exponential(size=count)
            covered[draw] = 1 - np.exp(-calibrate_half_width(1 + errors, np.ones(count), np.ones(count), 0.9))
        place = np.ceil(0.9 * (count + 1))
        mean, spread = place / (count + 1), (0.09 / count) ** 0.5
        assert mean >= 0.9
        assert covered.mean() == pytest.approx(mean, abs=4 * spread / len(covered) ** 0.5)  # 54 of 60 give 0.885
        assert covered.std() == pytest.approx(spread, rel=0.08)


def test_too_few_calibration_samples_promise_nothing() -> None:
    assert calibrate_half_width(np.ones(5), np.ones(5), np.ones(5), 0.9) == np.inf


@pytest.mark.parametrize("fraction", [0.2, 0.7])  # the threshold is positive, negative
def test_the_expected_agreement_is_the_true_one(fraction: float) -> None:
    features, margin = noisy_samples(2000, 0)
    fitted = fit_predictor(features, margin)
    fresh, truth = noisy_samples(20_000, 1)
    predicted, spread = fitted.predict(fresh)
    threshold = float(np.quantile(margin, 1 - fraction))
    errors = learn_errors(margin, fitted.held_margin, fitted.held_spread, threshold)
    estimate = PoolEstimate(predicted.astype(np.float32), spread.astype(np.float32))
    config = PredictConfig(plan_agreement=0.99, prune_easy=fraction, eps=1.0)
    expected, chosen = plan_measuring(estimate, errors, config)
    real = compare_columns(truth.astype(np.float32), estimate.margin, prune_easy=fraction, eps=1.0)
    assert expected.agreement == pytest.approx(real.plan_agreement, abs=0.007)
    assert expected.overlap == pytest.approx(real.pruned_overlap, abs=0.02)
    assert expected.strength_error == pytest.approx(real.strength_error, abs=0.01)
    assert expected.needed == len(chosen) < len(truth) / 2
    estimate.margin[chosen], estimate.spread[chosen] = truth[chosen], 0
    after, more = plan_measuring(estimate, errors, config)
    reached = compare_columns(truth.astype(np.float32), estimate.margin, prune_easy=fraction, eps=1.0).plan_agreement
    assert after.agreement >= 0.989
    assert len(more) <= 0.01 * len(truth)
    assert reached == pytest.approx(0.99, abs=0.004)


def test_the_most_doubtful_are_measured_first_and_no_more_than_needed() -> None:
    errors = ErrorModel(np.linspace(-2, 2, 401))  # uniform
    margin = np.linspace(0.1, 2.0, 1000).astype(np.float32)
    estimate = PoolEstimate(margin, np.full(1000, 0.1, dtype=np.float32))
    expected, chosen = plan_measuring(estimate, errors, PredictConfig(plan_agreement=0.995, prune_easy=0.5))
    distance = np.abs(np.log(margin / expected.threshold))
    assert distance[chosen].max() <= np.delete(distance, chosen).min() + 0.01
    wrong = estimate.judge_sides(expected.threshold, expected.threshold, errors)
    assert np.delete(wrong, chosen).sum() <= 5
    assert np.delete(wrong, chosen[:-1]).sum() > 5 - wrong.max()
    nothing, none = plan_measuring(estimate, errors, PredictConfig(plan_agreement=0.5, prune_easy=0.5))
    assert nothing.needed == len(none) == 0


def test_wrong_below_and_above_the_threshold_are_balanced() -> None:
    # Margins thin out towards the threshold, so more are wrong below it than above. A plan drops a fixed number: it
    # drops measured samples just below the threshold in the place of those, and is wrong about them too.
    random = np.random.default_rng(0)
    predicted, spread = random.exponential(size=100_000), np.where(random.random(100_000) < 0.5, 0.1, 0.4)
    errors = ErrorModel(np.sort(random.normal(size=100_001)))
    truth = predicted * np.exp(spread * random.normal(size=100_000))
    estimate = PoolEstimate(predicted.astype(np.float32), spread.astype(np.float32))
    config = PredictConfig(plan_agreement=0.98, prune_easy=0.1, eps=1.0)
    for _ in range(3):
        expected, chosen = plan_measuring(estimate, errors, config)
        estimate.margin[chosen], estimate.spread[chosen] = truth[chosen], 0
    reached = compare_columns(truth.astype(np.float32), estimate.margin, prune_easy=0.1, eps=1.0).plan_agreement
    assert reached == pytest.approx(expected.agreement, abs=0.0007)  # two standard errors of 2,000 wrong ones
    assert reached >= 0.9793
    between = sorted((estimate.find_cut(0.1), expected.threshold))
    measured = estimate.spread == 0
    one = estimate.judge_sides(estimate.find_cut(0.1), expected.threshold, errors)[measured]
    inside = (estimate.margin[measured] >= between[0]) & (estimate.margin[measured] < between[1])
    assert one.tolist() == inside.astype(float).tolist()  # measured, and yet on the wrong side of the cut
    assert inside.mean() < 0.005


def test_measuring_where_it_matters_reaches_what_was_asked(tmp_path: Path) -> None:
    model = smooth_net(classes=4, channels=1)
    pool = learned_pool(model, 1500)
    exact = measure_pool(model, pool)
    plain = measure_pool(model, pool, method="predicted", predicting=PredictConfig(measure=0.1))
    config = PredictConfig(measure=0.1, plan_agreement=0.99, prune_easy=0.3, eps=0.02)
    found = measure_pool(model, pool, tmp_path / "m.parquet", predicting=config)
    before = compare_columns(exact.margin.numpy(), plain.margin.numpy(), prune_easy=0.3, eps=0.02).plan_agreement
    after = compare_columns(exact.margin.numpy(), found.margin.numpy(), prune_easy=0.3, eps=0.02).plan_agreement
    told = found.made_from["prediction"]
    assert before < 0.98
    assert after >= 0.985
    assert told["expected_agreement"] >= 0.989
    measured = found.status != Status.PREDICTED
    assert told["measured"] == int(measured.sum()) < 700
    torch.testing.assert_close(found.margin[measured], exact.margin[measured], rtol=2e-3, atol=1e-6)
    keep = make_plan(pool, tmp_path / "m.parquet", prune_easy=0.3, eps=0.02).keep
    assert float((keep == make_plan(pool, exact, prune_easy=0.3, eps=0.02).keep).float().mean()) == pytest.approx(after)
    five = [
        found,
        *(measure_pool(model, pool, predicting=dataclasses.replace(config, seed=seed)) for seed in range(1, 5)),
    ]
    reached, covered = [], []
    for some in five:
        alike = compare_columns(exact.margin.numpy(), some.margin.numpy(), prune_easy=0.3, eps=0.02)
        reached.append(alike.plan_agreement)
        inside = (some.margin - exact.margin).abs() <= some.half_width + 1e-6  # type: ignore[operator]
        covered.append(float(inside[(some.status == Status.PREDICTED) & exact.crossed].float().mean()))
    # what was asked, less 0.3 points: to stop at the first estimate that suffices favours lucky estimates
    assert sum(reached) / 5 >= 0.987
    assert sum(covered) / 5 > 0.86  # 150 witnesses each: a standard error of 2.4 points
    strengths = PredictConfig(measure=0.1, strength_error=0.01, eps=0.02)
    closer = measure_pool(model, pool, predicting=strengths)
    off = compare_columns(exact.margin.numpy(), closer.margin.numpy(), prune_easy=0.2, eps=0.02).strength_error
    assert off < 0.015


def test_any_module_is_read() -> None:
    pool = image_pool(300)
    found = measure_pool(NoHead(), pool, method="predicted", predicting=PredictConfig(measure=0.3))
    assert found.made_from["prediction"]["rank_correlation"] > 0.9
    images = torch.rand(8, 1, 6, 6)
    with open_reader(NoHead(), images) as reader:
        assert reader.head is None
        assert reader.read(images, torch.arange(8) % 4).features.shape == (8, len(CORE) + 4)
    with open_reader(linear_net(), images) as reader:
        assert reader.head is not None
        assert reader.read(images, torch.arange(8) % 4).features.shape == (8, len(CORE) + 36)
    wide = nn.Sequential(nn.Flatten(), nn.Linear(36, 600), nn.ReLU(), nn.Linear(600, 300))
    with open_reader(wide, images) as reader:  # many features are projected, many classes no trouble
        assert reader.read(images, torch.arange(8) * 37).features.shape == (8, len(CORE) + 512)
    assert all(parameter.requires_grad for parameter in wide.parameters())


def test_features_are_what_they_are_called() -> None:
    images, labels = torch.rand(5, 1, 6, 6), torch.tensor([0, 1, 2, 3, 0])
    model = linear_net()
    with open_reader(model, images) as reader:
        reading = reader.read(images, labels)
    with torch.no_grad():
        logits = model(images)
    columns = dict(zip(CORE, reading.features[:, : len(CORE)].T, strict=True))
    for row in range(5):
        rivals = [(float(value), place) for place, value in enumerate(logits[row]) if place != int(labels[row])]
        top, rival = max(rivals)
        assert columns["gap"][row] == pytest.approx(float(logits[row, labels[row]]) - top, abs=1e-5)
        assert columns["rival"][row] == rival == int(reading.rival[row])
        assert columns["rival_3"][row] == columns["rival_4"][row] == pytest.approx(min(rivals)[0], abs=1e-6)
        weight = model[1].weight.detach()  # type: ignore[index]
        assert columns["log_scale"][row] == pytest.approx(float((weight[labels[row]] - weight[rival]).norm().log()))
    assert torch.equal(reading.prediction, logits.argmax(1))


def test_logits_that_are_not_finite_say_so() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = linear_net()

        def forward(self, images: Tensor) -> Tensor:
            logits: Tensor = self.inner(images)
            return logits / (images[:, 0, 0, :1] < 0.69)

    pool = image_pool(400)
    found = measure_pool(Broken(), pool, method="predicted", predicting=PredictConfig(measure=0.3))
    bad = found.status == Status.NON_FINITE
    assert 0 < int(bad.sum()) < 40
    assert bool(found.margin[bad].isnan().all())
    assert bool(found.margin[~bad].isfinite().all())


def test_the_file_and_how_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool, out = image_pool(300), tmp_path / "m.parquet"
    found = measure_pool(linear_net(), pool, out, method="predicted", predicting=PredictConfig(measure=0.4))
    assert same(found, read_margins(out))
    assert pq.read_table(out).column_names[-1] == "half_width"
    assert found.made_from["method"] == "predicted"
    assert found.made_from["config"]["measured_by"] == "deepfool"
    assert "60.0% predicted" in repr(found)
    again = found.save(tmp_path / "copy.parquet")
    assert same(read_margins(again), found)
    assert not (tmp_path / "m.parquet.parts").exists()
    assert "half_width" in pq.read_table(again).column_names
    main(["margins", "show", str(out), "--picture", str(tmp_path / "m.png")])
    assert "180 predicted" in capsys.readouterr().out
    with pytest.raises(PumaError, match="method was predicted, now deepfool"):
        measure_pool(linear_net(), pool, out)
    with pytest.raises(PumaError, match=r"something else \(measure was 0.4, now 0.5\)"):
        measure_pool(linear_net(), pool, out, method="predicted", predicting=PredictConfig(measure=0.5))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"measure": 0.0}, r"measure must lie in \(0, 1\], got 0.0"),
        ({"plan_agreement": 1.5}, "plan_agreement must lie"),
        ({"prune_easy": 0.0}, "prune_easy must lie"),
        ({"eps": -1.0, "strength_error": 2.0}, "strength_error must lie .* eps must be positive"),
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, float], sentence: str) -> None:
    with pytest.raises(PumaError, match=sentence):
        PredictConfig(**wrong)  # type: ignore[arg-type]


def test_too_few_measured_and_a_cap_are_refused() -> None:
    before = (
        (400, r"at least 60 measured ones; 0.02 of 400 samples is 8, give --measure 0.15 or more"),
        (50, r"0.02 of 50 samples is 1, measure all"),
    )
    for count, sentence in before:  # before anything is measured: the model is not asked
        with pytest.raises(PumaError, match=sentence):
            measure_pool(linear_net(), image_pool(count), method="predicted")
    with pytest.raises(PumaError, match=r"at least 60 measured ones, 8 were found; .*--measure"):
        fit_predictor(np.ones((90, len(CORE)), dtype=np.float32), np.where(np.arange(90) < 8, 1.0, np.inf))
    with pytest.raises(PumaError, match="cap cannot be predicted"):
        measure_pool(linear_net(), image_pool(400), method="predicted", cap=0.1)


def test_without_scikit_learn_it_is_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def refuse(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("sklearn"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return whole(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(PumaError, match=r"needs scikit-learn; .*puma-pruning\[predict\]"):
        measure_pool(linear_net(), image_pool(400), method="predicted", predicting=PredictConfig(measure=0.3))


SCRIPT = """
import sys, torch
sys.path[:0] = [{tests!r}]
torch.set_num_threads(1)
from margins.test_predict import CONFIG, smooth_net
from puma.margins import measure_pool
from puma.pools import Pool
model = smooth_net(classes=4, channels=1)
measure_pool(model, Pool.open(sys.argv[1]), sys.argv[2], predicting=CONFIG, part_size=150)
"""
CONFIG = PredictConfig(measure=0.1, plan_agreement=0.995, prune_easy=0.3)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("predict")
    learned_pool(smooth_net(classes=4, channels=1), 900).save(folder / "pool")
    (folder / "script.py").write_text(SCRIPT.format(tests=str(Path(__file__).parents[1])))
    return [str(folder / "script.py"), str(folder / "pool")]


@pytest.fixture(scope="module")
def undisturbed(script: list[str]) -> Margins:
    return measure_pool(smooth_net(classes=4, channels=1), script[1], predicting=CONFIG, part_size=150)


@pytest.mark.parametrize(
    "moment", ["predict-random.parquet", "predict-training.npz", "part-000002.parquet", "predict-round-0.npz"]
)
def test_kill_9_at_any_moment(script: list[str], undisturbed: Margins, tmp_path: Path, moment: str) -> None:
    out = tmp_path / "m.parquet"
    call = [sys.executable, *script, str(out)]
    process = subprocess.Popen(call, env=environment())
    while process.poll() is None and not (tmp_path / "m.parquet.parts" / moment).exists():
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not out.exists()
    subprocess.run(call, env=environment(), check=True)
    assert same(read_margins(out), undisturbed)


def test_two_ranks_give_the_same_file(script: list[str], undisturbed: Margins, tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*launch, *script, str(tmp_path / "two.parquet")], env=environment(), check=True)
    assert same(read_margins(tmp_path / "two.parquet"), undisturbed)
