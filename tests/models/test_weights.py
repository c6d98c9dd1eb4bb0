import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from conftest import MakePool
from puma.attacks import pgd
from puma.errors import PumaError
from puma.models import build, load_weights
from puma.models.weights import read_tensors, save_tensors
from puma.pools import Pool, to_unit
from puma.training import load_model


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build("small-8px", 10)


def same(one: nn.Module, two: nn.Module) -> bool:
    return all(torch.equal(value, two.state_dict()[name]) for name, value in one.state_dict().items())


@pytest.mark.parametrize("file", ["weights.safetensors", "weights.pt"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.module."])
def test_round_trip(tmp_path: Path, file: str, prefix: str) -> None:
    state = {prefix + name: value for name, value in small(1).state_dict().items()}
    path = tmp_path / file
    if path.suffix == ".pt":
        torch.save({"state_dict": state}, path)
    else:
        save_file(state, path)
    assert same(load_weights(small(2), path), small(1))


def test_a_child_called_module_keeps_its_name(tmp_path: Path) -> None:
    wrapped = nn.Sequential()
    wrapped.add_module("module", nn.Linear(3, 2))
    save_file(wrapped.state_dict(), tmp_path / "w.safetensors")
    other = nn.Sequential()
    other.add_module("module", nn.Linear(3, 2))
    assert same(load_weights(other, tmp_path / "w.safetensors"), wrapped)


def test_a_file_without_normalisation_keeps_the_models_own(tmp_path: Path) -> None:
    state = {name: value for name, value in small(1).state_dict().items() if "normalize" not in name}
    save_file(state, tmp_path / "bare.safetensors")
    assert same(load_weights(small(2), tmp_path / "bare.safetensors"), small(1))
    save_file(state, tmp_path / "named.safetensors", metadata={"mean": "0.1", "std": "0.3"})
    model = load_weights(small(2), tmp_path / "named.safetensors")
    assert model.normalize.mean.item() == pytest.approx(0.1)  # type: ignore[union-attr, operator]
    save_file(state, tmp_path / "odd.safetensors", metadata={"mean": "0.1 0.2", "std": "0.3"})
    with pytest.raises(PumaError, match=r"mean and std must be 1 numbers, got '0.1 0.2'"):
        load_weights(small(2), tmp_path / "odd.safetensors")


class Spy:
    """Would leave a trace if it were unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.trace,)  # type: ignore[return-value]


def test_a_pickle_is_refused_and_never_run(tmp_path: Path) -> None:
    trace, path = tmp_path / "trace", tmp_path / "model.pt"
    path.write_bytes(pickle.dumps({"state_dict": Spy(trace)}))
    with pytest.raises(PumaError, match="cannot be read as plain weights"):
        load_weights(small(), path)
    torch.save(small(), path)
    with pytest.raises(PumaError, match=r"save model.state_dict\(\)"):
        load_weights(small(), path)
    assert not trace.exists()


def test_bad_files_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(PumaError, match="no weights at"):
        load_weights(small(), tmp_path / "none.safetensors")
    cut = tmp_path / "cut.safetensors"
    save_file(small().state_dict(), cut)
    cut.write_bytes(cut.read_bytes()[:-100])
    with pytest.raises(PumaError, match="not a whole safetensors file"):
        load_weights(small(), cut)
    save_file(build("small-8px", 7).state_dict(), tmp_path / "seven.safetensors")
    with pytest.raises(PumaError, match=r"linear.weight is \(7, 48\), expected \(10, 48\)"):
        load_weights(small(), tmp_path / "seven.safetensors")
    save_file(build("resnet4b", 10).state_dict(), tmp_path / "other.safetensors")
    with pytest.raises(PumaError, match=r"does not fit this model \(missing: .*unknown: "):
        load_weights(small(), tmp_path / "other.safetensors")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(PumaError, match="does not hold a state dict"):
        load_weights(small(), tmp_path / "list.pt")


def test_a_users_own_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    Path("own_nets.py").write_text(
        "from torch import nn\n"
        "def make(): return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))\n"
        "def number(): return 3\n"
        "def broken(): return 1 / 0\n"
    )
    model = load_model("own_nets:make", 3)
    assert not model.training
    images = torch.rand(4, 3, 2, 2)
    assert pgd(model, images, torch.zeros(4, dtype=torch.int64), 0.1, step_size=0.1, steps=2).shape == images.shape
    with pytest.raises(PumaError, match=r"must return a torch.nn.Module, it returned int"):
        load_model("own_nets:number", 3)
    with pytest.raises(PumaError, match="own_nets:broken raised ZeroDivisionError: division by zero"):
        load_model("own_nets:broken", 3)
    with pytest.raises(
        PumaError, match=r"unknown class or function of own_nets 'absent'; .*known: make, number, broken"
    ):
        load_model("own_nets:absent", 3)
    with pytest.raises(PumaError, match="cannot import 'no_such_module'"):
        load_model("no_such_module:make", 3)
    with pytest.raises(PumaError, match="needs trained weights; give them with --weights"):
        load_model("resnet18", 3)


def test_public_robust_weights_on_generated_images(robust_nets: Path) -> None:
    from puma.pools.npz import read_npz

    path = os.environ.get("PUMA_GENERATED")
    if not path:
        pytest.skip("needs PUMA_GENERATED=FILE.npz with generated CIFAR-10 images; see CONTRIBUTING.md")
    images, labels = next(iter(read_npz(Path(path), origin=1, class_names=None).chunks))
    unit = to_unit(torch.from_numpy(images[:500].copy()).permute(0, 3, 1, 2))
    targets = torch.from_numpy(labels[:500].copy())
    model = load_model("resnet4b", 10, weights=robust_nets / "robust_cifar10_eps2.safetensors")
    assert model.normalize.mean.flatten().tolist() == pytest.approx([0.4914, 0.4822, 0.4465])  # type: ignore[union-attr, operator]
    attacked = pgd(model, unit, targets, 2 / 255, step_size=0.5 / 255, steps=10)
    with torch.no_grad():
        clean, robust = (float((model(x).argmax(1) == targets).float().mean()) for x in (unit, attacked))
    assert 0.4 < robust < clean - 0.03
    assert clean > 0.55


def test_public_robust_weights_on_cifar10(robust_nets: Path, cifar10_test: Pool) -> None:
    test = cifar10_test.batch(range(1000))
    images, labels = to_unit(test.images), test.labels
    model = load_model("resnet4b", 10, weights=robust_nets / "robust_cifar10_eps2.safetensors")
    attacked = pgd(model, images, labels, 2 / 255, step_size=0.5 / 255, steps=10, generator=torch.Generator())
    with torch.no_grad():
        assert int((model(images).argmax(1) == labels).sum()) == 771
        assert abs(int((model(attacked).argmax(1) == labels).sum()) - 618) <= 5


def test_a_pool_and_a_model_fit_together(make_pool: MakePool) -> None:
    pool = make_pool(shape=(8, 8, 1))
    assert small().eval()(to_unit(pool.batch([3, 1]).images)).shape == (2, 10)


def own_net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))


class NormalizesItself(nn.Module):
    """Divides by a std that is not saved with its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.net = own_net()
        self.register_buffer("std", torch.tensor([0.5, 0.4, 0.25]), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images / self.get_buffer("std")[:, None, None])
        return logits


def test_mean_and_std_of_a_file_belong_to_any_model(tmp_path: Path) -> None:
    path, images = tmp_path / "named.safetensors", torch.rand(4, 3, 2, 2)
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.4, 0.25])
    save_file(own_net().state_dict(), path, metadata={"mean": "0.1, 0.2, 0.3", "std": "[0.5 0.4 0.25]"})
    wanted = own_net()((images - mean[:, None, None]) / std[:, None, None])
    assert torch.allclose(load_model(own_net(), weights=path)(images), wanted)
    torch.save({"state_dict": own_net().state_dict(), "mean": mean, "std": std.tolist()}, tmp_path / "named.pt")
    assert torch.allclose(load_model(own_net(), weights=tmp_path / "named.pt")(images), wanted)
    save_file(own_net().state_dict(), tmp_path / "bare.safetensors")
    asked: dict[str, Any] = {"mean": mean.tolist(), "std": std.tolist()}
    assert torch.allclose(load_model(own_net(), weights=tmp_path / "bare.safetensors", **asked)(images), wanted)
    assert torch.allclose(load_model(own_net(), **asked)(images), wanted)
    assert torch.allclose(load_model(own_net(), weights=path, **asked)(images), wanted)
    own = {f"net.{name}": value for name, value in own_net().state_dict().items()}
    save_file(own, tmp_path / "own.safetensors", metadata={"std": "0.5 0.4 0.25"})
    assert isinstance(load_model(NormalizesItself(), weights=tmp_path / "own.safetensors"), NormalizesItself)


