"""From scores to a plan: which samples to keep, how strongly to attack each."""

from puma.planning.build import build_plan, check_rules, find_prune_start, make_plan
from puma.planning.export import (
    SUFFIX_FORMATS,
    ExportFormat,
    KeptSamples,
    export_bitmap,
    export_keys,
    export_npz,
    export_parquet,
    export_table,
    export_webdataset,
)
from puma.planning.plan import Plan, find_lost_classes, is_plan
from puma.planning.prune import Drop, PruneRule, prune, prune_strata
from puma.planning.show import compare_plans, draw_plan, format_plan, warn_of_imbalance, warn_of_threshold
from puma.planning.strength import StrengthRule, adaptive_strength

__all__ = [
    "SUFFIX_FORMATS",
    "Drop",
    "ExportFormat",
    "KeptSamples",
    "Plan",
    "PruneRule",
    "StrengthRule",
    "adaptive_strength",
    "build_plan",
    "check_rules",
    "compare_plans",
    "draw_plan",
    "export_bitmap",
    "export_keys",
    "export_npz",
    "export_parquet",
    "export_table",
    "export_webdataset",
    "find_lost_classes",
    "find_prune_start",
    "format_plan",
    "is_plan",
    "make_plan",
    "prune",
    "prune_strata",
    "warn_of_imbalance",
    "warn_of_threshold",
]
