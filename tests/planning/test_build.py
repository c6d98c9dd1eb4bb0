from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch

from conftest import MakePool
from puma.errors import PumaError
from puma.planning import PruneRule, StrengthRule, build_plan, prune_strata
from puma.planning.build import find_prune_start
from puma.planning.prune import keep_samples
from puma.pools import Pool
from puma.scores import Scores

EPS = 0.1


@pytest.fixture
def pool(make_pool: MakePool) -> Pool:
    return make_pool("real", 40) + make_pool("generated", 60, origin=1, seed=1)


def scores(pool: Pool, kind: str, values: np.ndarray) -> Scores:
    return Scores(kind, pool.sample_id, values.astype(np.float32), pool.fingerprint)


@pytest.fixture
def margin(pool: Pool) -> Scores:
    return scores(pool, "margin", np.random.default_rng(0).permutation(np.linspace(-0.3, 0.3, 100)))


@pytest.fixture
def difficulty(pool: Pool) -> Scores:
    return scores(pool, "cd_clean", np.random.default_rng(1).permutation(np.repeat([0.0, 0.01, 0.5, 1.0], 25)))


NONE, CONSTANT = PruneRule(), StrengthRule("constant", EPS)


def test_puma_drops_the_highest_margins_and_fits_the_rest(pool: Pool, margin: Scores) -> None:
    plan = build_plan(pool, PruneRule(easy=0.2), StrengthRule("margin", EPS), margin=margin)
    assert (~plan.keep).sum() == 20
    assert margin.score[~plan.keep.numpy()].min() > margin.score[plan.keep.numpy()].max()
    assert np.array_equal(plan.strength.numpy(), np.clip(margin.score, -EPS, EPS).astype(np.float32))
    assert plan.pool_fingerprint == pool.fingerprint


@pytest.mark.parametrize(
    ("pruning", "dropped"),
    [
        (PruneRule(easy_threshold=0.02), [0.0, 0.01]),  # CD < 0.02
        (PruneRule(difficult_threshold=1.0), [1.0]),  # CD = 1
        (PruneRule(easy_threshold=0.02, difficult_threshold=1.0), [0.0, 0.01, 1.0]),
        (PruneRule(easy=0.25), [0.0]),
        (PruneRule(difficult=0.25), [1.0]),
        (PruneRule(easy=0.5, difficult=0.25), [0.0, 0.01, 1.0]),
        (NONE, []),
    ],
)
def test_strategies_by_difficulty(pool: Pool, difficulty: Scores, pruning: PruneRule, dropped: list[float]) -> None:
    plan = build_plan(pool, pruning, CONSTANT, score=difficulty)
    assert np.array_equal(~plan.keep.numpy(), np.isin(difficulty.score, np.array(dropped, dtype=np.float32)))
    assert plan.strength.tolist() == pytest.approx([EPS] * 100)


def test_margin_thresholds_point_the_other_way(pool: Pool, margin: Scores) -> None:
    plan = build_plan(pool, PruneRule(easy_threshold=0.2, difficult_threshold=-0.1), CONSTANT, margin=margin)
    assert np.array_equal(plan.keep.numpy(), (margin.score <= 0.2) & (margin.score > -0.1))


def test_random_needs_no_score_and_differs_by_seed(pool: Pool) -> None:
    one, two, other = (build_plan(pool, PruneRule(random=0.22, seed=seed), CONSTANT) for seed in (0, 0, 1))
    assert int((~one.keep).sum()) == 22
    assert torch.equal(one.keep, two.keep)
    assert not torch.equal(one.keep, other.keep)


@pytest.mark.parametrize("within", ["class", "origin"])
def test_shares_within_groups(pool: Pool, margin: Scores, within: str) -> None:
    plan = build_plan(pool, PruneRule(easy=0.25, within=within), CONSTANT, margin=margin)  # type: ignore[arg-type]
    column = pool.labels if within == "class" else pool.origin
    for value in np.unique(column):
        rows = column == value
        assert int((~plan.keep.numpy()[rows]).sum()) == rows.sum() // 4
        stays = plan.keep.numpy()[rows]
        assert margin.score[rows][stays].max() < margin.score[rows][~stays].min()


