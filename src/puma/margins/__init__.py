"""Signed distances of samples to the decision boundary, with a status for each."""

from puma.margins.api import measure_margins
from puma.margins.methods import METHODS
from puma.margins.result import Margins
from puma.margins.status import Status

__all__ = ["METHODS", "Margins", "Status", "measure_margins"]
