"""No command ever replaces a file of another kind, and what is read is never written."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import Run
from puma import make_plan, measure_pool
from puma.cli.flags import check_output
from puma.errors import PumaError
from puma.models import build
from puma.pools import Pool
from puma.scores import Scores

WORK = "years of work"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one result of every kind."""
    folder = tmp_path_factory.mktemp("made")
    rng = np.random.default_rng(0)
    pool = Pool.from_tensors(rng.random((40, 8, 8, 1)), np.arange(40) % 4)
    pool.save(folder / "pool")
    torch.manual_seed(0)
    model = build("small-8px", 4)
    torch.save(model.state_dict(), folder / "net.pt")
    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
    margins = measure_pool(linear, pool, out=folder / "margins.parquet")
    make_plan(pool, margins, prune_easy=0.2).save(folder / "plan.parquet")
    Scores("el2n", pool.sample_id, rng.random(40).astype(np.float32), pool.fingerprint).save(folder / "scores.parquet")
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, as the current folder, with somebody's own files beside."""
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    Path("other.json").write_text(f'{{"own": "{WORK}"}}', encoding="utf-8")
    Path("tree.csv").write_text("wnid,parent,name\nn1,,one\n", encoding="utf-8")
    Path("kept.csv").write_text("sample_id,keep,strength\n0,1,0.1\n", encoding="utf-8")
    shutil.copy("margins.parquet", "more.parquet")
    for name in ("thesis.txt", "own.png", "own.json", "own.csv", "own.npy", "own.npz", "own.parquet", "own.html"):
        Path(name).write_text(WORK, encoding="utf-8")
    return tmp_path / "here"


PLAN = ["plan", "pool", "--prune-random", "0.1"]
EL2N = ["scores", "el2n", "pool", "--runs", "nets", "--nets", "1", "--samples-seen", "64"]
EVALUATE = ["evaluate", "small-8px", "pool", "--weights", "net.pt", "--eps", "0.1", "--masking-samples", "0"]


@pytest.mark.parametrize(
    "words",
    [
        [*PLAN, "--out", "margins.parquet", "--force"],
        [*PLAN, "--out", "scores.parquet", "--force"],
        [*PLAN, "--out", "own.parquet", "--force"],
        ["plan", "pool", "--margins", "margins.parquet", "--out", "margins.parquet", "--force"],
        ["plan", "pool", "--score", "scores.parquet:el2n", "--out", "scores.parquet", "--force"],
        ["plan", "show", "plan.parquet", "--picture", "plan.parquet"],
        ["plan", "show", "plan.parquet", "--picture", "own.png"],
        ["plan", "export", "plan.parquet", "plan.parquet", "--to", "csv", "--force"],
        ["plan", "export", "plan.parquet", "own.csv", "--force"],
        ["plan", "export", "plan.parquet", "own.npy", "--force"],
        ["plan", "export", "plan.parquet", "margins.parquet", "--to", "npy", "--force"],
        [*EL2N, "--out", "margins.parquet", "--force"],
        [*EL2N, "--out", "plan.parquet", "--force"],
        [*EL2N, "--out", "own.parquet", "--force"],
        ["margins", "pool", "--model", "small-8px", "--weights", "net.pt", "--out", "plan.parquet"],
        ["margins", "pool", "--model", "small-8px", "--weights", "net.pt", "--out", "own.parquet", "--no-resume"],
        ["margins", "show", "margins.parquet", "--picture", "own.png"],
        ["margins", "show", "margins.parquet", "--histogram", "margins.parquet"],
        ["margins", "show", "margins.parquet", "--histogram", "own.json"],
        ["margins", "show", "margins.parquet", "--histogram", "other.json"],
        ["margins", "compare", "margins.parquet", "more.parquet", "--table", "other.json"],
        ["margins", "compare", "margins.parquet", "more.parquet", "--picture", "own.png"],
        ["margins", "compare", "margins.parquet", "more.parquet", "--picture", "a.png", "--heat-map", "a.png"],
        ["margins", "export", "margins.parquet", "--pool", "pool", "--out", "kept.csv"],
        ["margins", "export", "margins.parquet", "--pool", "pool", "--out", "s.csv", "--pictures", "pool"],
        ["plan", "export", "plan.parquet", "tree.csv", "--force"],
        ["plan", "export", "plan.parquet", "pool", "--to", "parquet", "--pool", "pool", "--force"],
        ["data", "superclasses", "--classes", "2", "--tree", "tree.csv", "--source", "images", "--out", "tree.csv"],
        ["data", "superclasses", "--classes", "5", "--out", "kept.csv"],
        ["iterate", "pool", "--out", "pool", "--recipe", "small-digits"],
        ["iterate", "pool", "--out", "thesis.txt", "--recipe", "small-digits"],
        ["scores", "el2n", "pool", "--runs", "pool", "--nets", "1", "--out", "new.parquet"],
        ["data", "subset", "pool", "--first", "3", "--out", "pool", "--force"],
        ["data", "filter", "pool", "--margins", "margins.parquet", "--band", "0", "9", "--eps", "0.1", "--out", "pool"],
        ["margins", "export", "margins.parquet", "--pool", "pool", "--out", "own.csv"],
        ["data", "show", "pool", "--picture", "own.png"],
        ["data", "import", "digits", "--out", ".", "--force"],
        ["data", "import", "digits", "--out", "thesis.txt", "--force"],
        ["curves", "pool", "--out", "own.png"],
        ["report", ".", "--out", "own.html"],
        ["perceptron", "--out", "thesis.txt", "--figures", "eps0.01"],
        [*EVALUATE, "--out", "."],
        [*EVALUATE, "--out", "pool"],
        [*EVALUATE, "--out", "thesis.txt"],
        ["completion", "bash", "--out", "thesis.txt"],
    ],
)
def test_nothing_of_another_kind_is_replaced(words: list[str], place: Path, puma: Run) -> None:
    def read_all() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}

    before = read_all()
    code, _, err = puma(*words)
    assert code == 2, err
    assert len(err.strip().splitlines()) == 1
    assert {name: text for name, text in read_all().items() if name in before} == before


