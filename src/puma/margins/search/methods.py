"""The methods by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from puma.attacks import Norm
from puma.errors import unknown_name
from puma.margins.search.deepfool import DEEPFOOL, TIGHT, DeepFoolConfig, assemble_deepfool
from puma.margins.search.engine import SearchMethod
from puma.margins.search.line_search import Box
from puma.margins.search.network import Network
from puma.margins.search.opening import estimate_pair_norms
from puma.margins.search.stepping import CLASSIC, FAST, FAST_CE, FastConfig, assemble_classic, assemble_fast


@dataclass(frozen=True)
class SearchSetting:
    """Everything about a measurement that the methods share."""

    network: Network
    norm: Norm
    box: Box
    classes: int
    cap: float | None
    example: Tensor  # rows of pixels: device and dtype


@dataclass(frozen=True)
class MethodEntry:
    """A method with its configuration and one line about it."""

    config: Any
    assemble: Callable[[SearchSetting], SearchMethod]
    summary: str


def _use_deepfool(config: DeepFoolConfig) -> Callable[[SearchSetting], SearchMethod]:
    def assemble(setting: SearchSetting) -> SearchMethod:
        ranks = estimate_pair_norms(setting.network, setting.norm, setting.box, setting.classes, setting.example)
        return assemble_deepfool(setting.network, setting.norm, setting.box, ranks, setting.cap, config)

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
