"""One HTML page about runs, margins and plans; curves of several runs."""

from puma.report.experiment_record import RECORD_FILE, ExperimentRecord, read_record, write_record
from puma.report.page import MAX_SAMPLES, check_out, write_report
from puma.report.rows import ReportRow, SeedFiles
from puma.report.statistics import (
    AccuracyDifference,
    estimate_accuracy,
    student_quantile,
    subtract_estimates,
    subtract_paired,
)
from puma.report.svg import printable_text
from puma.report.training_curves import draw_curves

__all__ = [
    "MAX_SAMPLES",
    "RECORD_FILE",
    "AccuracyDifference",
    "ExperimentRecord",
    "ReportRow",
    "SeedFiles",
    "check_out",
    "draw_curves",
    "estimate_accuracy",
    "printable_text",
    "read_record",
    "student_quantile",
    "subtract_estimates",
    "subtract_paired",
    "write_record",
    "write_report",
]
