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
    score_dynamics,
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


def test_dynamics_of_linear_models_are_exact(make_pool: MakePool) -> None:
    """The gradient of CE in x is W^T (p - onehot); the spread is that of p over successive models."""
    pool = make_pool("pool", 12)
    count, classes = int(np.prod(pool.image_shape)), pool.num_classes
    generator = torch.Generator().manual_seed(0)
    layers = [nn.Linear(count, classes) for _ in range(4)]
    for linear in layers:
        linear.weight.data = torch.randn(classes, count, generator=generator) / 10
    models = [nn.Sequential(nn.Flatten(), linear).train() for linear in layers]
    batch = pool.batch(range(12))
    flat, onehot = to_unit(batch.images).flatten(1), nn.functional.one_hot(batch.labels, classes)
    right, lengths = [], []
    for linear in layers:
        probability = (flat @ linear.weight.T + linear.bias).softmax(1).detach()
        lengths.append(torch.linalg.vector_norm((probability - onehot) @ linear.weight, dim=1).detach())
        right.append(probability[torch.arange(12), batch.labels].double())
    gradient, uncertainty = score_dynamics(models, pool, window=3, batch_size=5)
    assert torch.allclose(gradient, torch.stack(lengths).mean(dim=0), rtol=1e-4)
    exact = (torch.stack(right[:3]).std(dim=0) + torch.stack(right[1:]).std(dim=0)) / 2
    assert torch.allclose(uncertainty.double(), exact, atol=1e-6)
    assert all(linear.training and linear.weight.grad is None for linear in layers)
