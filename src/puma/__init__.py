"""PUMA: margin-based data pruning and per-sample attack strength for robust image classifiers."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from puma.attacks import bim as bim
    from puma.attacks import fgsm as fgsm
    from puma.attacks import pgd as pgd
    from puma.errors import PumaError as PumaError
    from puma.evaluation import evaluate as evaluate
    from puma.margins import Margins as Margins
    from puma.margins import PredictConfig as PredictConfig
    from puma.margins import Status as Status
    from puma.margins import measure_margins as measure_margins
    from puma.margins import measure_pool as measure_pool
    from puma.margins import read_margins as read_margins
    from puma.planning import Plan as Plan
    from puma.planning import adaptive_strength as adaptive_strength
    from puma.planning import make_plan as make_plan
    from puma.planning import prune as prune
    from puma.pools import Pool as Pool
    from puma.report import write_report as write_report
    from puma.scores import Scores as Scores
    from puma.training import Run as Run
    from puma.training import load_model as load_model
    from puma.training import trades_loss as trades_loss
    from puma.training import train as train

# public name -> where it lives; imported when it is first used, so that `puma --help` does not wait for torch
_PLACES = {
    "Margins": "puma.margins",
    "Plan": "puma.planning",
    "Pool": "puma.pools",
    "PredictConfig": "puma.margins",
    "PumaError": "puma.errors",
    "Run": "puma.training",
    "Scores": "puma.scores",
    "Status": "puma.margins",
    "adaptive_strength": "puma.planning",
    "bim": "puma.attacks",
    "evaluate": "puma.evaluation",
    "fgsm": "puma.attacks",
    "load_model": "puma.training",
    "make_plan": "puma.planning",
    "measure_margins": "puma.margins",
    "measure_pool": "puma.margins",
    "pgd": "puma.attacks",
    "prune": "puma.planning",
    "read_margins": "puma.margins",
    "trades_loss": "puma.training",
    "train": "puma.training",
    "write_report": "puma.report.page",
}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("puma-pruning")
    if name not in _PLACES:
        raise AttributeError(f"module 'puma' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
