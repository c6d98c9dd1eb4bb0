import pytest
import torch
from torch import nn

from puma.errors import PumaError
from puma.models import ARCHITECTURES, build, count_parameters


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("small-8px", 34_558),
        ("small-14px", 34_558),
        ("small-14px-narrow", 15_554),
        ("small-14px-wide", 77_104),
        ("small-32px", 61_338),
        ("resnet4b", 123_734),
        ("resnet18", 11_173_962),
        ("preactresnet18", 11_172_170),
        ("wrn28-10", 36_479_194),
        ("wrn70-16", 266_796_506),
    ],
)
def test_parameter_counts_are_those_of_the_literature(name: str, parameters: int) -> None:
    with torch.device("meta"):
        assert count_parameters(build(name, 10)) == parameters


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_every_model_gives_logits_for_its_image_size(name: str) -> None:
    with torch.device("meta"):
        model = build(name, 7)
        size = ARCHITECTURES[name].image_size
        channels = len(ARCHITECTURES[name].statistics[0])
        assert channels == (1 if size < 32 else 3)
        assert model(torch.empty(3, channels, size, size)).shape == (3, 7)


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if "small" in name])
def test_small_nets_end_in_4x4_features_and_keep_the_names_of_their_weights(name: str) -> None:
    architecture = ARCHITECTURES[name]
    channels = len(architecture.statistics[0])
    model = build(name, 10)
    features = model.get_submodule("features")(
        torch.empty(2, channels, architecture.image_size, architecture.image_size)
    )
    assert features.shape[2:] == (4, 4)
    names = [name for name in model.state_dict() if name.endswith("weight")]
    assert names == [f"features.{index}.weight" for index in (0, 1, 3, 4, 6, 7, 9, 10)] + ["linear.weight"]


@pytest.mark.parametrize("name", ["small-8px", "small-14px"])
def test_nets_saved_before_widths_could_be_chosen_still_load(name: str) -> None:
    shapes = [tuple(tensor.shape) for tensor in build(name, 10).state_dict().values() if tensor.dim() == 4]
    assert shapes == [(12, 1, 3, 3), (24, 12, 3, 3), (48, 24, 3, 3), (48, 48, 3, 3)]


def multiply_adds(model: nn.Module, size: int) -> int:
    total = 0

    def count(module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        nonlocal total
        if isinstance(module, nn.Conv2d):
            per_output = module.weight[0].numel()
            total += per_output * output[0].numel()

    for module in model.modules():
        module.register_forward_hook(count)
    model(torch.rand(1, 1, size, size))
    return total


@pytest.mark.parametrize(("name", "size"), [("small-8px", 8), ("small-14px", 14)])
def test_small_nets_cost_half_a_million_multiply_adds(name: str, size: int) -> None:
    assert 0.5e6 < multiply_adds(build(name, 10), size) < 0.6e6


def test_normalisation_is_inside() -> None:
    torch.manual_seed(0)
    plain, shifted = (build("resnet18-slim", 10, mean=mean, std=[0.5] * 3) for mean in ([0.0] * 3, [0.25] * 3))
    shifted.load_state_dict({**plain.state_dict(), "normalize.mean": torch.full((3, 1, 1), 0.25)})
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(shifted.eval()(images + 0.25), plain.eval()(images))


def test_a_model_for_other_channels_spreads_its_statistics() -> None:
    model = build("resnet18-slim", 10, channels=1)
    assert model(torch.rand(2, 1, 32, 32)).shape == (2, 10)
    assert model.normalize.mean.shape == (1, 1, 1)  # type: ignore[union-attr]


def test_every_layer_of_every_small_model_learns() -> None:
    for name in ("small-8px", "small-32px", "resnet18-slim", "resnet4b"):
        model = build(name, 10)
        size, channels = ARCHITECTURES[name].image_size, len(ARCHITECTURES[name].statistics[0])
        model(torch.rand(4, channels, size, size)).square().sum().backward()
        assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ({"name": "resnet-18", "num_classes": 10}, "unknown model 'resnet-18'; did you mean 'resnet18'"),
        ({"name": "resnet18", "num_classes": 1}, "at least 2 classes, got num_classes=1"),
        ({"name": "resnet18", "num_classes": 10, "std": [0.1, 0.0, 0.1]}, "std must be 3 positive numbers"),
        ({"name": "resnet18", "num_classes": 10, "mean": [0.1, 0.0], "channels": 3}, "mean must be 3 numbers"),
    ],
)
def test_bad_input(call: dict[str, object], sentence: str) -> None:
    with pytest.raises(PumaError, match=sentence):
        build(**call)  # type: ignore[arg-type]