def test_a_run_is_no_place_for_a_study(place: Path, puma: Run) -> None:
    Path("run").mkdir()
    Path("run/config.json").write_text('{"format": "puma-run-1"}', encoding="utf-8")
    code, _, err = puma("perceptron", "--out", "run", "--figures", "eps0.01")
    assert (code, "holds config.json of something else than a study" in err) == (2, True)
    assert [path.name for path in Path("run").iterdir()] == ["config.json"]


def test_the_same_kind_is_replaced_when_it_is_asked_for(place: Path, puma: Run) -> None:
    assert puma(*PLAN, "--out", "plan.parquet")[0] == 2
    assert puma(*PLAN, "--out", "plan.parquet", "--force")[0] == 0
    for name in ("plan.csv", "plan.npy"):
        assert puma("plan", "export", "plan.parquet", name)[0] == 0
        assert "give --force" in puma("plan", "export", "plan.parquet", name)[2]
        assert puma("plan", "export", "plan.parquet", name, "--force")[0] == 0
    for _ in range(2):
        assert puma("plan", "show", "plan.parquet")[0] == 0
        assert puma("margins", "show", "margins.parquet", "--histogram", "h.json")[0] == 0
        assert puma("margins", "compare", "margins.parquet", "more.parquet", "--table", "t.json")[0] == 0
        assert puma("data", "superclasses", "--classes", "5", "--out", "classes.csv")[0] == 0
        assert puma("margins", "export", "margins.parquet", "--pool", "pool", "--out", "s.csv", "--lowest", "5")[0] == 0
        assert puma("data", "show", "pool")[0] == 0
    assert Path("pool.png").is_file()
    assert not list(Path("pool").glob("*.png"))  # looking at a pool leaves it as it is


def test_links_pipes_and_empty_files(tmp_path: Path) -> None:
    out = tmp_path / "x.png"
    out.symlink_to(tmp_path / "nowhere")
    with pytest.raises(PumaError, match="another kind"):
        check_output("--out", out, ".png")
    out.unlink()
    out.touch()
    check_output("--out", out, ".png")
    with pytest.raises(PumaError, match="is what is read"):
        check_output("--out", out, ".png", inputs=[tmp_path / "." / "x.png"])
    with pytest.raises(PumaError, match="exists already"):
        check_output("--out", out, ".png", force=False)
    with pytest.raises(PumaError, match=r"must end in \.png, got 'x\.csv'"):
        check_output("--out", tmp_path / "x.csv", ".png")