def test_rules_that_look_at_difficulty(pool: Pool, margin: Scores, difficulty: Scores) -> None:
    always_wrong = difficulty.score == 1
    fitted = np.clip(margin.score - 0.05, -EPS, EPS)
    weak = build_plan(pool, NONE, StrengthRule("weak-if-difficult", EPS, weak_eps=0.01), difficulty=difficulty)
    assert np.allclose(weak.strength, np.where(always_wrong, 0.01, EPS))
    rule = StrengthRule("margin-if-difficult", EPS, gap=0.05)
    mixed = build_plan(pool, NONE, rule, margin=margin, difficulty=difficulty)
    assert np.allclose(mixed.strength, np.where(always_wrong, fitted, EPS))
    both = build_plan(
        pool, PruneRule(easy_threshold=0.02), replace(rule, rule="margin"), score=difficulty, margin=margin
    )
    assert np.array_equal(both.keep.numpy(), difficulty.score >= np.float32(0.02))
    assert np.allclose(both.strength, fitted)


def test_searches_that_did_not_cross_are_extremes(pool: Pool, margin: Scores) -> None:
    values = margin.score.copy()
    values[[3, 4]] = np.inf, -np.inf
    plan = build_plan(pool, PruneRule(easy=0.01), StrengthRule("margin", EPS), margin=scores(pool, "margin", values))
    assert not plan.keep[3]
    assert plan.strength[4] == -np.float32(EPS)


def test_samples_without_a_score(pool: Pool, margin: Scores) -> None:
    values = margin.score.copy()
    values[[7, 8]] = np.nan
    broken = scores(pool, "margin", values)
    with pytest.raises(PumaError, match=r"2 samples have no score .*sample_id 7; give --drop-failed"):
        build_plan(pool, PruneRule(easy=0.1), StrengthRule("margin", EPS), margin=broken)
    plan = build_plan(pool, PruneRule(easy=0.1), StrengthRule("margin", EPS), margin=broken, drop_failed=True)
    assert not plan.keep[[7, 8]].any()
    assert int((~plan.keep).sum()) == 2 + 9  # a tenth of the 98 others


@pytest.mark.parametrize("pruning", [PruneRule(easy=0.2), PruneRule(difficult=0.2), PruneRule(random=0.2)])
def test_samples_without_a_score_use_up_no_share(pool: Pool, difficulty: Scores, pruning: PruneRule) -> None:
    values = difficulty.score.copy()
    values[:40] = np.nan
    plan = build_plan(pool, pruning, CONSTANT, score=scores(pool, "cd_clean", values), drop_failed=True)
    assert not plan.keep[:40].any()
    assert int((~plan.keep[40:]).sum()) == 12


def test_random_and_easy_do_not_choose_the_same_samples(pool: Pool) -> None:
    level = scores(pool, "margin", np.zeros(100))
    plan = build_plan(pool, PruneRule(easy=0.2, random=0.2), CONSTANT, margin=level)
    assert int((~plan.keep).sum()) > 25


def test_thresholds_at_ties(pool: Pool) -> None:
    level = scores(pool, "margin", np.repeat([0.1, 0.2], 50))
    assert build_plan(pool, PruneRule(easy_threshold=0.2), CONSTANT, margin=level).keep.all()
    lower = build_plan(pool, PruneRule(difficult_threshold=0.1), CONSTANT, margin=level)
    assert lower.keep.tolist() == [False] * 50 + [True] * 50


def test_only_what_lies_beyond_goes_and_never_more_than_the_share(pool: Pool, margin: Scores) -> None:
    values = margin.of(pool)
    for beyond in (1.0, 2.0, 2.5, 2.9, 4.0):
        plan = build_plan(pool, PruneRule(easy=0.2, beyond=beyond), StrengthRule("margin", EPS), margin=margin)
        far = np.sort(values[values > beyond * EPS])[-20:]
        assert np.array_equal(np.sort(values[~plan.keep.numpy()]), far), beyond
        assert plan.made_from["pruning.beyond"] == str(beyond)
    assert int((~plan.keep).sum()) == 0  # the farthest lies at 3 eps


