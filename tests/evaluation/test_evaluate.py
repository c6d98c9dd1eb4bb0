import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conftest import Run
from puma import Pool, PumaError, evaluate
from puma.evaluation import EvaluationConfig, choose_evaluation_folder, evaluate_pool, identify_evaluation
from puma.evaluation import evaluate as package_evaluate
from puma.evaluation.masking import MaskingCheck, check_masking, draw_curve, measure_curve
from puma.evaluation.under_attack import (
    EvaluatedSamples,
    GradientAttack,
    ResumeFile,
    choose_rows,
    find_right,
    find_robust,
    list_standard_attacks,
    load_autoattack,
    run_autoattack,
)
from puma.models import build
from puma.pools import to_unit
from puma.training import load_model

PIXELS = 36


class Linear(nn.Module):
    """A linear classifier of 4 classes; its exact robust accuracy is known."""

    def __init__(self, quantised: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(4, PIXELS, generator=generator)
        self.weight = nn.Parameter(weight - weight.mean(1, keepdim=True))  # grey belongs to no class
        self.quantised = quantised

    def forward(self, images: Tensor) -> Tensor:
        pixels = images.flatten(1)
        if self.quantised:
            pixels = (pixels * 64).round() / 64  # no gradient passes through
        return pixels @ self.weight.T + 0 * images.sum()


def samples(count: int = 60) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = 0.2 + 0.6 * torch.rand(count, 1, 6, 6, generator=generator)
    labels = Linear()(images).argmax(1)
    labels[::7] = (labels[::7] + 1) % 4
    return images, labels


def exactly_right(model: Linear, images: Tensor, labels: Tensor, eps: float) -> Tensor:
    """Linear logits and no clipping: the smallest margin falls by eps times the L1 norm of the weights' difference."""
    with torch.no_grad():
        logits = model(images)
        own = logits.gather(1, labels[:, None])
        fall = (model.weight[None] - model.weight[labels][:, None]).abs().sum(2) * eps
        margin = own - logits - fall
        margin[torch.arange(len(labels)), labels] = torch.inf
        right: Tensor = (margin > 0).all(1)
        return right


@pytest.fixture
def evaluated() -> EvaluatedSamples:
    return EvaluatedSamples.from_tensors(Linear().requires_grad_(False), *samples(), 64)


@pytest.fixture(autouse=True)
def few_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Square stop after 50 queries instead of 5000."""
    package = load_autoattack()

    def make(*words: Any, **settings: Any) -> Any:
        suite = package.AutoAttack(*words, **settings)
        suite.square.n_queries = 50
        return suite

    monkeypatch.setattr("puma.evaluation.under_attack.load_autoattack", lambda: SimpleNamespace(AutoAttack=make))


@pytest.mark.parametrize(("eps", "extra"), [(0.005, ()), (0.02, ("autoattack",)), (0.05, ())])
def test_every_attack_finds_the_exact_robust_accuracy_of_a_linear_net(eps: float, extra: tuple[str, ...]) -> None:
    model, (images, labels) = Linear(), samples()
    robust = float(exactly_right(model, images, labels, eps).double().mean())
    found = evaluate(model, images, labels, eps, attacks=("clean", "cw", "pgd20", *extra), batch_size=32)
    assert found["clean"] == float((model(images).argmax(1) == labels).double().mean())
    assert found["cw"] == robust
    assert all(found[name] == robust for name in extra)
    assert 0 < robust < found["clean"]
    assert robust <= found["pgd20"] <= found["clean"]  # cross-entropy does not always choose the nearest rival


def test_the_model_and_the_generator_are_left_alone() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(PIXELS, 4))
    before = torch.get_rng_state()
    images, labels = samples(8)
    first = evaluate(model, images, labels, 0.01, attacks=("cw", "autoattack"))
    assert first == evaluate(model, images, labels, 0.01, attacks=("cw", "autoattack"))
    assert model.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert torch.equal(before, torch.get_rng_state())


def test_a_wrong_sample_is_never_robust(evaluated: EvaluatedSamples) -> None:
    clean = find_right(evaluated, ResumeFile())
    assert 0 < int(clean.sum()) < 60
    robust = find_robust("cw", GradientAttack("cw", 40), evaluated, clean, 0.01, ResumeFile())
    assert not bool((robust & ~clean).any())


def test_autoattack_is_what_the_package_says(evaluated: EvaluatedSamples) -> None:
    images, labels = samples()
    clean = find_right(evaluated, ResumeFile())
    ours, after = run_autoattack(evaluated, clean, 0.03, ResumeFile())
    suite = load_autoattack().AutoAttack(evaluated.model, eps=0.03, seed=0)
    suite.apgd_targeted.n_target_classes = suite.fab.n_target_classes = 3
    suite.square.n_queries = 50
    with torch.random.fork_rng():
        attacked, _ = suite.run_standard_evaluation(images, labels, batch_size=64)
    theirs = evaluated.model(attacked).argmax(1) == labels
    assert torch.equal(ours, theirs)
    assert list(after) == list(list_standard_attacks(4)) == ["apgd-ce", "apgd-t", "fab-t", "square"]


def test_two_classes_have_no_targeted_dlr() -> None:
    assert list_standard_attacks(3) == ("apgd-ce", "fab-t", "square")
    model = nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, 2))
    images, labels = samples(8)
    assert 0 <= evaluate(model, images, labels % 2, 0.01, attacks=("autoattack",))["autoattack"] <= 1


def interrupted_after(calls: int, model: nn.Module) -> Callable[[], None]:
    seen = 0

    def count(*_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == calls:
            raise KeyboardInterrupt

    handle = model.register_forward_pre_hook(count)
    return handle.remove


@pytest.mark.parametrize("calls", [3, 60, 700])
def test_an_evaluation_cut_short_goes_on(calls: int, tmp_path: Path, pool: Pool) -> None:
    config = EvaluationConfig(attacks=("clean", "cw", "autoattack"), batch_size=32, masking_samples=0)
    model = Linear()
    whole = evaluate_pool(model, pool, 0.03, config)
    restore = interrupted_after(calls, model)
    with pytest.raises(KeyboardInterrupt):
        evaluate_pool(model, pool, 0.03, config, state_path=tmp_path / "state.json")
    restore()
    done = ResumeFile.open(tmp_path / "state.json", "another key")
    assert done.entries == {}
    passes = []
    model.register_forward_pre_hook(lambda *_: passes.append(1))
    again = evaluate_pool(model, pool, 0.03, config, state_path=tmp_path / "state.json")
    assert all(torch.equal(again.right[name], whole.right[name]) for name in whole.right)
    first = len(passes)
    evaluate_pool(model, pool, 0.03, config, state_path=tmp_path / "state.json")
    assert len(passes) - first <= 3


def test_another_model_or_radius_does_not_use_the_state(tmp_path: Path, pool: Pool) -> None:
    config = EvaluationConfig(batch_size=16, masking_samples=0)
    path = tmp_path / "state.json"
    model = Linear()
    evaluate_pool(model, pool, 0.01, config, state_path=path)
    strong = evaluate_pool(model, pool, 0.5, config, state_path=path)
    assert int(strong.right["cw"].sum()) == 0
    model.weight.data.neg_()
    other = evaluate_pool(model, pool, 0.5, config, state_path=path)
    assert not torch.equal(other.right["clean"], strong.right["clean"])
    path.write_text("{ cut")
    assert evaluate_pool(model, pool, 0.5, config, state_path=path).right.keys() == {"clean", "cw"}


@pytest.fixture
def pool(make_pool: Callable[..., Pool]) -> Pool:
    return make_pool(count=50, shape=(6, 6, 1))


def test_json_has_counts_intervals_and_classes(pool: Pool) -> None:
    result = evaluate_pool(Linear(), pool, 0.01, EvaluationConfig(masking_samples=0)).to_metrics().to_json()
    json.dumps(result)
    clean = result["results"]["clean"]
    assert clean["total"] == 50
    assert sum(entry["right"] for entry in clean["classes"].values()) == clean["right"]
    assert sum(entry["total"] for entry in clean["classes"].values()) == 50
    assert clean["interval95"][0] < clean["accuracy"] < clean["interval95"][1]
    assert result["pool_fingerprint"] == pool.fingerprint


def test_max_samples_takes_some_without_regard_to_order(pool: Pool) -> None:
    rows = choose_rows(pool, 12)
    assert len(rows) == 12
    assert rows.tolist() == sorted(set(rows.tolist())) != list(range(12))
    assert np.array_equal(rows, choose_rows(pool, 12))
    assert choose_rows(pool, 12, first=True).tolist() == list(range(12))
    assert len(choose_rows(pool, 0)) == len(choose_rows(pool, 99)) == 50
    assert len(evaluate_pool(Linear(), pool, 0.01, EvaluationConfig(max_samples=7, masking_samples=0)).labels) == 7


def test_an_honest_net_raises_no_suspicion(evaluated: EvaluatedSamples) -> None:
    check = check_masking(evaluated, find_right(evaluated, ResumeFile()), 0.03, max_samples=40)
    assert check.warnings() == []
    assert check.large == 0


def test_hidden_gradients_are_noticed() -> None:
    evaluated = EvaluatedSamples.from_tensors(Linear(quantised=True).requires_grad_(False), *samples(), 64)
    check = check_masking(evaluated, find_right(evaluated, ResumeFile()), 0.06, max_samples=40)
    said = " ".join(check.warnings())
    assert "black-box" in said
    assert "at eps 0.5" in said


def test_each_sign_has_its_sentence() -> None:
    check = MaskingCheck(100, 80, 70, 75, None, 0.5, 6)
    assert [sentence.split(": ")[1].split()[0] for sentence in check.warnings()] == ["random", "a", "at"]
    assert MaskingCheck(100, 80, 78, 79, 79, 0.5, 5).warnings() == []


def test_square_beating_the_gradient_attacks_is_told(
    monkeypatch: pytest.MonkeyPatch, pool: Pool, evaluated: EvaluatedSamples
) -> None:
    flags = torch.ones(50, dtype=torch.bool)
    after = {"apgd-ce": flags, "apgd-t": flags, "fab-t": flags, "square": torch.arange(50) > 2}
    monkeypatch.setattr("puma.evaluation.accuracy.run_autoattack", lambda *_, **__: (after["square"], after))
    config = EvaluationConfig(attacks=("autoattack",), masking_samples=0)
    result = evaluate_pool(Linear(), pool, 0.01, config)
    assert "the black-box one breaks 3 more of 50 samples" in result.warnings[0]


def test_the_curve_falls_and_is_drawn(evaluated: EvaluatedSamples, tmp_path: Path) -> None:
    counts = measure_curve(evaluated, [0.05, 0.01, 0.5])
    assert list(counts) == [0.0, 0.01, 0.05, 0.5]
    rights = [counted.right for counted in counts.values()]
    assert rights == sorted(rights, reverse=True)
    images, labels = samples()
    model = Linear()
    assert counts[0.01].right == int(exactly_right(model, images, labels, 0.01).sum())
    assert rights[-1] == 0
    picture = draw_curve(counts, 0.01, tmp_path / "deep" / "curve.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"attacks": ("cww",)}, "did you mean 'cw'"),
        ({"attacks": ()}, "no attack given"),
        ({"norm": "linff"}, "did you mean 'linf'"),
        ({"eps": 0.0}, "eps must be positive, got 0"),
        ({"eps": float("nan")}, "eps must be positive"),
        ({"batch_size": 0}, "batch_size must be positive"),
        ({"images": torch.full((60, 1, 6, 6), 255.0)}, "within the bounds"),
    ],
)
def test_bad_input_is_told(change: dict[str, object], sentence: str) -> None:
    images, labels = samples()
    given: dict[str, object] = {"images": images, "labels": labels, "eps": 0.1, **change}
    with pytest.raises(PumaError, match=sentence):
        package_evaluate(Linear(), **given)  # type: ignore[arg-type]


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyautoattack", None)
    with pytest.raises(PumaError, match=r"puma-pruning\[eval\]"):
        load_autoattack()


@pytest.mark.parametrize(("name", "eps"), [("eps2", 2 / 255), ("eps8", 8 / 255)])
def test_an_independent_pgd_agrees_on_a_real_robust_net(
    name: str, eps: float, robust_nets: Path, cifar10_test: Pool
) -> None:
    foolbox = pytest.importorskip("foolbox", reason="needs foolbox: pip install -e '.[bench]'")
    model = load_model("resnet4b", 10, weights=robust_nets / f"robust_cifar10_{name}.safetensors")
    batch = cifar10_test.batch(range(200))
    images, labels = to_unit(batch.images).contiguous(), batch.labels
    ours = evaluate(model, images, labels, eps, attacks=("clean", "pgd20"))
    attack = foolbox.attacks.LinfPGD(rel_stepsize=0.25, steps=20, random_start=True)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        _, _, broken = attack(wrapped, images, labels, epsilons=eps)
    theirs = 1 - float(broken.double().mean())
    assert abs(ours["pgd20"] - theirs) <= 2 / 200


def test_runs_and_their_folders_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(PumaError, match="not a run of puma train"):
        load_model(str(tmp_path), 10)
    described = {"config": {"model": "small-8px"}, "inputs": {"num_classes": 10, "channels": 1}}
    (tmp_path / "config.json").write_text(json.dumps(described))
    with pytest.raises(PumaError, match="finish it with: puma train --resume"):
        load_model(str(tmp_path), 10)
    with pytest.raises(PumaError, match="trained on 10 classes, 3 are asked"):
        load_model(str(tmp_path), 3)
    torch.save(build("small-8px", 10, channels=1).state_dict(), tmp_path / "other.pt")
    assert not load_model(str(tmp_path), 10, weights=tmp_path / "other.pt").training
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(PumaError, match="damaged"):
        load_model(str(tmp_path), 10)


class Poisoned(Linear):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) * torch.nan


class Narrow(Linear):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images)[:, :2]


@pytest.mark.parametrize(("model", "sentence"), [(Poisoned(), "logits are not finite"), (Narrow(), "labels must lie")])
def test_models_that_cannot_be_right_are_named(model: nn.Module, sentence: str) -> None:
    with pytest.raises(PumaError, match=sentence):
        evaluate(model, *samples(), 0.05, attacks=("clean",))


def test_models_of_the_same_weights_do_not_share_results(pool: Pool) -> None:
    one, two, config = Linear(), Narrow(), EvaluationConfig()
    two.load_state_dict(one.state_dict())
    key = identify_evaluation(one, pool, 0.1, config)
    assert key == identify_evaluation(Linear(), pool, 0.1, replace(config, attacks=("autoattack",)))
    others = [
        identify_evaluation(two, pool, 0.1, config),
        identify_evaluation(one, pool, 0.2, config),
        identify_evaluation(one, pool, 0.1, replace(config, seed=1)),
        identify_evaluation(one, pool.subset(np.arange(50) < 9), 0.1, config),
    ]
    assert len({key, *others}) == 5


def test_numpy_pools_and_other_precisions_work(pool: Pool) -> None:
    batch = pool.batch(range(len(pool)))
    expected = evaluate(Linear(), to_unit(batch.images), batch.labels, 0.01)
    assert evaluate(Linear(), pool, eps=0.01) == expected
    assert evaluate(Linear(), batch.images.numpy(), batch.labels.tolist(), 0.01) == expected
    double = evaluate(Linear().double(), to_unit(batch.images).double(), batch.labels.int(), 0.01)
    assert double["clean"] == expected["clean"]
    assert abs(evaluate(Linear().half(), pool, eps=0.01)["cw"] - expected["cw"]) <= 0.1


class Tupled(Linear):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images), images  # type: ignore[return-value]


def test_wrong_kinds_get_one_sentence(pool: Pool) -> None:
    images, labels = samples()
    for given, sentence in (
        ((Linear(), list(images), labels, 0.1), "images must be a tensor or numpy array"),
        ((Linear(), images, None, 0.1), "labels must be a tensor, numpy array or list, got NoneType"),
        ((Linear(), pool, labels, 0.1), "a pool has labels of its own"),
        ((Linear(), images, labels), "say how strong the attacks are"),
        ((Linear(), images, labels, 8), r"got 8; did you mean 8/255\?"),
        (("run", images, labels, 0.1), "model must be a torch.nn.Module, got str"),
        ((Tupled(), images, labels, 0.1), "must return a tensor of logits, it returned a tuple"),
    ):
        with pytest.raises(PumaError, match=sentence):
            evaluate(*given)


def test_another_evaluation_never_replaces_the_first(make_pool: Callable[..., Pool], tmp_path: Path, puma: Run) -> None:
    make_pool("one", shape=(8, 8, 1), num_classes=10)
    make_pool("two/one", shape=(8, 8, 1), num_classes=10, seed=1)
    torch.save(build("small-8px", 10, channels=1).state_dict(), tmp_path / "weights.pt")
    out = tmp_path / "out"
    base = ["--weights", str(tmp_path / "weights.pt"), "--eps", "0.1", "--curve-samples", "0", "--masking-samples", "0"]
    command = ["evaluate", "small-8px", str(tmp_path / "one"), *base, "--out", str(out)]
    assert puma(*command)[0] == 0
    first = json.loads((out / "metrics.json").read_text())
    assert [link["kind"] for link in first["links"]] == ["model", "pool", "weights"]
    assert all(len(link["hash"]) == 64 for link in first["links"])
    for words in (["evaluate", "small-8px", str(tmp_path / "two/one"), *command[3:]], [*command, "--seed", "1"]):
        code, _, err = puma(*words)
        assert (code, "choose another --out" in err) == (2, True)
    assert json.loads((out / "metrics.json").read_text()) == first
    assert puma(*command, "--attacks", "pgd20")[0] == 0
    assert set(json.loads((out / "metrics.json").read_text())["results"]) == {"clean", "cw", "pgd20"}
    key = "f" * 64
    assert choose_evaluation_folder(out, key) == tmp_path / "out-ffffffff"
    assert choose_evaluation_folder(out, first["key"]) == out
