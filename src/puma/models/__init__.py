"""Image classifiers that take pixels in [0, 1] and give logits."""

from puma.models.build import ARCHITECTURES, build, count_parameters
from puma.models.frozen import frozen
from puma.models.source import load_model
from puma.models.weights import load_weights

__all__ = ["ARCHITECTURES", "build", "count_parameters", "frozen", "load_model", "load_weights"]
