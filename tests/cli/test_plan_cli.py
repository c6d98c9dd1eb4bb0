from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import MakePool, Run
from puma.cli.flags import parse_number, parse_whole_number
from puma.errors import PumaError
from puma.planning import Plan
from puma.pools import Pool
from puma.scores import Scores


@pytest.fixture
def folder(make_pool: MakePool, tmp_path: Path) -> Path:
    pool = make_pool(count=80)
    margin = np.random.default_rng(0).normal(0.05, 0.1, size=80).astype(np.float32)
    Scores("margin", pool.sample_id, margin, pool.fingerprint).save(tmp_path / "margins.parquet")
    return tmp_path


def test_plan_show_diff_export(folder: Path, puma: Run) -> None:
    pool, margins = str(folder / "pool"), str(folder / "margins.parquet")
    one, two = str(folder / "one.parquet"), str(folder / "two.parquet")
    command = ["plan", pool, "--margins", margins, "--prune-easy", "1/5", "--eps", "8/255", "--out", one]
    code, said, _ = puma(*command, "--dry-run")
    assert code == 0
    assert "64 kept (80.0%), 16 pruned" in said
    assert not Path(one).exists()
    assert puma(*command)[0] == 0
    assert float(Plan.open(one).strength.abs().max()) == pytest.approx(8 / 255)
    code, _, err = puma(*command)
    assert (code, "give --force" in err) == (2, True)
    assert puma("plan", pool, "--prune-random", "0.2", "--strength", "constant", "--out", two)[0] == 0
    code, said, _ = puma("plan", "diff", one, two)
    assert code == 0
    assert "pruning.random: 0.0 | 0.2" in said
    code, said, _ = puma("plan", "show", one, pool)
    assert code == 0
    assert "class3" in said
    with Image.open(folder / "one.png") as picture:
        assert picture.size[0] > 1000
    for name in ("plan.csv", "kept.npy"):
        assert puma("plan", "export", one, str(folder / name))[0] == 0
    assert (folder / "plan.csv").read_text().count("\n") == 81
    assert np.array_equal(np.load(folder / "kept.npy"), Plan.open(one).keep.nonzero().squeeze(1).numpy())
    code, _, err = puma("plan", "export", one, str(folder / "plan.xlsx"))
    assert (code, ".csv or .npy" in err) == (2, True)


def test_a_lopsided_plan_warns(folder: Path, puma: Run) -> None:
    pool = Pool.open(folder / "pool")
    margin = np.where(pool.labels == 2, 1.0, 0.0).astype(np.float32)
    Scores("margin", pool.sample_id, margin, pool.fingerprint).save(folder / "lopsided.parquet")
    command = [
        "plan",
        str(folder / "pool"),
        "--margins",
        str(folder / "lopsided.parquet"),
        "--out",
        str(folder / "p.parquet"),
    ]
    code, _, err = puma(*command, "--prune-easy", "0.25")
    assert code == 0
    assert "warning: no sample of class2 is kept" in err
    code, _, err = puma(*command, "--prune-easy", "0.2", "--force")
    assert "warning: class balance changes: class2 25.0% -> 6.2%" in err


def test_pruning_that_begins_near_eps_warns(folder: Path, puma: Run) -> None:
    command = ["plan", str(folder / "pool"), "--margins", str(folder / "margins.parquet"), "--prune-easy", "0.2"]
    command += ["--out", str(folder / "near.parquet"), "--force"]
    code, _, err = puma(*command, "--eps", "0.1")
    assert code == 0
    assert "the easy samples that go begin at a margin of 0.1" in err
    assert "give --prune-beyond 3" in err
    assert "begin at a margin" not in puma(*command, "--eps", "0.02")[2]
    code, said, err = puma(*command, "--eps", "0.1", "--prune-beyond", "3", "--floor", "1/2")
    assert (code, "begin at a margin" in err) == (0, False)
    assert "strength.floor: 0.5" in said
    plan = Plan.open(folder / "near.parquet")
    assert float(plan.strength.min()) == pytest.approx(0.05)
    assert int((~plan.keep).sum()) < 16
    code, _, err = puma(*command, "--floor", "-2")
    assert (code, "floor must lie in [-1, 1], in multiples of eps, got -2.0" in err) == (2, True)
    code, said, _ = puma(*command, "--prune-easy", "0", "--prune-difficult", "0.1", "--prune-stratified", "0.2")
    assert (code, "56 kept" in said) == (0, True)


def test_numbers_as_people_type_them() -> None:
    assert parse_number("8/255") == 8 / 255
    assert parse_number("0.03") == 0.03
    assert [parse_whole_number(text) for text in ("7", "1e6", "1_000", "-3")] == [7, 1_000_000, 1000, -3]
    for text in ("1.5", "x", "inf", "nan", "1e400"):
        with pytest.raises(PumaError, match="expected a whole number"):
            parse_whole_number(text)
    for text in ("eight", "1/0", "1/2/3"):
        with pytest.raises(PumaError, match="expected a number such as"):
            parse_number(text)


def test_a_number_that_is_none_is_one_sentence(folder: Path, puma: Run) -> None:
    code, _, err = puma("plan", str(folder / "pool"), "--eps", "eight", "--out", str(folder / "p.parquet"))
    assert code == 2
    assert "expected a number such as 0.03 or 8/255, got 'eight'" in " ".join(err.split())
