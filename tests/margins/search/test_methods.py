"""A model is made ready once: the second call takes fewer passes, gives the same bits, and notices any change."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from puma.margins import measure_margins
from puma.margins.search import methods
from puma.margins.search.methods import make_ready
from puma.models import prepare_model


class Scaled(nn.Module):
    """A small net with BN whose forward depends on a plain attribute, too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
        self.sharpness = 1.0

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.body(self.sharpness * images)
        return logits


def draw_images() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    return torch.rand(12, 1, 8, 8, generator=random), torch.arange(12) % 5


def take_copy(model: nn.Module) -> nn.Module:
    images, _ = draw_images()
    model.eval()
    with torch.no_grad():
        logits = model(images)
    return make_ready(model, images, logits, compiled=False)[0]


def test_a_second_call_gives_the_same_bits_for_fewer_passes() -> None:
    model, (images, labels) = Scaled(), draw_images()
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    prepared: list[nn.Module] = []

    def prepare(model: nn.Module, example: Tensor) -> nn.Module:
        prepared.append(prepare_model(model, example))
        return prepared[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods, "prepare_model", prepare)
        first = measure_margins(model, images, labels)
        passes = len(calls)
        second = measure_margins(model, images, labels)
    assert len(prepared) == 1
    assert len(calls) - passes <= passes
    assert torch.equal(first.margin, second.margin)
    assert torch.equal(first.backwards, second.backwards)
    other = measure_margins(Scaled(), images, labels)
    assert torch.equal(first.margin, other.margin)


def _train(model: Scaled) -> None:
    next(model.body[4].parameters()).data.mul_(-1.0)  # past autograd's count of versions


def _move_statistics(model: Scaled) -> None:
    next(model.body[1].buffers()).add_(0.5)


def _change_attribute(model: Scaled) -> None:
    model.sharpness = 2.0


@pytest.mark.parametrize("change", [_train, _move_statistics, _change_attribute])
def test_a_changed_model_is_made_ready_anew(change: Callable[[Scaled], None]) -> None:
    model, (images, labels) = Scaled(), draw_images()
    measure_margins(model, images, labels)
    copy = take_copy(model)
    assert take_copy(model) is copy
    change(model)
    assert take_copy(model) is not copy
    fresh = Scaled()
    change(fresh)
    assert torch.equal(measure_margins(model, images, labels).margin, measure_margins(fresh, images, labels).margin)


def test_another_norm_or_box_is_not_taken_for_the_first() -> None:
    model, (images, labels) = Scaled(), draw_images()
    measure_margins(model, images, labels)
    for norm, bounds in (("l2", (0.0, 1.0)), ("linf", (-1.0, 2.0))):
        mine = measure_margins(model, images, labels, norm=norm, bounds=bounds)
        assert torch.equal(mine.margin, measure_margins(Scaled(), images, labels, norm=norm, bounds=bounds).margin)


def test_nothing_is_kept_of_a_model_that_is_gone() -> None:
    model, (images, labels) = Scaled(), draw_images()
    measure_margins(model, images, labels, method="tight")
    copy = weakref.ref(take_copy(model))
    assert copy() is not None
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert copy() is None
