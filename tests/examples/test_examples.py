import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import puma
from puma.models import build

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run_example(name: str, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *words])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_the_minimal_example_is_short_and_runs_to_its_last_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len((EXAMPLES / "minimal.py").read_text(encoding="utf-8").splitlines()) <= 100
    run_example("minimal.py", monkeypatch, "--samples-seen", "5000")
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("   1147 of 1433 kept; ") for line in lines)
    for name, line in zip(("TRADES", "PUMA"), lines[-2:], strict=True):
        counts = re.fullmatch(rf"{name} +(\d+) of 364 right, (\d+) under attack", line)
        assert counts, line
        clean, robust = map(int, counts.groups())
        assert 364 >= clean > 0.6 * 364  # 10 % would be chance
        assert clean >= robust > 0.2 * 364


def test_a_dataset_and_a_net_of_ones_own_become_a_report_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for _ in range(2):
        run_example("own_model_and_dataset.py", monkeypatch, "--out", str(tmp_path), "--samples-seen", "1500")
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert re.search(r"^TRADES  [\d.]+% right, [\d.]+% under attack\nPUMA    ", said[0], flags=re.M)
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "My own digits" in report
    assert "No evaluation was found" not in report


def test_a_plan_in_a_loop_of_ones_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = (EXAMPLES / "plan_in_your_loop.py").read_text(encoding="utf-8")
    loop = text[text.index("def train") : text.index("def main")]
    assert len(loop.strip().splitlines()) <= 20
    run_example("plan_in_your_loop.py", monkeypatch, "--epochs", "2")
    alike, fitted = capsys.readouterr().out.splitlines()
    assert "Plan(1,400 samples, 1,400 kept, strength +0.1000 to +0.1000" in alike
    assert "Plan(1,400 samples, 1,120 kept" in fitted


def test_the_notebook_runs_twice_and_its_outputs_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = runpy.run_path(str(ROOT / "docs" / "notebook.py"))
    notebook = tool["read_notebook"](EXAMPLES / "first_look.ipynb")
    monkeypatch.chdir(tmp_path)
    shortened = {"SAMPLES = 20_000": "SAMPLES = 2_000"}
    assert any(old in "".join(cell["source"]) for cell in notebook["cells"] for old in shortened)
    first = tool["run_notebook"](notebook, shortened)
    again = tool["run_notebook"](notebook, shortened)
    assert first == again
    for cell, stored in zip(first["cells"], notebook["cells"], strict=True):
        kinds = [
            [sorted(output.get("data", {"text": ""})) for output in one.get("outputs", [])] for one in (cell, stored)
        ]
        assert kinds[0] == kinds[1], "bring its outputs up to date: python docs/notebook.py examples/first_look.ipynb"
    page, pictures = tool["to_page"](notebook, "images")
    assert page.startswith("# A first look\n")
    assert len(pictures) == page.count("![") == 5
    assert all(picture[:4] == b"\x89PNG" for picture in pictures.values())
    assert Path("first-look/report.html").is_file()


def test_weights_are_loaded_by_a_map_of_names(tmp_path: Path) -> None:
    tool = runpy.run_path(str(EXAMPLES / "checkpoint_by_name_map.py"))
    with torch.device("meta"):
        expected = {name: value.shape for name, value in build("resnet18", 10).state_dict().items()}
    theirs = {"module.model.mu": torch.zeros(3), "module.model.sigma": torch.ones(3)}
    for name, shape in expected.items():
        if not name.startswith("normalize."):
            named = name.replace(".shortcut.", ".downsample.").replace("linear.", "fc.")
            theirs[f"module.model.{named}"] = torch.empty(shape, device="meta")
    renamed = tool["rename_weights"](theirs, tool["RULES"])
    told = {name: value.shape for name, value in renamed.items()}
    assert told == {name: shape for name, shape in expected.items() if not name.startswith("normalize.")}

    slim = build("resnet18-slim", 10)
    weights = {
        f"model.{name.replace('.shortcut.', '.downsample.').replace('linear.', 'fc.')}": value
        for name, value in slim.state_dict().items()
        if not name.startswith("normalize.")
    }
    torch.save({"state_dict": weights}, tmp_path / "theirs.pt")
    loaded = tool["load_renamed"](tmp_path / "theirs.pt", build("resnet18-slim", 10), tmp_path / "mine.safetensors")
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(loaded(images), slim.eval()(images))


def read_block(page: str, title: str) -> str:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    (block,) = re.findall(rf"```python\n# {title}\n(.*?)```", text, flags=re.S)
    return str(block)


def test_a_model_of_timm_is_measured() -> None:
    timm = pytest.importorskip("timm", reason="needs timm")
    names: dict[str, Any] = {}
    exec(read_block("other-models", "timm_net.py"), names)
    net = timm.create_model("resnet18", pretrained=False, num_classes=4)
    model = names["Normalised"](net, net.pretrained_cfg["mean"], net.pretrained_cfg["std"])
    assert len(puma.measure_margins(model, torch.rand(2, 3, 32, 32), [0, 1])) == 2


def test_the_normalisation_before_a_model_of_timm() -> None:
    names: dict[str, Any] = {}
    exec(read_block("other-models", "timm_net.py"), names)
    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3))
    model = names["Normalised"](linear, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    images = torch.rand(5, 3, 4, 4)
    means, stds = torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1), torch.tensor([0.5, 0.6, 0.7]).view(3, 1, 1)
    assert torch.equal(model(images), linear((images - means) / stds))
    assert len(puma.measure_margins(model, images, [0, 1, 2, 0, 1])) == 5


def test_a_dataset_of_hugging_face_is_a_pool() -> None:
    datasets = pytest.importorskip("datasets", reason="needs datasets of Hugging Face")
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee"])})
    pictures = [Image.new("RGB", (8, 8), (row, 0, 0)) for row in range(6)]
    train = datasets.Dataset.from_dict({"img": pictures, "label": [0, 1] * 3}, features=features)
    pool = puma.Pool.from_dataset(train, class_names=train.features["label"].names)
    assert (len(pool), pool.class_names) == (6, ("ant", "bee"))


def test_items_like_those_of_hugging_face_are_understood() -> None:
    items = [{"img": Image.new("RGB", (8, 8), (row, 0, 0)), "label": row % 2} for row in range(6)]
    pool = puma.Pool.from_dataset(items, class_names=["ant", "bee"])
    assert pool.batch([5]).images[0, 0, 0, 0] == 5
    assert pool.labels.tolist() == [0, 1] * 3
