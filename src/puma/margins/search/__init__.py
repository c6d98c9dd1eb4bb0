"""The search for the boundary: methods by name, built from an opening, steps, a line search and the engine."""

from puma.margins.search.engine import Status
from puma.margins.search.methods import METHODS, find_method

__all__ = ["METHODS", "Status", "find_method"]
