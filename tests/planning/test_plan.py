import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from puma import Plan, Pool, PumaError, adaptive_strength, prune
from puma.planning import Drop, find_lost_classes
from puma.pools.writer import PoolPart, new_folder, write_pool


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    labels = np.arange(12) % 3
    images = np.random.default_rng(0).integers(256, size=(12, 4, 4, 1)).astype(np.uint8)
    with new_folder(tmp_path / "pool", force=False) as folder:
        write_pool(folder, PoolPart([(images, labels)], ["a", "b", "c"], 12))
    return Pool.open(tmp_path / "pool")


def plan_for(pool: Pool, keep: Tensor | None = None, strength: Tensor | None = None) -> Plan:
    return Plan(
        sample_id=torch.arange(len(pool)),
        keep=torch.ones(len(pool), dtype=torch.bool) if keep is None else keep,
        strength=torch.linspace(-0.1, 0.1, len(pool)) if strength is None else strength,
        pool_fingerprint=pool.fingerprint,
    )


@pytest.mark.parametrize(("drop", "kept"), [("high", [0, 2, 3]), ("low", [1, 2, 4])])
def test_prune_drops_the_end_it_names(drop: Drop, kept: list[int]) -> None:
    keep = prune(torch.tensor([-1.0, 5.0, 0.5, 0.0, 7.0]), 0.4, drop=drop)
    assert keep.dtype == torch.bool
    assert keep.nonzero().squeeze(1).tolist() == kept


@pytest.mark.parametrize("drop", ["high", "low", "random"])
@pytest.mark.parametrize(
    ("count", "fraction", "dropped"), [(100, 0.29, 29), (7, 0.5, 3), (10, 0.0, 0), (10, 0.99, 9), (0, 0.5, 0)]
)
def test_prune_drops_an_exact_count(drop: Drop, count: int, fraction: float, dropped: int) -> None:
    keep = prune(torch.randn(count, generator=torch.Generator().manual_seed(0)), fraction, drop=drop)
    assert int((~keep).sum()) == dropped


def test_ties_are_broken_by_the_seed_and_not_by_position() -> None:
    score = torch.zeros(1000)
    first, again, other = prune(score, 0.5), prune(score, 0.5), prune(score, 0.5, seed=1)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert 200 < int(first[:500].sum()) < 300
    assert torch.equal(prune(torch.tensor([1.0, 1, 1, 0, 2]), 0.2), torch.tensor([True, True, True, True, False]))


def test_random_does_not_look_at_the_score() -> None:
    score = torch.randn(50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(prune(score, 0.3, drop="random"), prune(-score, 0.3, drop="random"))


def test_strength_follows_equations_2_and_3() -> None:
    margin = torch.tensor([-9.0, -2.0, 0.0, 1.0, 3.0, 4.0, math.inf, -math.inf])
    assert adaptive_strength(margin, 3.0, norm="l2").tolist() == [-3, -2, 0, 1, 3, 3, 3, -3]
    assert adaptive_strength(margin, 3.0, gap=1.0, norm="l2").tolist() == [-3, -3, -1, 0, 2, 3, 3, -3]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: prune(torch.zeros(3), 1.0), r"fraction must lie in \[0, 1\), got 1.0"),
        (lambda: prune(torch.zeros(3, 2), 0.5), "shape"),
        (lambda: prune(torch.tensor([0.0, math.nan]), 0.5), "1 of 2 are"),
        (lambda: prune(torch.zeros(3), 0.5, drop="hihg"), "did you mean 'high'"),  # type: ignore[arg-type]
        (lambda: adaptive_strength(torch.zeros(3), 0.0), "eps must be positive, got 0.0"),
        (lambda: adaptive_strength(torch.zeros(3), math.nan), "eps must be positive"),
        (lambda: adaptive_strength(torch.zeros(3), 8), r"eps must be at most 1 .* got 8; did you mean 8/255\?"),
        (lambda: adaptive_strength(torch.zeros(3), 0.1, gap=-0.1), "gap must not be negative, got -0.1"),
        (lambda: adaptive_strength(torch.tensor([math.nan]), 0.1), "NaN"),
    ],
)
def test_bad_input_is_told(call: object, sentence: str) -> None:
    assert callable(call)
    with pytest.raises(PumaError, match=sentence):
        call()


