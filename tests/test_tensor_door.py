"""The door for tensors, arrays, datasets and modules of one's own: all of it as a researcher types it in a notebook."""

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import puma
from puma.models import build
from puma.pools import to_unit
from puma.pools.datasets import read_digits
from puma.pools.writer import write_parts

BLOCK = """
pool = puma.Pool.from_tensors(images, labels)
pool = puma.Pool.from_dataset(dataset, origin=origin)
pool.save("mine"); pool[7]; pool.subset(mask).save("part"); DataLoader(pool); assert "\\n" not in repr(pool)
margins = puma.measure_pool(model, pool)
margins = puma.measure_pool(model, pool, out="margins.parquet")
PANDAS; margins.save("m.parquet"); puma.read_margins("m.parquet")
plan = puma.make_plan(pool, margins, prune_easy=0.2, eps=8/255)
for images, labels, strength, sample_id in plan.loader(pool, batch_size=512, generated_fraction=0.7): ...
run = puma.train(model, pool, plan=plan, recipe="small-cifar10", out="run", samples_seen=1e6)
run.model, run.metrics, run.evaluate(test_pool)
loaded, version = puma.load_model("run"), puma.__version__
"""


class Digits(Dataset[tuple[Tensor, int]]):
    """A map-style dataset of one's own."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], int(self.labels[index])

    def __len__(self) -> int:
        return len(self.images)


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a notebook has in hand before PUMA comes in."""
    monkeypatch.chdir(tmp_path)
    folder = write_parts(read_digits(), tmp_path / "digits")
    batch = puma.Pool.open(folder / "train").batch(range(120))
    images, labels = to_unit(batch.images), batch.labels
    torch.manual_seed(0)
    return {
        "images": images,
        "labels": labels,
        "dataset": Digits(images, labels),
        "origin": np.arange(120) % 2,
        "mask": labels > 4,
        "model": build("small-8px", 10),
        "test_pool": puma.Pool.open(folder / "test").subset(range(40)),
    }


def run_block(names: dict[str, Any]) -> dict[str, Any]:
    pandas = "margins.to_pandas()" if find_spec("pandas") else "..."
    code = BLOCK.replace("PANDAS", pandas).replace("1e6", "512").replace("batch_size=512", "batch_size=50")
    found = {"puma": puma, "DataLoader": DataLoader, **names}
    exec(compile(code, "notebook", "exec"), found)
    return found


def test_the_tour_runs_twice_in_a_row_and_finds_its_folders_again(digits: dict[str, Any]) -> None:
    first = run_block(digits)
    assert (len(first["images"]), first["images"].shape[1:]) == (50, (1, 8, 8))
    assert first["strength"].shape == first["sample_id"].shape == (50,)
    assert first["plan"].keep.sum() == 96
    trained = Path("run/model.safetensors").stat().st_mtime_ns
    probe = torch.rand(3, 1, 8, 8)
    assert torch.equal(first["loaded"](probe), first["run"].model(probe))
    again = run_block(digits)
    assert Path("run/model.safetensors").stat().st_mtime_ns == trained
    assert again["run"].evaluate(again["test_pool"]) == first["run"].evaluate(first["test_pool"])


def test_other_content_in_the_way_is_one_sentence(digits: dict[str, Any]) -> None:
    run_block(digits)
    other = puma.Pool.from_tensors(1 - digits["images"], digits["labels"])
    calls: list[Callable[[], object]] = [
        lambda: other.save("mine"),
        lambda: puma.measure_pool(digits["model"], other, out="margins.parquet"),
        lambda: puma.train(digits["model"], other, recipe="small-cifar10", out="run", samples_seen=512),
    ]
    for call in calls:
        with pytest.raises(puma.PumaError, match=r"another (pool|plan)|something else"):
            call()


