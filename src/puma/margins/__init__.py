"""Signed distances of samples to the decision boundary, with a status for each."""

from puma.margins.margins_file import Margins, read_margins
from puma.margins.measure_margins import measure_margins
from puma.margins.pool_driver import measure_pool
from puma.margins.search import METHODS, Status

__all__ = ["METHODS", "Margins", "Status", "measure_margins", "measure_pool", "read_margins"]