def test_a_plan_survives_the_disk(tmp_path: Path, pool: Pool) -> None:
    plan = plan_for(pool, keep=torch.arange(12) % 4 > 0)
    again = Plan.open(plan.save(tmp_path / "deep" / "plan.parquet"))
    assert torch.equal(again.sample_id, plan.sample_id)
    assert torch.equal(again.keep, plan.keep)
    assert torch.equal(again.strength, plan.strength)
    assert again.pool_fingerprint == pool.fingerprint
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["plan.parquet"]


def test_a_plan_is_matched_by_sample_id(pool: Pool) -> None:
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    plan = plan_for(pool)
    mixed = Plan(plan.sample_id[order], plan.keep[order], plan.strength[order], plan.pool_fingerprint)
    assert torch.equal(mixed.of(pool)[1], plan.strength)


def test_a_plan_for_another_pool_raises(pool: Pool) -> None:
    with pytest.raises(PumaError, match="another pool"):
        plan_for(pool).of(pool.subset(np.arange(12) > 3))


def test_samples_missing_in_the_plan_raise(pool: Pool) -> None:
    plan = plan_for(pool)
    short = Plan(plan.sample_id[2:], plan.keep[2:], plan.strength[2:], plan.pool_fingerprint)
    with pytest.raises(
        PumaError, match="2 of the pool's 12 samples are missing in the plan, the first with sample_id 0"
    ):
        short.of(pool)
    empty = Plan(plan.sample_id[:0], plan.keep[:0], plan.strength[:0], plan.pool_fingerprint)
    with pytest.raises(PumaError, match="12 of the pool's 12"):
        empty.of(pool)


def test_strength_must_be_finite(pool: Pool) -> None:
    strength = torch.zeros(12)
    strength[5] = math.nan
    with pytest.raises(PumaError, match="sample_id 5"):
        plan_for(pool, strength=strength)


def test_an_id_may_appear_once(pool: Pool) -> None:
    with pytest.raises(PumaError, match="names sample_id 3 more than once"):
        Plan(torch.tensor([3, 3]), torch.tensor([True, True]), torch.zeros(2), "x")


def test_wiped_out_classes_are_named_and_nothing_kept_raises(pool: Pool) -> None:
    assert find_lost_classes(pool, torch.arange(12) % 3 != 1) == ["b"]
    assert find_lost_classes(pool, torch.arange(12) < 3) == []
    with pytest.raises(PumaError, match="keeps none"):
        find_lost_classes(pool, torch.zeros(12, dtype=torch.bool))


def test_files_that_are_no_plans_are_told(tmp_path: Path, pool: Pool) -> None:
    path = tmp_path / "plan.parquet"
    with pytest.raises(PumaError, match="no plan at"):
        Plan.open(path)
    path.write_bytes(b"PAR1 cut short")
    with pytest.raises(PumaError, match="damaged or not a parquet file"):
        Plan.open(path)
    pq.write_table(pa.table({"sample_id": [1], "keep": [True]}), path)
    with pytest.raises(PumaError, match="lacks strength"):
        Plan.open(path)
    pq.write_table(pa.table({"sample_id": [1], "keep": [True], "strength": [0.1]}), path)
    with pytest.raises(PumaError, match="which pool"):
        Plan.open(path)
    footer = {b"puma": b'{"pool_fingerprint": "x"}'}
    pq.write_table(
        pa.table({"sample_id": [1], "keep": [True], "strength": [None]}).replace_schema_metadata(footer), path
    )
    with pytest.raises(PumaError, match="1 values of strength are missing"):
        Plan.open(path)
    pq.write_table(
        pa.table({"sample_id": ["a"], "keep": [True], "strength": [0.1]}).replace_schema_metadata(footer), path
    )
    with pytest.raises(PumaError, match="sample_id must be int64"):
        Plan.open(path)