def test_margins_in_every_form_make_the_same_plan(digits: dict[str, Any]) -> None:
    pool, model = puma.Pool.from_tensors(digits["images"], digits["labels"]), digits["model"]
    measured = puma.measure_pool(model, pool)
    path = measured.save("m.parquet")
    direct = puma.measure_margins(model, digits["images"], digits["labels"])
    forms = (measured, path, str(path), direct, direct.margin, direct.margin.numpy(), direct.margin.tolist())
    plans = [puma.make_plan(pool, form, prune_easy=0.2, eps=8 / 255) for form in forms]
    for plan in plans:
        assert torch.equal(plan.keep, plans[0].keep)
        assert torch.equal(plan.strength, plans[0].strength)
    assert torch.equal(plans[0].strength, puma.adaptive_strength(measured.margin, 8 / 255))
    part = pool.subset(range(50))
    with pytest.raises(puma.PumaError, match="made for another pool"):
        puma.make_plan(part, measured, prune_easy=0.2)
    with pytest.raises(puma.PumaError, match="a margin for each of the pool's 50 samples, got 120"):
        puma.make_plan(part, direct, prune_easy=0.2)
    turned = puma.measure_margins(model, digits["images"].flip(0), digits["labels"].flip(0))
    with pytest.raises(puma.PumaError, match="are they in the same order"):
        puma.make_plan(pool, turned, prune_easy=0.2)


def test_a_net_of_ones_own_is_loaded_by_the_way_that_the_error_names(digits: dict[str, Any]) -> None:
    def make() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    pool = puma.Pool.from_tensors(digits["images"], digits["labels"])
    run = puma.train(make(), pool, out="own", samples_seen=256, batch_size=64)
    with pytest.raises(puma.PumaError, match=r"puma\.load_model\(net, weights='own'\)"):
        puma.load_model("own")
    probe = torch.rand(3, 1, 8, 8)
    assert torch.equal(puma.load_model(make(), weights="own")(probe), run.model(probe))
    with pytest.raises(puma.PumaError, match=r"has no model\.safetensors yet; it is no run"):
        puma.load_model(make(), weights="digits")
    with pytest.raises(puma.PumaError, match="a model is a run's folder, a name, module:function or a net, got int"):
        puma.load_model(3)  # type: ignore[arg-type]


# how many of the wrong kinds below are welcome all the same
WORKS = {"from_tensors": 1, "from_dataset": 1, "measure_margins": 1, "make_plan": 1, "train by a plan": 1,
         "evaluate": 1, "trades_loss": 1, "pgd": 1}  # fmt: skip


@pytest.mark.parametrize("name", [*WORKS, "measure_pool", "train", "plan.loader", "run.evaluate", "prune",
                                  "adaptive_strength"])  # fmt: skip
def test_wrong_kinds_work_or_get_one_sentence(name: str, digits: dict[str, Any]) -> None:
    images, labels, model = digits["images"], digits["labels"], digits["model"]
    pool = puma.Pool.from_tensors(images, labels)
    plan = puma.make_plan(pool, prune_random=0.2)
    calls: dict[str, Callable[[Any], object]] = {
        "from_tensors": lambda given: puma.Pool.from_tensors(given, labels),
        "from_dataset": lambda given: puma.Pool.from_dataset(given),
        "measure_pool": lambda given: puma.measure_pool(model, given),
        "measure_margins": lambda given: puma.measure_margins(model, given, labels),
        "make_plan": lambda given: puma.make_plan(pool, given, prune_random=0.1),
        "train": lambda given: puma.train(model, given, out="run", samples_seen=128),
        "train by a plan": lambda given: puma.train(model, pool, plan=given, out="run", samples_seen=128),
        "evaluate": lambda given: puma.evaluate(model, given, labels, 8 / 255, attacks="clean"),
        "trades_loss": lambda given: puma.trades_loss(model, given, labels, 8 / 255, steps=1),
        "pgd": lambda given: puma.pgd(model, given, labels, 8 / 255, steps=1),
        "plan.loader": lambda given: list(plan.loader(given, batch_size=32)),
        "run.evaluate": lambda given: puma.Run(Path("nowhere")).evaluate(given),
        "prune": lambda given: puma.prune(given, 0.2),
        "adaptive_strength": lambda given: puma.adaptive_strength(given, 0.1),
    }
    kinds: list[Any] = [
        images.numpy(),
        digits["dataset"],
        DataLoader(TensorDataset(images, labels)),
        [1, "two", None],
        None,
        Path("nowhere"),
    ]
    told = []
    for given in kinds:
        try:
            calls[name](given)
        except puma.PumaError as error:
            told.append(str(error))
    assert len(told) == len(kinds) - WORKS.get(name, 0)
    assert all(re.fullmatch(r"[^\n]{20,}\.", sentence) for sentence in told)
