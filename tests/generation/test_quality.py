"""Distances with known answers, and selections that can be counted by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from puma.errors import PumaError
from puma.generation import selection
from puma.generation.quality import answer_pool, find_nearest, keep_agreed, keep_confident, measure_frechet
from puma.generation.selection import SelectionConfig, filter_pool
from puma.pools import Pool
from puma.pools.writer import PoolPart, write_parts


def write_levels(path: Path, levels: list[int], labels: list[int]) -> Path:
    """Images of one grey level each."""
    images = np.repeat(np.array(levels, dtype=np.uint8), 64).reshape(-1, 8, 8, 1)
    return write_parts({"": PoolPart([(images, np.array(labels))], ("dark", "light"), len(labels), 1)}, path)


def make_judge() -> nn.Module:
    """Calls an image light where its mean is above one half; surer the farther it is from there."""
    layer = nn.Linear(64, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[-1.0], [1.0]]).expand(2, 64) / 64)
        layer.bias.copy_(torch.tensor([0.5, -0.5]))
    return nn.Sequential(nn.Flatten(), layer).eval()


def test_frechet_distance_of_known_gaussians() -> None:
    rng = np.random.default_rng(0)
    one = rng.normal(size=(200_000, 2))
    assert measure_frechet(one, one) == pytest.approx(0, abs=1e-9)
    assert measure_frechet(one, one + np.array([3.0, 4.0])) == pytest.approx(25)
    assert measure_frechet(one, 2 * one - one.mean(0)) == pytest.approx(np.trace(np.cov(one.T)))
    with pytest.raises(PumaError, match="at least two"):
        measure_frechet(one[:1], one)


def test_nearest_distance_is_that_of_the_nearest(tmp_path: Path) -> None:
    wanted = Pool.open(write_levels(tmp_path / "a", [0, 255], [0, 1]))
    among = Pool.open(write_levels(tmp_path / "b", [51, 153, 255], [0, 1, 1]))
    torch.testing.assert_close(find_nearest(wanted, among), torch.tensor([8 * 0.2, 0.0]))


def test_features_are_what_the_last_layer_reads(tmp_path: Path) -> None:
    pool = Pool.open(write_levels(tmp_path / "a", [0, 255], [0, 1]))
    answers = answer_pool(make_judge(), pool)
    assert answers.features.shape == (2, 64)
    assert answers.logits.tolist() == [[0.5, -0.5], [-0.5, 0.5]]


def test_selections_by_hand() -> None:
    logits = torch.tensor([[3.0, 0], [1, 0], [2, 0], [0, 1], [0, 2]])
    labels = torch.tensor([0, 0, 0, 1, 0])
    assert keep_agreed(logits, labels).tolist() == [True, True, True, True, False]
    assert keep_confident(logits, labels, 0.5).tolist() == [True, False, True, True, False]
    with pytest.raises(PumaError, match=r"\(0, 1\]"):
        keep_confident(logits, labels, 0.0)


def test_filter_drops_counts_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "load_model", lambda *_, **__: make_judge())
    source = write_levels(tmp_path / "a", [0, 20, 40, 200, 255, 250], [0, 0, 0, 0, 1, 1])
    lines = filter_pool(source, tmp_path / "out", SelectionConfig(agree_with="judge", sure="judge", share=0.5))
    assert [line.partition(":")[0] for line in lines] == ["1 of 6 images dropped", "2 of 5 images dropped"]
    kept = Pool.open(tmp_path / "out")
    assert kept.batch(range(len(kept))).images[:, 0, 0, 0].tolist() == [0, 20, 255]
    assert set(kept.origin.tolist()) == {1}
    filter_pool(source, tmp_path / "two", SelectionConfig(count=2))
    assert len(Pool.open(tmp_path / "two")) == 2
    with pytest.raises(PumaError, match=r"1\.\.6"):
        filter_pool(source, tmp_path / "none", SelectionConfig(count=7))
    with pytest.raises(PumaError, match="go together"):
        filter_pool(source, tmp_path / "none", SelectionConfig(band=(0.0, 2.0)))
    with pytest.raises(PumaError, match="nothing says which images to keep"):
        filter_pool(source, tmp_path / "none", SelectionConfig(share=0.5))
    with pytest.raises(PumaError, match="from a lower to a higher margin"):
        filter_pool(source, tmp_path / "none", SelectionConfig(margins=Path("m.parquet"), band=(2.0, 0.0), eps=0.1))
    assert not (tmp_path / "none").exists()
