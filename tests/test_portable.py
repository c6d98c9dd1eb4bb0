import subprocess
import sys
from pathlib import Path

import pytest

import puma
from puma.errors import PumaError, tell_missing

SOURCE = Path(puma.__file__).parent
REFUSE = """
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

EXTRAS = "scipy sklearn matplotlib PIL rich tyro pandas threadpoolctl pyautoattack".split()
sys.meta_path.insert(0, Refusing())
"""
USE = """
import torch, puma

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
images, labels = torch.rand(12, 1, 4, 4), torch.arange(12) % 3
margins = puma.measure_margins(model, images, labels, progress=True)
keep = puma.prune(margins.margin, 0.25)
loss = puma.trades_loss(model, images[keep], labels[keep], 8 / 255)
print(int(keep.sum()), bool(torch.isfinite(torch.as_tensor(loss)).all()))
"""
NOT_UNIX = """
import signal, sys
import numpy, pyarrow.parquet, safetensors.torch, torch, torch.distributed

sys.modules["fcntl"] = sys.modules["resource"] = None
del signal.SIGUSR1
import puma
"""


def list_modules(*without: str) -> list[str]:
    paths = sorted(path.relative_to(SOURCE.parent).with_suffix("") for path in SOURCE.rglob("*.py"))
    kept = [path for path in paths if path.parts[1] not in without and path.name != "__main__"]
    return [".".join(path.parts).removesuffix(".__init__") for path in kept]


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_without_the_extras_margins_are_measured_and_used() -> None:
    done = run_python(REFUSE + USE)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "9 True\n"
    assert "12/12 samples" in done.stderr  # plain lines of progress


def test_only_studies_and_the_command_line_need_extras_at_import() -> None:
    modules = list_modules("perceptron", "experiments", "cli")
    assert len(modules) > 50
    done = run_python(f"{REFUSE}\nimport importlib\nfor name in {modules}: importlib.import_module(name)")
    assert done.returncode == 0, done.stderr


def test_nothing_of_unix_is_needed_at_import() -> None:
    modules = list_modules("perceptron", "cli", "report", "experiments")
    done = run_python(f"{NOT_UNIX}\nimport importlib\nfor name in {modules}: importlib.import_module(name)")
    assert done.returncode == 0, done.stderr


def test_the_perceptron_tells_what_it_needs() -> None:
    done = run_python(f"{REFUSE}\nimport puma.perceptron")
    assert "this needs scipy; install it with: pip install 'puma-pruning[perceptron]'." in done.stderr


def test_the_command_without_tyro_says_how_to_install_it() -> None:
    done = run_python(f"{REFUSE}\nfrom puma.cli import main\nmain(['margins', '--help'])")
    assert done.returncode == 2
    assert done.stderr == "puma: this needs tyro; install it with: pip install 'puma-pruning[cli]'.\n"


@pytest.mark.parametrize(
    ("name", "package"), [("matplotlib.figure", "matplotlib"), ("PIL", "pillow"), ("sklearn.datasets", "scikit-learn")]
)
def test_a_missing_package_is_told_by_name(name: str, package: str) -> None:
    sentence = rf"^this needs {package}; install it with: pip install 'puma-pruning\[report\]'\.$"
    with pytest.raises(PumaError, match=sentence), tell_missing("report"):
        raise ModuleNotFoundError(name=name)


def test_a_missing_matplotlib_is_told_by_the_drawer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from puma.evaluation.masking import draw_curve

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(
        PumaError, match=r"this needs matplotlib; install it with: pip install 'puma-pruning\[report\]'"
    ):
        draw_curve({}, 0.1, tmp_path / "curve.png")


def test_a_fault_of_our_own_is_no_missing_package() -> None:
    with pytest.raises(ModuleNotFoundError), tell_missing("report"):
        raise ModuleNotFoundError(name="puma.nothing")
