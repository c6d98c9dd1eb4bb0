"""PUMA: margin-based data pruning and per-sample attack strength for robust image classifiers."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from puma.attacks import bim as bim
    from puma.attacks import fgsm as fgsm
    from puma.attacks import pgd as pgd
    from puma.errors import PumaError as PumaError
    from puma.margins import Margins as Margins
    from puma.margins import Status as Status
    from puma.margins import measure_margins as measure_margins
    from puma.margins import measure_pool as measure_pool
    from puma.pools import Pool as Pool

# public name -> where it lives; imported when it is first used, so that `puma --help` does not wait for torch
_PLACES = {
    "Margins": "puma.margins",
    "Pool": "puma.pools",
    "PumaError": "puma.errors",
    "Status": "puma.margins",
    "bim": "puma.attacks",
    "fgsm": "puma.attacks",
    "measure_margins": "puma.margins",
    "measure_pool": "puma.margins",
    "pgd": "puma.attacks",
}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'puma' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__