def test_mean_and_std_that_cannot_be_used_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "named.safetensors"
    save_file(own_net().state_dict(), path, metadata={"mean": "0.1 0.2 0.3", "std": "0.5 0.4 0.25"})
    with pytest.raises(PumaError, match=r"tells mean 0\.1 0\.2 0\.3, 0 0 0 is asked for"):
        load_model(own_net(), weights=path, mean=[0, 0, 0], std=[0.5, 0.4, 0.25])
    for metadata, sentence in (
        ({"mean": "0.1 0.2 0.3"}, "tells no std; mean and std go together"),
        ({"mean": "many", "std": "1 1 1"}, "mean in its metadata must be numbers, got 'many'"),
        ({"mean": "0 0 0", "std": "1 1 nan"}, "must be numbers"),
        ({"mean": "0 0 0", "std": "1 1 0"}, "positive std"),
        ({"mean": "0 0", "std": "1 1 1"}, "one each per channel"),
    ):
        save_file(own_net().state_dict(), path, metadata=metadata)
        with pytest.raises(PumaError, match=sentence):
            load_model(own_net(), weights=path)
    own = {f"net.{name}": value for name, value in own_net().state_dict().items()}
    save_file(own, path, metadata={"mean": "0 0 0", "std": "1 1 1"})
    with pytest.raises(PumaError, match=r"normalises with std 0\.5 0\.4 0\.25, 1 1 1 is told beside it"):
        load_model(NormalizesItself(), weights=path)
    save_file(small().state_dict(), path, metadata={"mean": "0.9", "std": "0.5"})
    with pytest.raises(PumaError, match=r"normalises with mean 0\.5, 0\.9 is told beside it"):
        load_model("small-8px", 10, channels=1, weights=path)
    torch.save({1: torch.zeros(2)}, tmp_path / "odd.pt")
    with pytest.raises(PumaError, match="does not hold a state dict"):
        load_model(own_net(), weights=tmp_path / "odd.pt")


def test_a_flipped_bit_in_our_own_weights_is_told(tmp_path: Path) -> None:
    path = save_tensors(tmp_path / "model.safetensors", small(1).state_dict(), {"step": "3"})
    assert same(load_weights(small(2), path), small(1))
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(PumaError, match="its tensors have changed since they were written"):
        load_weights(small(2), path)


def test_the_same_weights_are_the_same_bytes(tmp_path: Path) -> None:
    """A library that orders metadata by chance would break this one time in two."""
    paths = [
        save_tensors(tmp_path / f"{n}.safetensors", small(1).state_dict(), {"step": "3", "b": "4"}) for n in range(9)
    ]
    assert len({path.read_bytes() for path in paths}) == 1
    assert read_tensors(paths[0])[1] == {"step": "3", "b": "4"}
