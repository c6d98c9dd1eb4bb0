import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from puma.planning import adaptive_strength, prune

scores = st.lists(st.integers(-4, 4), min_size=1, max_size=60)  # few values: many ties
fractions = st.floats(0, 0.99)
seeds = st.integers(0, 5)


@given(values=scores, fraction=fractions, seed=seeds)
@settings(max_examples=200, deadline=None)
def test_the_count_is_exact_and_no_kept_sample_is_easier_than_a_dropped_one(
    values: list[int], fraction: float, seed: int
) -> None:
    score = torch.tensor(values, dtype=torch.float32)
    for drop in ("high", "low", "random"):
        keep = prune(score, fraction, drop=drop, seed=seed)
        assert int((~keep).sum()) == math.floor(fraction * len(values) + 1e-9)
        if drop != "random" and keep.any() and not keep.all():
            sign = 1 if drop == "high" else -1
            assert (sign * score[keep]).max() <= (sign * score[~keep]).min()


@given(values=scores, dropped=st.integers(0, 60), seed=seeds)
@settings(max_examples=200, deadline=None)
def test_easy_and_difficult_are_complementary(values: list[int], dropped: int, seed: int) -> None:
    count = len(values)
    dropped = 1 + dropped % max(count - 1, 1)
    if dropped >= count:
        return
    score = torch.tensor(values, dtype=torch.float32)
    without_high = prune(score, dropped / count, drop="high", seed=seed)
    without_low = prune(score, (count - dropped) / count, drop="low", seed=seed)
    assert torch.equal(without_high, ~without_low)


@given(values=scores, fraction=fractions, seed=seeds, order_seed=st.integers(0, 100))
@settings(max_examples=100, deadline=None)
def test_permuting_the_rows_permutes_what_is_kept(
    values: list[int], fraction: float, seed: int, order_seed: int
) -> None:
    score, ids = torch.tensor(values, dtype=torch.float32), torch.arange(len(values)) * 3
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(order_seed))
    for drop in ("high", "low", "random"):
        keep = prune(score, fraction, drop=drop, seed=seed, sample_id=ids)
        permuted = prune(score[order], fraction, drop=drop, seed=seed, sample_id=ids[order])
        assert torch.equal(keep[order], permuted)


@given(margin=st.floats(-2, 2), eps=st.floats(0.01, 1), gap=st.floats(0, 0.5))
@settings(max_examples=300, deadline=None)
def test_strength_has_three_branches_that_meet(margin: float, eps: float, gap: float) -> None:
    found = float(adaptive_strength(torch.tensor([margin], dtype=torch.float64), eps, gap=gap))
    if margin - gap >= eps:
        assert found == eps
    elif margin - gap <= -eps:
        assert found == -eps
    else:
        assert found == margin - gap
    joints = torch.tensor([gap - eps, gap + eps], dtype=torch.float64)
    inside = adaptive_strength(joints, eps, gap=gap)
    torch.testing.assert_close(inside, torch.tensor([-eps, eps], dtype=torch.float64))


def test_infinite_margins_are_the_extremes() -> None:
    score = torch.tensor([0.1, torch.inf, -torch.inf, 0.2])
    assert prune(score, 0.25).tolist() == [True, False, True, True]
    assert prune(score, 0.25, drop="low").tolist() == [True, True, False, True]
