"""``tab-margin-correlation``: every pair of margin models, and a model with itself of another seed."""

from pathlib import Path

from PIL import Image

from conftest import Run
from puma.experiments.results import read_results_file


def test_every_pair_is_compared(shared_work: Path, tmp_path: Path, puma: Run) -> None:
    command = ["run", "tab-margin-correlation", "--preset", "smoke", "--seeds", "2", "--work", str(shared_work)]
    rows = ["--rows", "same net, same images", "same net, real images only", "iterated"]
    code, said, err = puma(*command, *rows, "--out", str(tmp_path))
    assert code == 0, err
    lines = read_results_file(tmp_path / "tab-margin-correlation.csv")
    found = {(line.row, line.quantity, line.seed): line.value for line in lines}
    for seed in (0, 1):
        for one, two in (
            ("same net, real images only", "same net, same images"),
            ("iterated", "same net, same images"),
            ("iterated", "same net, real images only"),
        ):
            assert -1 <= found[one, f"rank_correlation_with {two}", seed] <= 1
            assert 0.6 <= found[one, f"plan_agreement_with {two}", seed] <= 1
    assert ("iterated", "rank_correlation_with itself", 0) not in found
    assert found["iterated", "rank_correlation_with itself", 1] < 1
    assert "iterated : same net, same images" in said
    assert "rank correlation" in said
    with Image.open(next(tmp_path.glob("tab-margin-correlation-*.png"))) as picture:
        assert picture.size[0] > 600
