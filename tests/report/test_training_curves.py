import json
from pathlib import Path

import pytest
from PIL import Image

from conftest import Run
from puma.errors import PumaError
from puma.report.training_curves import draw_curves
from puma.training.run_folder import RunFolder


def write_run(folder: Path, **quantities: float) -> Path:
    folder.mkdir()
    lines = [{"step": step, "samples": 100 * step, **quantities} for step in range(1, 5)]
    (folder / "metrics.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return folder


def test_a_panel_for_each_quantity_that_is_there(tmp_path: Path, puma: Run) -> None:
    plain = write_run(tmp_path / "plain", loss=1.0, clean_accuracy=0.5)
    online = write_run(
        tmp_path / "online", loss=1.0, online_pruned_share=0.2, online_negative_share=0.1,
    )  # fmt: skip
    shown = draw_curves([plain, online], tmp_path / "curves.png")
    assert shown == ["clean_accuracy", "loss", "online_pruned_share", "online_negative_share"]
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.size[0] > 1000
    code, said, _ = puma("curves", str(plain), "--out", str(tmp_path / "one.svg"))
    assert (code, "clean_accuracy, loss" in said) == (0, True)


def test_bad_input(tmp_path: Path, puma: Run) -> None:
    with pytest.raises(PumaError, match="is not a run"):
        RunFolder(tmp_path).read_metrics()
    empty = write_run(tmp_path / "empty")
    with pytest.raises(PumaError, match="nothing is recorded yet"):
        draw_curves([empty], tmp_path / "x.png")
    (tmp_path / "sub").mkdir()
    one, two = write_run(tmp_path / "a$x^$", loss=1.0), write_run(tmp_path / "sub" / "a$x^$", loss=1.0)
    with (one / "metrics.jsonl").open("a") as file:
        file.write('[1]\n{"step": 9, "samp')  # cut short
    assert len(RunFolder(one).read_metrics()) == 4
    assert draw_curves([one, two], tmp_path / "x.png") == ["loss"]
    code, _, err = puma("curves", str(empty), "--out", "x.gif")
    assert (code, "must end in .png" in err) == (2, True)
