import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from puma.errors import PumaError
from puma.planning import Plan, make_plan
from puma.pools import Pool
from puma.scores import Scores


def plan(count: int = 10) -> Plan:
    keep = torch.arange(count) % 3 > 0
    return Plan(torch.arange(count) + 100, keep, torch.linspace(-0.1, 0.1, count), "abc")


def test_the_wrapper_gives_what_the_plan_keeps() -> None:
    base = TensorDataset(torch.arange(10.0), torch.arange(10) * 2)
    wrapped = plan().dataset(base)
    assert len(wrapped) == 6
    items = [wrapped[index] for index in range(len(wrapped))]
    assert [int(image) for image, _, _, _ in items] == [1, 2, 4, 5, 7, 8]
    assert [int(label) for _, label, _, _ in items] == [2, 4, 8, 10, 14, 16]
    assert [sample_id for _, _, _, sample_id in items] == [101, 102, 104, 105, 107, 108]
    assert [strength for _, _, strength, _ in items] == pytest.approx(plan().strength[plan().keep].tolist())
    images, _, strength, sample_id = next(iter(DataLoader(wrapped, batch_size=6)))
    assert images.shape == strength.shape == sample_id.shape == (6,)


def test_the_sampler_visits_every_kept_sample_once_per_epoch_over_all_ranks() -> None:
    samplers = [plan(100).sampler(seed=1, rank=rank, ranks=3) for rank in range(3)]
    epochs = []
    for epoch in range(2):
        shares = []
        for sampler in samplers:
            sampler.set_epoch(epoch)
            shares.append(list(sampler))
            assert len(shares[-1]) == len(sampler) == 22
        together = [index for share in shares for index in share]
        assert len(set(together)) == 66
        assert all(index % 3 for index in together)
        epochs.append(shares[0])
    assert epochs[0] != epochs[1]
    samplers[0].set_epoch(0)
    assert list(samplers[0]) == epochs[0]


def test_bad_input() -> None:
    with pytest.raises(PumaError, match="the plan is for 10 samples, the dataset has 3"):
        plan().dataset(TensorDataset(torch.zeros(3), torch.zeros(3)))
    with pytest.raises(PumaError, match=r"rank must lie in 0..1, got 2"):
        plan().sampler(rank=2, ranks=2)


def test_a_plan_made_and_used_with_tensors() -> None:
    images = torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    real = Pool.from_tensors(images, [0, 1] * 4)
    pool = real + Pool.from_tensors(1 - images, [0, 1] * 4, origin="generated")
    margin = np.linspace(-0.1, 0.1, 16, dtype=np.float32)
    margins = Scores("margin", pool.sample_id, margin, pool.fingerprint, {"norm": "linf", "method": "fast"})
    plan = make_plan(pool, margins, prune_easy=0.25, eps=8 / 255)
    assert repr(plan).startswith("Plan(16 samples, 12 kept")
    assert plan.links is not None
    assert [(link.role, link.kind) for link in plan.links] == [
        ("pool", "pool"), ("margins", "margins"), ("margin model", "model")
    ]  # fmt: skip
    assert plan.made_from["margins.method"] == "fast"
    loader = plan.loader(pool, batch_size=4, generated_fraction=0.5)
    seen = []
    for pixels, labels, strength, sample_id in loader:
        assert pixels.shape == (4, 1, 4, 4)
        assert torch.equal(strength, plan.strength[sample_id])
        assert torch.equal(labels, torch.from_numpy(pool.labels)[sample_id])
        assert int((sample_id >= 8).sum()) == 2
        seen += sample_id[sample_id < 8].tolist()
    assert sorted(seen) == list(range(8))
    with pytest.raises(PumaError, match="margins must be what measure_pool"):
        make_plan(pool, 3)  # type: ignore[arg-type]
