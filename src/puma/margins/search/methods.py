"""The methods by name, and what is made ready once for a model and kept for the next call.

That is its faster copy, and what searches learnt of it. A call compares the weights by their hash and the copy's logits
of a few images with the model's, so a model that was trained further, or whose ``forward`` answers otherwise, is made
ready anew. What is kept goes when the model goes.
"""

import contextlib
import hashlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from puma.attacks import Norm
from puma.errors import unknown_name
from puma.margins.search.deepfool import DEEPFOOL, TIGHT, DeepFoolConfig, assemble_deepfool
from puma.margins.search.engine import SearchMethod
from puma.margins.search.line_search import Box
from puma.margins.search.network import Network
from puma.margins.search.opening import PairNorms, estimate_pair_norms
from puma.margins.search.restarts import ClassImages, FoundImages
from puma.margins.search.stepping import CLASSIC, FAST, FAST_CE, FastConfig, assemble_classic, assemble_fast
from puma.models import gives_same_logits, prepare_model


@dataclass
class ModelKnowledge:
    """What searches have learnt of a model, whatever the images: later ones need not find it out again."""

    ranks: PairNorms | None = None
    class_images: FoundImages = field(default_factory=dict)


@dataclass(frozen=True)
class SearchSetting:
    """Everything about a measurement that the methods share."""

    network: Network
    norm: Norm
    box: Box
    classes: int
    cap: float | None
    example: Tensor  # rows of pixels: device and dtype
    knowledge: ModelKnowledge = field(default_factory=ModelKnowledge)


@dataclass(frozen=True)
class MethodEntry:
    """A method with its configuration and one line about it."""

    config: Any
    assemble: Callable[[SearchSetting], SearchMethod]
    summary: str


def _use_deepfool(config: DeepFoolConfig) -> Callable[[SearchSetting], SearchMethod]:
    def assemble(setting: SearchSetting) -> SearchMethod:
        network, norm, box, known = setting.network, setting.norm, setting.box, setting.knowledge
        known.ranks = known.ranks or estimate_pair_norms(network, norm, box, setting.classes, setting.example)
        images = ClassImages(network, norm, box, setting.classes, known.class_images)
        return assemble_deepfool(network, norm, box, known.ranks, images, setting.cap, config)

    return assemble


def _use_fast(config: FastConfig) -> Callable[[SearchSetting], SearchMethod]:
    return lambda setting: assemble_fast(setting.network, setting.norm, setting.box, setting.cap, config)


def _use_classic(setting: SearchSetting) -> SearchMethod:
    return assemble_classic(setting.network, setting.norm, setting.box, setting.classes, setting.cap, CLASSIC)


METHODS: dict[str, MethodEntry] = {
    "deepfool": MethodEntry(DEEPFOOL, _use_deepfool(DEEPFOOL), "anchored DeepFool: the best for its cost"),
    "tight": MethodEntry(TIGHT, _use_deepfool(TIGHT), "the same engine, several rivals raced: closest to exact"),
    "fast": MethodEntry(FAST, _use_fast(FAST), "Algorithm 1 of the paper, corrected"),
    "fast-ce": MethodEntry(FAST_CE, _use_fast(FAST_CE), "the same, walking on cross-entropy as the paper prints it"),
    "deepfool-classic": MethodEntry(CLASSIC, _use_classic, "textbook DeepFool: the paper's own, slow"),
}


PREDICTED = "predicted"  # measures some samples by one of these, and predicts the others


def find_method(name: str) -> MethodEntry:
    """Look a method up; an unknown name raises."""
    if name not in METHODS:
        raise unknown_name("method", name, list(METHODS))
    return METHODS[name]


@dataclass
class KeptModel:
    """The copy that searches use, and what they know of the model, by the settings that it depends on."""

    weights: bytes
    copies: dict[bool, nn.Module] = field(default_factory=dict)  # compiled or not
    knowledge: dict[Hashable, ModelKnowledge] = field(default_factory=dict)

    def recall(self, *setting: Hashable) -> ModelKnowledge:
        """Return what is known for a setting; nothing yet, the first time."""
        return self.knowledge.setdefault(setting, ModelKnowledge())


_KEPT: WeakKeyDictionary[nn.Module, KeptModel] = WeakKeyDictionary()


def make_ready(model: nn.Module, examples: Tensor, logits: Tensor, *, compiled: bool) -> tuple[nn.Module, KeptModel]:
    """Return a copy of the model for searching, and what is kept of it; ``logits`` are the model's of the examples."""
    weights = hash_weights(model, tuple(examples.shape[1:]))
    kept = _find_kept(model)
    copy = None if kept is None or kept.weights != weights else kept.copies.get(compiled)
    if kept is None or kept.weights != weights or (copy is not None and not gives_same_logits(copy, examples, logits)):
        kept, copy = KeptModel(weights), None
    if copy is None:
        copy = prepare_model(model, examples)
        if copy is model:  # it cannot be copied, and to keep it would keep it alive
            return copy, kept
        if compiled:
            copy.compile()
        kept.copies[compiled] = copy
        with contextlib.suppress(TypeError):  # a module of its own __eq__ has no hash
            _KEPT[model] = kept
    return copy, kept


def _find_kept(model: nn.Module) -> KeptModel | None:
    try:
        return _KEPT.get(model)
    except TypeError:
        return None


def hash_weights(model: nn.Module, shape: tuple[int, ...]) -> bytes:
    """Hash the architecture as printed, every parameter and buffer, where they are, and the shape of the images."""
    digest = hashlib.blake2b(f"{model} {shape}".encode())  # kept in no file
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"{name} {tensor.device} {tensor.dtype} {tuple(tensor.shape)}".encode())
        values = tensor.detach().cpu().contiguous().view(-1)
        if values.numel():
            digest.update(values.view(torch.uint8).numpy().tobytes())
    return digest.digest()
