"""The methods by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from puma.attacks.norms import Norm
from puma.errors import unknown_name
from puma.margins.classic import CLASSIC, classic
from puma.margins.deepfool import DEEPFOOL, TIGHT, Search, deepfool
from puma.margins.fast import FAST, FAST_CE, Fast, fast
from puma.margins.geometry import Box
from puma.margins.network import Network
from puma.margins.rivals import pair_norms
from puma.margins.stream import Method


@dataclass(frozen=True)
class Setting:
    """Everything about a measurement that the methods share."""

    network: Network
    norm: Norm
    box: Box
    classes: int
    cap: float | None
    example: Tensor  # rows of pixels: device and dtype


@dataclass(frozen=True)
class Offer:
    """A method with its configuration and one line about it."""

    config: Any
    assemble: Callable[[Setting], Method]
    summary: str


def _engine(config: Search) -> Callable[[Setting], Method]:
    def assemble(setting: Setting) -> Method:
        ranks = pair_norms(setting.network, setting.norm, setting.box, setting.classes, setting.example)
        return deepfool(setting.network, setting.norm, setting.box, ranks, setting.cap, config)

    return assemble


def _fast(config: Fast) -> Callable[[Setting], Method]:
    return lambda setting: fast(setting.network, setting.norm, setting.box, setting.cap, config)


def _classic(setting: Setting) -> Method:
    return classic(setting.network, setting.norm, setting.box, setting.classes, setting.cap, CLASSIC)


METHODS: dict[str, Offer] = {
    "deepfool": Offer(DEEPFOOL, _engine(DEEPFOOL), "anchored DeepFool: the best for its cost"),
    "tight": Offer(TIGHT, _engine(TIGHT), "the same engine, several rivals raced: closest to exact"),
    "fast": Offer(FAST, _fast(FAST), "Algorithm 1 of the paper, corrected"),
    "fast-ce": Offer(FAST_CE, _fast(FAST_CE), "the same, walking on cross-entropy as the paper prints it"),
    "deepfool-classic": Offer(CLASSIC, _classic, "textbook DeepFool: the paper's own, slow"),
}


def method_named(name: str) -> Offer:
    """Look a method up; an unknown name raises."""
    if name not in METHODS:
        raise unknown_name("method", name, list(METHODS))
    return METHODS[name]
