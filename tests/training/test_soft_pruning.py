"""InfoBatch: what goes, what it weighs, and that a run resumes exactly."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from puma.errors import PumaError
from puma.processes import ProcessGroup
from puma.training import TrainConfig
from puma.training.batches import TrainBatch
from puma.training.config import SoftPruningConfig, check_train_config
from puma.training.losses import LossResult, combine_trades_terms, weight_samples
from puma.training.run import resume_run, start_run
from puma.training.soft_pruning import LossTable, choose_samples

from .test_run import Killed, die_after, same_files


@pytest.fixture
def soft(config: TrainConfig) -> TrainConfig:
    return replace(config, samples_seen=512, soft_pruning=SoftPruningConfig(0.5, 0.75))


def candidates(step: int, count: int) -> TrainBatch:
    images = torch.arange(count).view(-1, 1, 1, 1)
    return TrainBatch(step, images, torch.arange(count) % 3, torch.linspace(0, 0.1, count), np.arange(count), count,
                      np.arange(count))  # fmt: skip


def test_low_losses_go_half_of_the_time_and_weigh_double_otherwise(soft: TrainConfig) -> None:
    """Over many steps the weights that a sample gets add up to those of a sample that is never left out."""
    soft = replace(soft, batch_size=60, samples_seen=60 * 10_000)
    table = LossTable(torch.tensor([0.1] * 30 + [2.0] * 20 + [float("inf")] * 10))
    assert table.mean == pytest.approx((0.1 * 30 + 2.0 * 20) / 50)
    total = torch.zeros(60)
    for step in range(2000):
        found = choose_samples(candidates(step, 60), table, soft, ProcessGroup())
        assert found.batch.positions is not None
        rows = torch.from_numpy(found.batch.positions)
        assert len(rows) == len(set(rows.tolist())) == 60  # full: what was pruned fills up
        low = rows < 30
        assert torch.equal(found.weight, torch.where(low, 2.0, 1.0))
        filled = round(60 * found.pruned_share)  # they come last
        total.index_add_(0, rows[: 60 - filled], found.weight[: 60 - filled])
        for name in ("images", "labels", "strength"):
            assert torch.equal(getattr(found.batch, name), getattr(candidates(0, 60), name)[rows])
    assert (total[30:] == 2000).all()
    assert total[:30].mean() == pytest.approx(2000, rel=0.02)


def test_nothing_goes_before_losses_are_known_nor_at_the_end(soft: TrainConfig) -> None:
    unknown = LossTable(torch.full((60,), float("inf")))
    known = LossTable(torch.linspace(0, 1, 60))
    for step, table in ((0, unknown), (24, known), (31, known)):  # 0.75 of 32 steps
        found = choose_samples(candidates(step, 26), table, soft, ProcessGroup())
        assert (found.pruned_share, len(found.weight), bool((found.weight == 1).all())) == (0.0, 16, True)
    assert choose_samples(candidates(23, 26), known, soft, ProcessGroup()).pruned_share > 0


def test_weighted_losses_are_exact(config: TrainConfig) -> None:
    generator = torch.Generator().manual_seed(0)
    clean, attacked = torch.randn(2, 7, 4, generator=generator, dtype=torch.float64)
    labels = torch.arange(7) % 4
    usual = combine_trades_terms(clean, attacked, labels, beta=config.beta, label_smoothing=0.1)
    ones = weight_samples(usual, labels, torch.ones(7), config)
    torch.testing.assert_close(ones.loss, usual.loss)
    assert ones.each is not None
    for row in range(7):
        alone = combine_trades_terms(
            clean[row : row + 1], attacked[row : row + 1], labels[row : row + 1], beta=config.beta, label_smoothing=0.1
        )
        torch.testing.assert_close(ones.each[row], alone.loss)
    weight = torch.linspace(1, 2, 7, dtype=torch.float64)
    torch.testing.assert_close(weight_samples(usual, labels, weight, config).loss, (weight * ones.each).mean())
    for loss, logits in (("standard", clean), ("pgd-at", attacked)):
        part = LossResult(usual.loss, clean if loss == "standard" else None, attacked if loss == "pgd-at" else None)
        found = weight_samples(part, labels, weight, replace(config, loss=loss))  # type: ignore[arg-type]
        exact = F.cross_entropy(logits, labels, label_smoothing=0.1, reduction="none")
        torch.testing.assert_close(found.loss, (weight * exact).mean())


def test_a_run_leaves_samples_out_and_resumes_exactly(
    tmp_path: Path, pool_folder: Path, soft: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = start_run(soft, [pool_folder], tmp_path / "whole", show=False)
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    shares = [line["soft_pruned_share"] for line in lines]
    assert shares[0] == 0
    assert 0.05 < np.mean(shares[8:24]) < 0.5
    assert not any(shares[24:])
    assert not (whole / "outcomes").exists()
    with monkeypatch.context() as patch:
        die_after(13, patch)
        with pytest.raises(Killed):
            start_run(soft, [pool_folder], tmp_path / "run", show=False)
    resume_run(tmp_path / "run", show=False)
    assert same_files(whole / "model.safetensors", tmp_path / "run" / "model.safetensors")


@pytest.mark.parametrize(
    ("ratio", "until", "changes", "sentence"),
    [
        (1.0, 0.875, {}, "soft_pruning.ratio and until must lie in"),
        (0.5, 0.0, {}, "soft_pruning.ratio and until must lie in"),
        (0.5, 0.875, {"plan_from": 0.5}, "soft_pruning needs online.mode off, compute.accumulate 1 and plan_from 0"),
    ],
)
def test_bad_input(config: TrainConfig, ratio: float, until: float, changes: dict[str, float], sentence: str) -> None:
    asked = replace(config, soft_pruning=SoftPruningConfig(ratio, until), **changes)  # type: ignore[arg-type]
    with pytest.raises(PumaError, match=sentence):
        check_train_config(asked)
