"""Image classifiers that take pixels in [0, 1] and give logits."""

from puma.models.architectures import ARCHITECTURES, build, count_parameters
from puma.models.fingerprint import fingerprint_model
from puma.models.prepare import frozen
from puma.models.source import load_model
from puma.models.weights import load_weights

__all__ = ["ARCHITECTURES", "build", "count_parameters", "fingerprint_model", "frozen", "load_model", "load_weights"]
