"""One HTML page about runs, margins and plans; curves of several runs."""

from puma.report.page import write_report
from puma.report.training_curves import draw_curves

__all__ = ["draw_curves", "write_report"]
