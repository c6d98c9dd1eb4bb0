"""Images of an experiment's own generator: equal cost of every way by hand, and the experiment at the size of smoke."""

from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import Run
from puma.experiments.generated import align_edges, count_affordable, share_in_band
from puma.experiments.results import read_results_file
from puma.experiments.spec import GenerationWay
from puma.generation.edm import SolverConfig
from puma.margins import Margins, Status


@pytest.mark.parametrize(
    ("way", "images"),
    [
        ("any", 12_000),
        ("selected", 12_000 * 35 // 48),  # 35 passes to sample and 13 to measure each
        ("conditioned", (12_000 * 35 - 7000 * 13) // 35),  # the real images were measured
        ("guided", 12_000 // 4),  # with each pass a forward and a backward one of the guide
    ],
)
def test_every_way_costs_the_same(way: GenerationWay, images: int) -> None:
    assert count_affordable(12_000, 7000, way, SolverConfig()) == images


def test_what_is_in_the_band_was_found_and_lies_inside() -> None:
    zeros = torch.zeros(6, dtype=torch.int64)
    margin = torch.tensor([0.05, 0.0, 0.2, 0.21, -0.1, 0.1])
    status = torch.tensor([Status.CROSSED] * 5 + [Status.CAPPED])
    margins = Margins(margin, status, zeros, zeros, zeros, zeros, zeros, zeros)
    assert share_in_band(margins, (0.0, 2.0), 0.1) == pytest.approx(0.5)


@pytest.mark.parametrize(("low", "high", "width"), [(-1.13, 6.02, 0.25), (-3.3, 23.9, 0.5), (0.1, 0.2, 0.25)])
def test_bins_begin_and_end_where_bands_do(low: float, high: float, width: float) -> None:
    edges = align_edges(np.linspace(low, high, 41))
    assert edges[0] <= low < edges[1]
    assert edges[-2] < high <= edges[-1]
    assert np.diff(edges) == pytest.approx(width)
    inside = [end for end in (0.0, 2.0, 5.0) if edges[0] <= end <= edges[-1]]
    assert set(inside) <= set(edges.tolist())


def test_near_images_are_made_in_three_ways(shared_work: Path, tmp_path: Path, puma: Run) -> None:
    rows = [f"TRADES, {name}" for name in ("any margin", "near, selected", "near, conditioned", "near, guided")]
    words = ["--preset", "smoke", "--work", str(shared_work), "--out", str(tmp_path), "--rows", *rows]
    code, _, err = puma("run", "gen-margin", *words)
    assert code == 0, err
    lines = read_results_file(tmp_path / "gen-margin.csv")
    found = {(line.row, line.quantity): line.value for line in lines}
    assert found["TRADES, any margin", "images"] == 640
    assert found["TRADES, near, guided", "images"] == 160
    assert found["TRADES, near, selected", "in_band_share"] == 1
    assert 0 < found["TRADES, near, conditioned", "in_band_share"] <= 1
    assert [path.name for path in tmp_path.glob("*.png")] == ["gen-margin-smoke-digits.png"]
    assert all(found[row, "frechet"] > 0 and 0 <= found[row, "doubted_share"] <= 1 for row in rows)
    code, _, err = puma("run", "gen-margin", "--preset", "paper", "--data", str(tmp_path), "--rows", rows[0])
    assert code == 2
    assert "no generator" in err or "no net" in err
