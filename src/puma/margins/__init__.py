"""Signed distances of samples to the decision boundary, with a status for each."""

from puma.margins.api import measure_margins
from puma.margins.measure import measure_pool
from puma.margins.methods import METHODS
from puma.margins.result import Margins
from puma.margins.status import Status
from puma.margins.table import MarginTable, read_margins

__all__ = ["METHODS", "MarginTable", "Margins", "Status", "measure_margins", "measure_pool", "read_margins"]
