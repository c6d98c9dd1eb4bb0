"""The hash of a model changes with its print, its weights and its answers, and with nothing else."""

import copy

import torch
from torch import Tensor, nn

from puma.models import build
from puma.models.prepare import fingerprint_model

SHAPE = (8, 8, 1)


class Scaled(nn.Module):
    """Prints alike and has the same weights, whatever the factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 3)
        self.factor = factor
        with torch.no_grad():
            self.linear.weight.copy_(torch.linspace(-1, 1, 192).view(3, 64))
            self.linear.bias.zero_()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.linear(images.flatten(1))
        return torch.sin(self.factor * logits)


def test_another_constant_in_forward_is_another_model() -> None:
    assert fingerprint_model(Scaled(1.0), SHAPE) == fingerprint_model(Scaled(1.0), SHAPE)
    assert fingerprint_model(Scaled(1.0), SHAPE) != fingerprint_model(Scaled(2.0), SHAPE)


def test_the_smallest_change_of_a_weight_is_another_model() -> None:
    model = build("small-8px", 10)
    before = fingerprint_model(model, SHAPE)
    other = copy.deepcopy(model)
    weight = next(other.parameters()).data.view(-1)
    weight[0] = torch.nextafter(weight[0], torch.tensor(9.0))
    assert fingerprint_model(other, SHAPE) != before
    assert fingerprint_model(model, SHAPE) == before


def test_mode_gradients_and_random_state_stay_and_do_not_matter() -> None:
    model = build("small-8px", 10)
    before = fingerprint_model(model, SHAPE)
    model.train().requires_grad_(False)
    state = torch.get_rng_state()
    assert fingerprint_model(model, SHAPE) == before
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert next(model.parameters()).dtype == torch.float32


def test_a_model_that_answers_with_noise_keeps_its_hash() -> None:
    class Noisy(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.rand(len(images), 3)

    assert fingerprint_model(Noisy(), SHAPE) == fingerprint_model(Noisy(), SHAPE)


def test_a_model_that_refuses_the_images_has_a_hash_of_its_weights() -> None:
    one, two = nn.Linear(3, 2), nn.Linear(3, 2)
    assert fingerprint_model(one, SHAPE) == fingerprint_model(copy.deepcopy(one), SHAPE)
    assert fingerprint_model(one, SHAPE) != fingerprint_model(two, SHAPE)
