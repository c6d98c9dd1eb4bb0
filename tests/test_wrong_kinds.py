"""Arguments of a wrong kind get one sentence, and what a user has lying in a file or folder stays as it was."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import puma

IMAGES, LABELS = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 4


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 4))


@pytest.fixture
def pool() -> puma.Pool:
    return puma.Pool.from_tensors(IMAGES, LABELS)


@pytest.fixture
def plan(pool: puma.Pool) -> puma.Plan:
    return puma.make_plan(pool, prune_random=0.25, eps=0.1)


class Words:
    """A dataset whose targets are words, and whose classes are a number."""

    targets, classes = ("cat", "dog"), 2

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return IMAGES[index], index


class Lookup(nn.Linear):
    """A net that fails with an error that is neither of torch nor of arithmetic."""

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        raise KeyError("no such head")


MAKE: dict[str, Callable[[], Any]] = {
    "dense tensor": lambda: puma.Pool.from_tensors(IMAGES.to_sparse(), LABELS),
    "got torch.float32 of layout torch.strided on meta": lambda: puma.Pool.from_tensors(IMAGES.to("meta"), LABELS),
    "unknown layout 3": lambda: puma.Pool.from_tensors(IMAGES, LABELS, layout=3),  # type: ignore[arg-type]
    "class_names must be a list .* got 4": lambda: puma.Pool.from_tensors(IMAGES, LABELS, class_names=4),  # type: ignore[arg-type]
    "class_names must be a list .* got 'abcd'": lambda: puma.Pool.from_tensors(IMAGES, LABELS, class_names="abcd"),
    "origin must be": lambda: puma.Pool.from_tensors(IMAGES, LABELS, origin=[[1], [1, 0]]),
}

OF_POOL: dict[str, Callable[[puma.Pool], Any]] = {
    "whole number, got slice; pool.subset": lambda pool: pool[1:3],  # type: ignore[index]
    "whole number, got str": lambda pool: pool["a"],  # type: ignore[index]
    "behind a pool, got int": lambda pool: pool + 3,  # type: ignore[operator]
    "several lengths": lambda pool: pool.subset([[1], [1, 2]]),
    "batch_size must be a number, got '16'": lambda pool: puma.measure_pool(make_net(), pool, batch_size="16"),  # type: ignore[arg-type]
    "batch_size must be a whole number, got 1.5": lambda pool: puma.measure_pool(make_net(), pool, batch_size=1.5),  # type: ignore[arg-type]
    "part_size must be a number, got None": lambda pool: puma.measure_pool(make_net(), pool, part_size=None),  # type: ignore[arg-type]
    "cap must be a number, got '8/255'": lambda pool: puma.measure_pool(make_net(), pool, cap="8/255"),  # type: ignore[arg-type]
    "unknown norm inf": lambda pool: puma.measure_pool(make_net(), pool, norm=float("inf")),  # type: ignore[arg-type]
    "cannot take images of shape .*no such head": lambda pool: puma.measure_pool(Lookup(2, 2), pool),
    "easy must be a number, got '0.2'": lambda pool: puma.make_plan(pool, [0.1] * 16, prune_easy="0.2"),  # type: ignore[arg-type]
    "eps must be a number, got None": lambda pool: puma.make_plan(pool, eps=None),  # type: ignore[arg-type]
    "strata must be a whole number": lambda pool: puma.make_plan(
        pool,
        [0.1] * 16,
        prune_stratified=0.3,
        strata=2.5,  # type: ignore[arg-type]
    ),
    "no weights that can be trained": lambda pool: puma.train(make_net().requires_grad_(False), pool, out="run"),
    "cannot take images .*no such head": lambda pool: puma.train(Lookup(2, 2), pool, out="run"),
}


@pytest.mark.parametrize("sentence", MAKE)
def test_a_pool_is_not_made_of_what_cannot_be_meant(sentence: str) -> None:
    with pytest.raises(puma.PumaError, match=sentence):
        MAKE[sentence]()


@pytest.mark.parametrize("sentence", OF_POOL)
def test_a_wrong_kind_gets_one_sentence(
    sentence: str, pool: puma.Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(puma.PumaError, match=sentence):
        OF_POOL[sentence](pool)
    assert not list(tmp_path.iterdir())


def test_what_can_be_meant_works(pool: puma.Pool, plan: puma.Plan) -> None:
    with_gradients = list(IMAGES.clone().requires_grad_())
    assert puma.Pool.from_tensors(with_gradients, list(LABELS)).fingerprint == pool.fingerprint
    named = puma.Pool.from_tensors(IMAGES, LABELS, class_names=np.array(list("abcd")))  # type: ignore[arg-type]
    assert named.class_names == ("a", "b", "c", "d")
    words = puma.Pool.from_dataset(Words())
    assert words.class_names == ("0", "1")
    assert list(words.labels) == [0, 1]
    assert len(list(plan.loader(pool, batch_size=4, samples_seen=1e2))) == 25  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": None}, "batch_size must be a number, got None"),
        ({"samples_seen": float("nan")}, "samples_seen must be a whole number, got nan"),
        ({"generated_fraction": "a"}, "generated_fraction must be a number"),
        ({"seed": "a"}, "seed must be a number"),
    ],
)
def test_a_loader_says_what_is_wrong(pool: puma.Pool, plan: puma.Plan, setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(puma.PumaError, match=sentence):
        plan.loader(pool, **setting)


def test_a_plan_replaces_plans_alone(pool: puma.Pool, plan: puma.Plan, tmp_path: Path) -> None:
    text, margins, mine = tmp_path / "notes.txt", tmp_path / "margins.parquet", tmp_path / "plan.parquet"
    text.write_text("notes")
    puma.measure_pool(make_net(), pool, out=margins)
    before = margins.read_bytes()
    with pytest.raises(puma.PumaError, match="no whole plan; choose another file"):
        plan.save(text)
    with pytest.raises(puma.PumaError, match="a table, but not a plan"):
        plan.save(margins)
    assert (text.read_text(), margins.read_bytes()) == ("notes", before)
    plan.save(mine)
    other = puma.make_plan(pool, prune_random=0.5, eps=0.1)
    assert torch.equal(puma.Plan.open(other.save(mine)).keep, other.keep)


def test_bad_input_with_a_plan_can_be_put_right_in_the_same_folder(
    pool: puma.Pool, plan: puma.Plan, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(puma.PumaError, match="made for another pool"):
        puma.train(make_net(), puma.Pool.from_tensors(IMAGES.flip(0), LABELS), plan=plan, out=out)
    assert not out.exists()
    with pytest.raises(puma.PumaError, match="cannot take images"):
        puma.train(nn.Linear(3, 4), pool, plan=plan, out=out)
    other = puma.make_plan(pool, prune_random=0.5, eps=0.1)
    run = puma.train(make_net(), pool, plan=other, out=out, samples_seen=16, batch_size=16, eps=0.1)
    assert torch.equal(puma.Plan.open(out / "plan.parquet").keep, other.keep)
    with pytest.raises(puma.PumaError, match="eps must be positive, got 0"):
        run.evaluate(pool, eps=0)
    for name in ("", "a/b", "../other"):
        with pytest.raises(puma.PumaError, match="name must be a word"):
            run.evaluate(pool, name=name)
