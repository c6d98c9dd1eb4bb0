"""Which labels are doubtful, and the table that other tools read."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import MakePool, Run
from puma.errors import PumaError
from puma.margins import Margins, find_suspects, rank_quality, write_suspects
from puma.pools import Pool


def make_margins(pool: Pool, margin: list[float], prediction: list[int], norm: str = "linf", **changes: str) -> Margins:
    zeros = torch.zeros(len(pool), dtype=torch.int32)
    labels = torch.from_numpy(pool.labels.copy())
    values = torch.tensor(margin, dtype=torch.float32)
    made_from = {"method": "deepfool", "norm": norm, "pool_fingerprint": pool.fingerprint, **changes}
    ids, said = torch.from_numpy(pool.sample_id.copy()), torch.tensor(prediction)
    return Margins(values, zeros.to(torch.int8), labels, said, said, zeros, zeros, ids, made_from)


def read_rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_quality_is_the_mean_place() -> None:
    first, second = np.array([-3.0, 0.0, 1.0, 5.0]), np.array([0.5, -0.5, 2.0, 1.0])
    assert rank_quality([first]).tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert rank_quality([100 * first, second]).tolist() == pytest.approx([1 / 6, 1 / 6, 5 / 6, 5 / 6])
    ties = rank_quality([np.array([1.0, 1.0, 7.0])])
    assert ties.tolist() == pytest.approx([0.25, 0.25, 1])
    unknown = rank_quality([np.array([np.nan, 1.0, 2.0]), np.array([np.nan, 2.0, 1.0])])
    assert np.isnan(unknown[0])
    assert unknown[1:].tolist() == pytest.approx([0.5, 0.5])
    assert rank_quality([np.array([-np.inf, 0.0, np.inf])]).tolist() == pytest.approx([0, 0.5, 1])


def test_the_lowest_come_first_with_what_most_nets_say(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool("pool", count=8)
    labels = pool.labels.tolist()
    other = [(label + 1) % 4 for label in labels]
    one = make_margins(pool, [-0.1 * (8 - row) for row in range(8)], other)
    two = make_margins(pool, [0.1, *[0.2 * row for row in range(1, 8)]], labels)
    three = make_margins(pool, [-1.0, *[1.0 + row for row in range(1, 8)]], [other[0], *labels[1:]])
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    columns = ("margin", "status", "label", "prediction", "rival", "forwards", "backwards", "sample_id")
    mixed = replace(three, **{name: getattr(three, name)[order] for name in columns})
    found = find_suspects([one, two, mixed], pool, lowest=3)
    assert (len(found), found.nets, found.sample_id[0]) == (3, 3, 0)
    assert found.against.tolist() == [2, 1, 1]
    assert found.prediction.tolist() == [other[0], *labels[1:3]]
    assert found.margin[0] == pytest.approx(-0.8)
    assert len(find_suspects([one], pool)) == 8
    out = write_suspects(tmp_path / "s.csv", found, pool)
    rows = read_rows(out)
    assert rows[0] == {
        "filepath": "", "sample_id": "0", "given_label": str(labels[0]), "predicted_label": str(other[0]),
        "given_name": f"class{labels[0]}", "predicted_name": f"class{other[0]}", "label_quality": "0.000000",
        "is_label_issue": "True", "margin": "-0.8", "nets_against": "2", "nets": "3",
    }  # fmt: skip
    assert [row["is_label_issue"] for row in rows] == ["True", "False", "False"]


def test_pictures_and_paths(make_pool: MakePool, tmp_path: Path, puma: Run) -> None:
    from PIL import Image

    pool = make_pool("pool", count=8)
    found = find_suspects([make_margins(pool, [0.1] * 8, [0] * 8)], pool, lowest=2)
    rows = list(
        csv.DictReader(write_suspects(tmp_path / "s.csv", found, pool, tmp_path / "png").read_text().splitlines())
    )
    for row, position in zip(rows, found.position, strict=True):
        with Image.open(row["filepath"]) as picture:
            assert np.array_equal(np.asarray(picture), pool.batch([position]).images[0].permute(1, 2, 0).numpy())
    for name in ("ant", "bee"):
        (tmp_path / "animals" / name).mkdir(parents=True)
        for index in range(4):
            Image.new("RGB", (8, 8), (index * 9, 0, 0)).save(tmp_path / "animals" / name / f"{index}.png")
    code, _, err = puma("data", "import", "folder", str(tmp_path / "animals"), "--out", str(tmp_path / "files"),
                        "--size", "8", "--keep-files")  # fmt: skip
    assert code == 0, err
    files = Pool.open(tmp_path / "files")
    found = find_suspects([make_margins(files, list(np.arange(8) / 10), [0] * 8)], files)
    rows = list(
        csv.DictReader(write_suspects(tmp_path / "f.csv", found, files, tmp_path / "none").read_text().splitlines())
    )
    assert rows[0]["filepath"] == str(tmp_path / "animals" / "ant" / "0.png")
    assert {Path(row["filepath"]).parent.name for row in rows} == {"ant", "bee"}


def test_bad_input_is_one_sentence(make_pool: MakePool, tmp_path: Path, puma: Run) -> None:
    pool, other = make_pool("pool", count=8), make_pool("other", count=8, seed=1)
    table = make_margins(pool, [0.1] * 8, [0] * 8)
    path = table.save(tmp_path / "m.parquet")
    with pytest.raises(PumaError, match="different norms cannot be ranked together: l2, linf"):
        find_suspects([table, make_margins(pool, [0.1] * 8, [0] * 8, norm="l2")], pool)
    with pytest.raises(PumaError, match="of another pool"):
        find_suspects([table], other)
    part = pool.subset(np.arange(4))
    whole = make_margins(pool, [0.1] * 8, [0] * 8, pool_fingerprint=part.fingerprint)
    with pytest.raises(PumaError, match="the margins are of 8 samples, the pool has 4; measure the whole pool"):
        find_suspects([whole], part)
    mine = tmp_path / "mine.csv"
    mine.write_text("my,own,table\n")
    base = ["margins", "export", str(path), "--pool", str(tmp_path / "pool")]
    for words, sentence in {
        ("--out", str(mine)): "is a file of another kind",
        ("--out", str(tmp_path / "a.parquet")): "--out must end in .csv, got 'a.parquet'",
        ("--lowest", "-1", "--out", str(tmp_path / "a.csv")): "--lowest must be 0 (all) or more, got -1",
        ("--pictures", str(mine), "--out", str(tmp_path / "a.csv")): "is a file; name a folder",
    }.items():
        code, _, err = puma(*base, *words)
        assert (code, sentence in err, err.count("\n")) == (2, True, 1), err
    assert mine.read_text() == "my,own,table\n"
    code, said, _ = puma(*base, "--lowest", "3", "--out", str(tmp_path / "a.csv"))
    assert (code, "3 of 8 samples" in said, "one net mostly finds" in said) == (0, True, True)
    assert puma(*base, "--out", str(tmp_path / "a.csv"))[0] == 0  # its own kind is replaced


def test_cleanlab_reads_the_table(make_pool: MakePool, tmp_path: Path) -> None:
    """cleanlab trains without what a table of label issues marks; the table must come in the order of the samples."""
    pytest.importorskip("cleanlab", reason="needs cleanlab: pip install -c constraints.txt cleanlab")
    import pandas  # type: ignore[import-untyped,unused-ignore]
    from cleanlab.classification import CleanLearning  # type: ignore[import-not-found,unused-ignore]
    from sklearn.linear_model import LogisticRegression

    pool = make_pool("pool", count=40)
    labels = pool.labels.tolist()
    wrong = [(label + 1) % 4 if row < 5 else label for row, label in enumerate(labels)]
    found = find_suspects([make_margins(pool, [row - 5.0 for row in range(40)], wrong)], pool)
    table = pandas.read_csv(write_suspects(tmp_path / "s.csv", found, pool)).sort_values("sample_id")
    assert table.is_label_issue.sum() == 5
    learner = CleanLearning(LogisticRegression())
    learner.fit(np.random.default_rng(0).normal(size=(40, 3)), np.array(labels), label_issues=table)
    assert learner.get_label_issues().is_label_issue.sum() == 5
