"""Image classifiers that take pixels in [0, 1] and give logits."""

from puma.models.architectures import ARCHITECTURES, build, count_parameters, name_architecture
from puma.models.prepare import fingerprint_model, frozen
from puma.models.source import call_model_function, load_named_model
from puma.models.weights import load_weights

__all__ = [
    "ARCHITECTURES",
    "build",
    "call_model_function",
    "count_parameters",
    "fingerprint_model",
    "frozen",
    "load_named_model",
    "load_weights",
    "name_architecture",
]
