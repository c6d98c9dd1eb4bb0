import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puma.errors import PumaError
from puma.pools import MixedSampler
from puma.pools.sampler import permute_places

REAL, GENERATED = np.arange(100), np.arange(100, 1100)


def sampler(**changes: object) -> MixedSampler:
    call = {
        "real": REAL,
        "generated": GENERATED,
        "batch_size": 20,
        "generated_fraction": 0.7,
        "samples_seen": 2000,
    } | changes
    return MixedSampler(**call)  # type: ignore[arg-type]


@given(count=st.integers(1, 3000), seed=st.integers(0, 2**63 - 1), salt=st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_shuffled_is_a_permutation(count: int, seed: int, salt: int) -> None:
    everything = permute_places(np.arange(count), count, seed, salt)
    assert np.array_equal(np.sort(everything), np.arange(count))
    some = np.arange(count)[:: max(1, count // 7)]
    assert np.array_equal(permute_places(some, count, seed, salt), everything[some])


def test_shuffled_looks_random() -> None:
    orders = np.stack([permute_places(np.arange(10), 10, 0, salt) for salt in range(20_000)])
    for place in range(10):  # every value at every place about equally often: 2000 +- 5 standard deviations
        counts = np.bincount(orders[:, place], minlength=10)
        assert (abs(counts - 2000) < 5 * np.sqrt(2000 * 0.9)).all()
    large = permute_places(np.arange(10_000), 10_000, 1, 2)
    assert abs(np.corrcoef(large, np.arange(10_000))[0, 1]) < 0.05
    assert abs(np.corrcoef(large[1:], large[:-1])[0, 1]) < 0.05


def test_batch_of_the_baseline_is_154_real_and_358_generated() -> None:
    mixed = sampler(batch_size=512, samples_seen=400 * 50_000)
    assert (mixed.real_per_batch, mixed.generated_per_batch) == (154, 358)
    assert len(mixed) == 39_063
    positions = mixed.positions(123)
    assert (positions < 100).sum() == 154
    assert (positions >= 100).sum() == 358


def test_real_samples_come_once_per_pass() -> None:
    mixed = sampler()
    stream = np.concatenate([batch[batch < 100] for batch in mixed])
    assert len(mixed) == 100
    assert len(stream) == 600
    for start in range(0, 600, 100):
        assert np.array_equal(np.sort(stream[start : start + 100]), REAL)
    assert not np.array_equal(stream[:100], stream[100:200])


def test_generated_samples_are_drawn_with_replacement() -> None:
    stream = np.concatenate([batch[batch >= 100] for batch in sampler(samples_seen=200_000)])
    counts = np.bincount(stream - 100, minlength=1000)
    assert len(stream) == 140_000
    assert counts.var() == pytest.approx(140, rel=0.2)  # as a Poisson's would be; passes would give none


def test_any_step_alone_is_the_step_of_the_run() -> None:
    run = list(sampler(seed=5))
    for step in (0, 1, 57, 99):
        assert np.array_equal(sampler(seed=5).positions(step), run[step])
    other = sampler(seed=6).positions(57)
    for kind in (slice(0, 6), slice(6, 20)):  # real and generated
        assert not np.array_equal(other[kind], run[57][kind])


def test_steps_are_counted_from_zero() -> None:
    with pytest.raises(PumaError, match="counted from 0, got -1"):
        sampler().positions(-1)


def test_shares_are_not_lost_to_rounding() -> None:
    assert sampler(batch_size=100, generated_fraction=0.29).generated_per_batch == 29  # 0.29 * 100 is 28.999...


@pytest.mark.parametrize("ranks", [2, 4, 5])
def test_ranks_share_the_batch_of_one_process(ranks: int) -> None:
    for step in (0, 31):
        shares = [sampler(rank=rank, ranks=ranks).positions(step) for rank in range(ranks)]
        assert {len(share) for share in shares} == {20 // ranks}
        together = np.stack(shares, axis=1).ravel()
        assert np.array_equal(together, sampler().positions(step))


def test_one_kind_alone() -> None:
    only_real = sampler(generated_fraction=0.0, generated=np.empty(0, dtype=np.int64))
    assert np.array_equal(np.sort(np.concatenate(list(only_real))[:100]), REAL)
    only_generated = sampler(generated_fraction=1.0, real=np.empty(0, dtype=np.int64), samples_seen=1000)
    assert np.array_equal(np.sort(np.concatenate(list(only_generated))), GENERATED)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"generated_fraction": 1.2}, r"generated_fraction must lie in \[0, 1\], got 1.2"),
        ({"batch_size": 0}, "must be positive"),
        ({"samples_seen": 0}, "must be positive"),
        ({"ranks": 3}, "must divide evenly over the ranks, got 20 for rank 0 of 3"),
        ({"rank": 2, "ranks": 2}, "rank 2 of 2"),
        ({"seed": -1}, r"seed must lie in 0..2\*\*63 - 1, got -1"),
        ({"seed": 2**63}, "seed must lie in"),
        ({"generated": np.empty(0, dtype=np.int64)}, "no generated samples; set generated_fraction to 0"),
        ({"real": np.empty(0, dtype=np.int64)}, "no real samples; set generated_fraction to 1"),
    ],
)
def test_bad_input(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(PumaError, match=sentence):
        sampler(**change)
