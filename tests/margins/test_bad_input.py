"""Bad input is refused in one sentence, or named in a warning; it never gives a plausible number."""

import pytest
import torch
from torch import Tensor, nn

from margins.problems import affine, net_images, smooth_net
from puma.errors import PumaError
from puma.margins import measure_margins

LABELS = torch.tensor([0, 1, 2, 3])


def refuse(match: str, model: nn.Module, images: Tensor, labels: Tensor = LABELS, **options: object) -> None:
    with pytest.raises(PumaError, match=match):
        measure_margins(model, images, labels, **options)  # type: ignore[arg-type]


def test_images() -> None:
    model, images = smooth_net(), net_images(4)
    refuse("cannot take images of shape", model, images[:, :2])
    refuse("floating point", model, (255 * images).to(torch.uint8))
    refuse("within the bounds", model, 2 * images)
    refuse("within the bounds", model, images - 0.5)
    refuse("NaN", model, images.where(images < 0.9, torch.nan))
    refuse("bounds must be", model, images, bounds=(1.0, 0.0))


def test_labels() -> None:
    model, images = smooth_net(), net_images(4)
    refuse(r"0\.\.4 for this model's 5 classes", model, images, torch.tensor([0, 1, 2, 5]))
    refuse(r"0\.\.4 for this model's 5 classes", model, images, torch.tensor([0, 1, 2, -1]))
    refuse("labels must be int64", model, images, torch.tensor([0, 1]))
    refuse("labels must be int64", model, images, LABELS.float())


def test_names_and_numbers() -> None:
    model, images = smooth_net(), net_images(4)
    refuse("unknown method 'tigth'; did you mean 'tight'", model, images, method="tigth")
    refuse("unknown norm 'linff'; did you mean 'linf'", model, images, norm="linff")
    refuse("batch_size must be at least 1", model, images, batch_size=0)
    refuse("cap must be a positive number", model, images, cap=0.0)
    refuse("cap must be a positive number", model, images, cap=float("nan"))


def test_models() -> None:
    class Sealed(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.detach().flatten(1)[:, :5]

    class Pair(nn.Module):
        def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
            return images, images

    images = net_images(4)
    refuse("no gradient to the pixels", Sealed(), images)
    refuse("must give logits of shape", Pair(), images)
    refuse("must give logits of shape", nn.Identity(), images)
    refuse("at least 2 classes", nn.Sequential(nn.Flatten(), nn.Linear(192, 1)), images, 0 * LABELS)


def test_empty_batch_gives_an_empty_result() -> None:
    result = measure_margins(smooth_net(), net_images(0), torch.zeros(0, dtype=torch.int64))
    assert len(result) == 0
    assert result.margin.dtype == torch.float32


def test_one_image() -> None:
    assert len(measure_margins(smooth_net(), net_images(1), torch.tensor([0]))) == 1


def test_probabilities_are_named_in_a_warning() -> None:
    problem = affine(4, count=4)
    model = nn.Sequential(problem.model, nn.Softmax(1))
    with pytest.warns(UserWarning, match="remove the final softmax"):
        measure_margins(model, problem.images, problem.labels)
    advised = measure_margins(model[:-1], problem.images, problem.labels)  # as it says; a warning would be an error
    assert torch.equal(advised.margin, measure_margins(problem.model, problem.images, problem.labels).margin)


def test_randomness_is_named_in_a_warning() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = smooth_net()

        def forward(self, images: Tensor) -> Tensor:
            logits: Tensor = self.net(images + 0.1 * torch.randn_like(images))
            return logits

    with pytest.warns(UserWarning, match="random in eval mode"):
        measure_margins(Noisy(), net_images(4), LABELS)