def test_random_samples_go_only_beyond_the_distance(pool: Pool, margin: Scores) -> None:
    values = margin.of(pool)
    for beyond, within in ((1.0, "pool"), (2.0, "class"), (2.9, "pool")):
        rule = PruneRule(random=0.2, beyond=beyond, within=within)  # type: ignore[arg-type]
        dropped = ~build_plan(pool, rule, StrengthRule("margin", EPS), margin=margin).keep.numpy()
        far = values > beyond * EPS
        assert not (dropped & ~far).any()
        groups = [pool.labels == label for label in np.unique(pool.labels)] if within == "class" else [far | True]
        assert all(dropped[rows].sum() == min(rows.sum() // 5, far[rows].sum()) for rows in groups), beyond
        if far.sum() > 40:  # drawn at random, not the farthest
            assert values[dropped].mean() < np.sort(values)[-dropped.sum() :].mean()
            other = build_plan(pool, replace(rule, seed=1), StrengthRule("margin", EPS), margin=margin)
            assert not np.array_equal(~other.keep.numpy(), dropped)


def test_beyond_goes_by_the_margin_whatever_ranks(pool: Pool, margin: Scores, difficulty: Scores) -> None:
    rule = PruneRule(easy=0.5, difficult=0.1, beyond=1.0)
    plan = build_plan(pool, rule, CONSTANT, score=difficulty, margin=margin)
    without = build_plan(pool, replace(rule, beyond=None), CONSTANT, score=difficulty, margin=margin)
    spared = plan.keep & ~without.keep
    easy = difficulty.of(pool) < 0.5
    assert np.array_equal(spared.numpy(), ~without.keep.numpy() & easy & (margin.of(pool) <= EPS))
    assert not bool((without.keep & ~plan.keep).any())


def test_rules_at_their_defaults_leave_the_description_as_it_was(pool: Pool, margin: Scores) -> None:
    told = build_plan(pool, PruneRule(easy=0.2), StrengthRule("margin", EPS), margin=margin).made_from
    assert {"pruning.beyond", "pruning.stratified", "pruning.strata", "strength.floor"}.isdisjoint(told)


@pytest.mark.parametrize("floor", [-1.0, -0.25, 0.0, 0.5, 1.0])
def test_no_strength_lies_below_the_floor(pool: Pool, margin: Scores, floor: float) -> None:
    plan = build_plan(pool, NONE, StrengthRule("margin", EPS, floor=floor), margin=margin)
    exact = np.clip(margin.of(pool), np.float32(floor * EPS), np.float32(EPS))
    assert np.array_equal(plan.strength.numpy(), exact)


@pytest.mark.parametrize("within", ["pool", "class"])
def test_where_pruning_begins(pool: Pool, margin: Scores, within: Literal["pool", "class"]) -> None:
    rule = PruneRule(easy=0.2, within=within)
    values = margin.of(pool)
    dropped = ~build_plan(pool, rule, CONSTANT, margin=margin).keep.numpy()
    assert find_prune_start(pool, margin, rule, EPS) == values[dropped].min()
    assert find_prune_start(pool, margin, PruneRule(difficult=0.2, random=0.2), EPS) is None
    above = values[values > 0.12].min()
    assert find_prune_start(pool, margin, PruneRule(easy_threshold=0.12), EPS) == above
    assert find_prune_start(pool, margin, replace(rule, beyond=2.9), EPS) == pytest.approx(0.29)


def test_strata_keep_alike_by_the_published_algorithm() -> None:
    """Four strata of 2, 4, 10 and 24 samples, 20 to keep: 2 + 4 + 7 + 7; equal scores are one stratum."""
    sizes = (2, 4, 10, 24)
    score = torch.tensor([place for place, size in enumerate(sizes) for _ in range(size)], dtype=torch.float32)
    keep = prune_strata(score, 0.5, strata=4)
    assert [int(keep[score == place].sum()) for place in range(4)] == [2, 4, 7, 7]
    assert not torch.equal(keep, prune_strata(score, 0.5, strata=4, seed=1))
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    again = prune_strata(score[order], 0.5, strata=4, sample_id=order)
    assert torch.equal(again, keep[order])
    far = torch.cat([score, torch.tensor([float("inf"), -float("inf")])])
    kept = prune_strata(far, 0.5, strata=4)
    assert int(kept.sum()) == 21
    assert int(prune_strata(torch.ones(9), 0.5).sum()) == 5


def test_ccs_drops_the_hardest_and_covers_the_rest(pool: Pool, margin: Scores) -> None:
    plan = build_plan(pool, PruneRule(difficult=0.1, stratified=0.3, strata=3), CONSTANT, margin=margin)
    values, keep = margin.of(pool), plan.keep.numpy()
    assert int(keep.sum()) == 60
    order = np.argsort(values)
    assert not keep[order[:10]].any()
    assert [int(keep[part].sum()) for part in np.split(order[10:], 3)] == [20, 20, 20]
    within = build_plan(
        pool, PruneRule(difficult=0.1, stratified=0.3, within="origin"), CONSTANT, margin=margin
    ).keep.numpy()
    assert [int(within[pool.origin == origin].sum()) for origin in (0, 1)] == [24, 36]


def test_rows_in_another_order_make_the_same_plan(pool: Pool, margin: Scores) -> None:
    order = np.random.default_rng(3).permutation(100)
    shuffled = Scores("margin", margin.sample_id[order], margin.score[order], margin.pool_fingerprint)
    one, two = (
        build_plan(pool, PruneRule(easy=0.3), StrengthRule("margin", EPS), margin=used) for used in (margin, shuffled)
    )
    assert torch.equal(one.keep, two.keep)
    assert torch.equal(one.strength, two.strength)


@pytest.mark.parametrize(
    ("pruning", "strength", "sentence"),
    [
        (PruneRule(easy=1.0), CONSTANT, r"fractions must lie in \[0, 1\), got \(1.0, 0.0, 0.0\)"),
        (PruneRule(easy=-0.1), CONSTANT, "fractions must lie in"),
        (PruneRule(easy=0.6, difficult=0.4), CONSTANT, "must add up to less than 1"),
        (PruneRule(easy=0.1, easy_threshold=0.1), CONSTANT, "a share or a threshold"),
        (PruneRule(easy=0.1), CONSTANT, "needs a score; give --margins or --score"),
        (PruneRule(easy_threshold=0.1), CONSTANT, "needs a score"),
        (NONE, StrengthRule("constant", 0.0), "eps must be positive, got 0.0"),
        (NONE, StrengthRule("margin", EPS, gap=-1.0), "gap must be finite and not negative, got -1.0"),
        (NONE, StrengthRule("margin", EPS), "needs margins; give --margins"),
        (NONE, StrengthRule("margin", EPS, floor=1.5), r"floor must lie in \[-1, 1\], in multiples of eps, got 1.5"),
        (NONE, StrengthRule("margin", EPS, floor=float("nan")), "floor must lie in"),
        (PruneRule(easy=0.2, beyond=3.0), CONSTANT, "pruning beyond a distance needs margins; give --margins"),
        (PruneRule(beyond=3.0), CONSTANT, "give --prune-easy or --prune-random as well"),
        (PruneRule(easy=0.2, beyond=-1.0), CONSTANT, "beyond must be a positive number of eps, got -1.0"),
        (PruneRule(stratified=0.6, difficult=0.4), CONSTANT, "must add up to less than 1"),
        (PruneRule(stratified=0.6, strata=0), CONSTANT, "strata must be positive, got 0"),
        (PruneRule(stratified=0.6), CONSTANT, "needs a score"),
        (PruneRule(seed=2**63), CONSTANT, "seed must lie in"),
        (PruneRule(easy_threshold=float("nan")), CONSTANT, "must be numbers, got NaN"),
        (NONE, StrengthRule("weak-if-difficult", EPS), "needs classification difficulty"),
        (NONE, StrengthRule("weak-if-difficult", EPS, weak_eps=0.2), r"weak_eps must lie in \(0, eps\]"),
    ],
)
def test_bad_input(pool: Pool, pruning: PruneRule, strength: StrengthRule, sentence: str) -> None:
    with pytest.raises(PumaError, match=sentence):
        build_plan(pool, pruning, strength)


def test_pruning_everything_is_refused(pool: Pool, margin: Scores) -> None:
    with pytest.raises(PumaError, match="keeps none of the pool's 100 samples"):
        build_plan(pool, PruneRule(easy_threshold=-1.0), CONSTANT, margin=margin)


def test_scores_of_another_pool_are_refused(pool: Pool, margin: Scores) -> None:
    with pytest.raises(PumaError, match="was made for another pool"):
        build_plan(pool.subset(np.arange(100) > 3), NONE, CONSTANT, margin=margin)
    short = Scores("margin", margin.sample_id[1:], margin.score[1:], margin.pool_fingerprint)
    with pytest.raises(PumaError, match="1 of the pool's 100 samples are missing in the table of margin"):
        build_plan(pool, NONE, CONSTANT, margin=short)
    with pytest.raises(PumaError, match="names sample_id 5 more than once"):
        Scores("margin", np.array([4, 5, 5]), np.zeros(3, dtype=np.float32), "x")


def test_difficulty_must_be_difficulty(pool: Pool, margin: Scores) -> None:
    with pytest.raises(PumaError, match="difficulty must be cd_clean or cd_adversarial, got margin"):
        build_plan(pool, NONE, StrengthRule("weak-if-difficult", EPS), difficulty=margin)


def test_kept_is_everything_without_pruning(pool: Pool) -> None:
    assert keep_samples(pool, None, NONE, high_is_easy=True).all()
