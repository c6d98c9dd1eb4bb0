from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from conftest import MakePool
from puma.errors import PumaError
from puma.pools import to_unit
from puma.scores.difficulty import (
    OutcomeRecord,
    count_visits,
    covers_steps,
    measure_error_length,
    read_outcomes,
    score_el2n,
)

visit = st.tuples(st.integers(0, 6), st.booleans())


@given(parts=st.lists(st.lists(visit, max_size=12), max_size=8))
@settings(max_examples=200, deadline=None)
def test_counts_against_a_direct_recomputation(parts: list[list[tuple[int, bool]]]) -> None:
    stream = [entry for part in parts for entry in part]
    found = count_visits(
        8,
        (
            (np.array([p for p, _ in part], dtype=np.int64), np.array([r for _, r in part], dtype=bool))
            for part in parts
        ),
    )
    for position in range(8):
        outcomes = [right for place, right in stream if place == position]
        assert found.seen[position] == len(outcomes)
        assert found.wrong[position] == outcomes.count(False)
        pairs = pairwise(outcomes)
        assert found.forgotten[position] == sum(before and not after for before, after in pairs)
        if outcomes:
            assert found.difficulty[position] == np.float32(outcomes.count(False) / len(outcomes))
        else:
            assert np.isnan(found.difficulty[position])
            assert np.isnan(found.forgetting[position])


@pytest.mark.parametrize("per_step", [1, 8, 13])
def test_outcomes_survive_the_disk_and_a_restart(tmp_path: Path, per_step: int) -> None:
    right = np.random.default_rng(0).random((20, per_step)) < 0.5
    path = tmp_path / "outcomes" / "clean-0.bits"
    with OutcomeRecord(path, per_step, 0) as record:
        for row in right[:12]:
            record.add(row)
    with OutcomeRecord(path, per_step, 7) as record:  # the last checkpoint was at step 7
        for row in right[7:]:
            record.add(row)
    assert np.array_equal(read_outcomes(path, per_step, range(20)), right)
    assert np.array_equal(read_outcomes(path, per_step, range(5, 9)), right[5:9])
    with pytest.raises(PumaError, match="ends before step 21"):
        read_outcomes(path, per_step, range(21))
    assert covers_steps(path, per_step, 20)
    assert not covers_steps(path, per_step, 21)
    assert not covers_steps(tmp_path / "absent", per_step, 1)
    assert covers_steps(tmp_path / "absent", per_step, 0)


def test_el2n_by_hand(make_pool: MakePool) -> None:
    pool = make_pool(count=20, shape=(4, 4, 1), num_classes=3)
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Flatten(), nn.Linear(16, 3)) for _ in range(2)]
    batch = pool.batch(range(20))
    images = to_unit(batch.images)
    expected = torch.zeros(20)
    for row in range(20):
        for net in nets:
            with torch.no_grad():
                probability = torch.softmax(net(images[row : row + 1])[0], 0).tolist()
            target = [1.0 if k == batch.labels[row] else 0.0 for k in range(3)]
            expected[row] += sum((p - t) ** 2 for p, t in zip(probability, target, strict=True)) ** 0.5 / 2
    torch.testing.assert_close(score_el2n(nets, pool, batch_size=7), expected)
    assert measure_error_length(torch.tensor([[100.0, 0]]), torch.tensor([0])).item() == 0
    assert measure_error_length(torch.tensor([[100.0, 0]]), torch.tensor([1])).item() == pytest.approx(2**0.5)
    with pytest.raises(PumaError, match="at least one net"):
        score_el2n([], pool)
