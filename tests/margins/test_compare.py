"""``puma margins compare``: exact figures, alignment by id, pictures, and what cannot be compared."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from margins.problems import smooth_net
from puma.cli import main
from puma.errors import PumaError
from puma.margins import Margins, PredictConfig, Status, compare_margins, measure_pool
from puma.margins.compare import compare_columns, rank_correlation
from puma.margins.measuring_cost import estimate_measuring
from puma.margins.pool_driver import describe_task, predict_instead
from puma.pools import Pool


def make_margins(values: list[float], ids: list[int] | None = None, **made_from: str) -> Margins:
    count = len(values)
    whole, few = torch.zeros(count, dtype=torch.int64), torch.zeros(count, dtype=torch.int32)
    margin = torch.tensor(values)
    status = torch.where(margin.isnan(), int(Status.NON_FINITE), int(Status.CROSSED)).to(torch.int8)
    described = {"method": "deepfool", "norm": "linf", "pool": "p", "pool_fingerprint": "p", **made_from}
    places = torch.tensor(ids) if ids is not None else torch.arange(count)
    return Margins(margin, status, whole, whole, whole, few, few, places, described)


def test_the_figures_of_five_samples() -> None:
    one = make_margins([-0.2, 0.1, 0.2, 0.3, 0.4])
    two = make_margins([0.1, 0.1, 0.2, 0.8, 0.6])
    [found] = compare_margins({"one": one, "two": two}, prune_easy=0.2, eps=0.25)
    assert found.count == 5
    assert found.sign_agreement == pytest.approx(0.8)
    assert found.plan_agreement == pytest.approx(0.6)  # the last two change places
    assert found.pruned_overlap == 0
    assert found.strength_error == pytest.approx((0.3 / 0.25) / 3)  # of the three that both keep, the first differs
    assert found.ratio == pytest.approx(1.0)  # of 0.5, 1, 1, 1.5 and 8/3
    assert found.rank_correlation == pytest.approx(spearmanr([-0.2, 0.1, 0.2, 0.3, 0.4], [0.1, 0.1, 0.2, 0.8, 0.6])[0])


def test_a_file_agrees_with_itself_and_rows_go_by_their_ids() -> None:
    one = make_margins([0.1, 0.5, -0.3, 0.2], [3, 5, 7, 9])
    two = make_margins([0.2, -0.3, 0.5, 0.1, 9.0], [9, 7, 5, 3, 1])
    [found] = compare_margins({"one": one, "two": two}, prune_easy=0.25, eps=1.0)
    assert (found.count, found.missing) == (4, 0)
    assert found.rank_correlation == pytest.approx(1)
    assert (found.sign_agreement, found.plan_agreement, found.pruned_overlap, found.strength_error) == (1, 1, 1, 0)


def test_ranks_are_those_of_scipy() -> None:
    random = np.random.default_rng(0)
    one, two = random.integers(20, size=200) / 7, random.normal(size=200)
    assert rank_correlation(one, two) == pytest.approx(spearmanr(one, two)[0])
    assert np.isnan(rank_correlation(np.ones(3), np.arange(3.0)))


def test_samples_without_a_margin_are_counted_and_infinite_ones_are_the_easiest() -> None:
    nan, inf = float("nan"), float("inf")
    one = np.array([0.1, nan, inf, 0.3, -0.2], dtype=np.float32)
    two = np.array([0.1, 0.2, 0.9, 0.3, nan], dtype=np.float32)
    found = compare_columns(one, two, prune_easy=0.34, eps=1.0)
    assert (found.count, found.missing) == (3, 2)
    assert found.plan_agreement == found.pruned_overlap == 1


def test_what_cannot_be_compared() -> None:
    one = make_margins([0.1, 0.2])
    with pytest.raises(PumaError, match="at least two files"):
        compare_margins({"one": one})
    with pytest.raises(PumaError, match="different pools"):
        compare_margins({"one": one, "two": make_margins([0.1, 0.2], pool="other")})
    with pytest.raises(PumaError, match=r"different norms \(l2, linf\)"):
        compare_margins({"one": one, "two": make_margins([0.1, 0.2], norm="l2")})
    with pytest.raises(PumaError, match="no samples in common"):
        compare_margins({"one": one, "two": make_margins([0.1, 0.2], [5, 6])})
    with pytest.raises(PumaError, match="prune_easy must lie"):
        compare_margins({"one": one, "two": one}, prune_easy=1.0)


def test_the_command_writes_pictures_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = torch.Generator().manual_seed(0)
    first = make_margins((torch.randn(300, generator=random) * 0.1).tolist())
    files = []
    for number in range(3):
        noise = 0.01 * number * torch.randn(300, generator=random)
        files.append(str(replace(first, margin=first.margin + noise).save(tmp_path / f"m{number}.parquet")))
    main(["margins", "compare", *files, "--prune-easy", "0.25", "--eps", "8/255", "--table", str(tmp_path / "t.json")])
    said = capsys.readouterr().out
    assert "plans that drop 25%, strengths up to 8/255" in said
    assert said.count(" : ") == 3
    for name in ("m0-compare.png", "m0-heat-map.png"):
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG"
    pairs = json.loads((tmp_path / "t.json").read_text())["pairs"]
    assert [(pair["one"], pair["two"]) for pair in pairs] == [("m0", "m1"), ("m0", "m2"), ("m1", "m2")]
    assert pairs[0]["rank_correlation"] > pairs[1]["rank_correlation"]
    for words, sentence in (([files[0], files[0]], "given twice"), ([files[0]], "at least two files")):
        with pytest.raises(SystemExit):
            main(["margins", "compare", *words])
        assert sentence in capsys.readouterr().err


def test_the_cost_is_counted_from_a_trial() -> None:
    pool = Pool.from_tensors(torch.rand(300, 1, 8, 8), torch.arange(300) % 5)
    model = smooth_net(channels=1)
    task = describe_task(model, pool, "deepfool", "linf", 64, None, 8192, None, False, "")
    whole = estimate_measuring(task)
    exact = measure_pool(model, pool, batch_size=64)
    assert (whole.samples, whole.measured) == (300, 300)
    assert whole.forwards == pytest.approx(float(exact.forwards.sum()), rel=0.15)
    assert whole.backwards == pytest.approx(float(exact.backwards.sum()), rel=0.15)
    assert whole.seconds > 0
    assert whole.memory_bytes > 50 << 20
    some = estimate_measuring(predict_instead(task, PredictConfig(measure=0.2)))
    assert some.measured == 60
    assert 300 < some.forwards < whole.forwards
    assert some.seconds < whole.seconds
