"""Open files that nobody vouches for: whatever is wrong with one, a sentence says which it is."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from puma.errors import PumaError
from puma.margins.table import MarginTable, read_footer, read_margins
from puma.planning import Plan
from puma.pools import Pool
from puma.pools.pool import open_pools
from puma.training.config import TrainConfig
from puma.training.run_folder import Inputs, RunFolder


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn what a reader of a damaged file trips over, be it deep inside a library, into one sentence."""
    try:
        yield
    except (PumaError, OSError):
        raise
    except Exception as error:
        raise PumaError(f"{name} is damaged ({type(error).__name__}: {error}); make it again.") from error


def open_run(folder: Path) -> tuple[TrainConfig, Inputs]:
    """Read what a run was begun with."""
    with reading(str(folder / "config.json")):
        config, inputs = RunFolder(folder).read()
        texts = [*inputs.pools, inputs.plan or "", inputs.pool_fingerprint]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"pools, plan and pool_fingerprint must be text, got {texts}")
        return config, inputs


def open_plan(path: Path) -> Plan:
    """Read a plan."""
    with reading(str(path)):
        return Plan.open(path)


def open_pool(paths: Sequence[Path]) -> Pool:
    """Open pools as one."""
    with reading(", ".join(map(str, paths))):
        return open_pools(paths)


def open_margins(path: Path) -> MarginTable:
    """Read margins; those without a sample raise."""
    with reading(str(path)):
        table = read_margins(path)
    if not len(table):
        raise PumaError(f"{path} holds no sample; measure the margins again.")
    return table


def measured_on(margins: Path) -> str:
    """Return the fingerprint of the pool that margins were measured on."""
    with reading(str(margins)):
        return str(read_footer(margins)["pool_fingerprint"])
