"""The type and its file: saved and read back the same, old files read, other files left alone."""

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import puma
from conftest import MakePool
from margins.problems import net_images, smooth_net
from puma.errors import PumaError
from puma.margins import Margins, Status, measure_margins, measure_pool, read_margins
from puma.pools import Pool

COLUMNS = ("sample_id", "margin", "status", "label", "prediction", "rival", "forwards", "backwards")


def same(one: Margins, two: Margins) -> bool:
    pairs = [(getattr(one, name), getattr(two, name)) for name in COLUMNS]
    return all(torch.equal(first, second) and first.dtype == second.dtype for first, second in pairs)


@pytest.fixture
def pool(make_pool: MakePool) -> Pool:
    return make_pool(count=70, shape=(8, 8, 3), num_classes=5)


@pytest.fixture
def found() -> Margins:
    return measure_margins(smooth_net(), net_images(40), torch.arange(40) % 5)


def test_saved_and_read_back_the_same(found: Margins, tmp_path: Path) -> None:
    again = puma.read_margins(found.save(tmp_path / "m.parquet"))
    assert same(found, again)
    assert dict(again.made_from) == dict(found.made_from)
    assert found.label.tolist() == [index % 5 for index in range(40)]
    found.save(tmp_path / "m.parquet")  # a second time is no trouble


def test_saving_never_replaces_a_file_of_another_kind(found: Margins, tmp_path: Path) -> None:
    other = tmp_path / "thesis.txt"
    other.write_text("years of work")
    with pytest.raises(PumaError, match="not a parquet file"):
        found.save(other)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(PumaError, match="not a margins file"):
        found.save(tmp_path / "other.parquet")
    assert other.read_text() == "years of work"


def test_one_line_says_what_they_are(found: Margins) -> None:
    assert repr(found).startswith("Margins(40 samples, deepfool, linf: 100.0% crossed, ")
    assert "\n" not in repr(found)
    assert repr(measure_margins(smooth_net(), net_images(0), [])) == "Margins(0 samples, deepfool, linf)"


def test_files_of_older_versions_are_read(found: Margins, tmp_path: Path) -> None:
    path = found.save(tmp_path / "m.parquet")
    table = pq.read_table(path).select(["sample_id", "margin", "status", "prediction", "rival"])
    footer = {"format": "puma-margins-1", "norm": "linf", "method": "deepfool", "pool_fingerprint": "abc"}
    pq.write_table(table.replace_schema_metadata({"puma": json.dumps(footer)}), tmp_path / "old.parquet")
    old = read_margins(tmp_path / "old.parquet")
    assert torch.equal(old.margin, found.margin)
    assert (old.label == -1).all()
    assert (old.forwards == -1).all()
    assert old.links is None


def test_links_name_the_pool_and_the_model(pool: Pool, tmp_path: Path) -> None:
    measured = measure_pool(smooth_net(), pool, tmp_path / "m.parquet", model_path="nets/mine")
    assert measured.links is not None
    by_role = {link.role: link for link in measured.links}
    assert by_role["pool"].hash == pool.fingerprint
    assert by_role["pool"].path == str(pool.stores[0].path)
    assert by_role["model"].hash == measured.made_from["model"]
    assert by_role["model"].path == "nets/mine"


def test_a_pool_in_memory_gives_the_bits_of_the_file_and_a_second_call_finds_it(pool: Pool, tmp_path: Path) -> None:
    model, out = smooth_net(), tmp_path / "m.parquet"
    memory = measure_pool(model, pool, part_size=32, batch_size=16)
    for _ in range(2):
        assert same(memory, measure_pool(model, pool, out, part_size=32, batch_size=16))
    assert torch.equal(memory.label, torch.from_numpy(pool.labels))
    assert same(measure_pool(model, str(pool.stores[0].path), part_size=32, batch_size=16), memory)


def test_numpy_and_lists_are_taken_and_other_kinds_get_one_sentence(pool: Pool, found: Margins) -> None:
    model, images = smooth_net(), net_images(40)
    assert same(measure_margins(model, images.numpy(), np.arange(40, dtype=np.int32) % 5), found)
    assert same(measure_margins(model, images, [index % 5 for index in range(40)]), found)
    with pytest.raises(PumaError, match=r"model must be a torch.nn.Module, got str; puma.load_model gives one"):
        measure_margins("resnet18", images, [0] * 40)  # type: ignore[arg-type]
    with pytest.raises(PumaError, match=r"images must be a tensor or numpy array .* got Pool"):
        measure_margins(model, pool, [0] * 40)
    with pytest.raises(PumaError, match=r"pool must be a puma.Pool or the folder of one, got Tensor; .*from_tensors"):
        measure_pool(model, images)  # type: ignore[arg-type]


def test_to_pandas(found: Margins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(PumaError, match=r"to_pandas needs pandas, which is not installed: pip install pandas"):
        found.to_pandas()
    monkeypatch.undo()
    pytest.importorskip("pandas")
    frame = found.to_pandas()
    assert list(frame.columns) == list(COLUMNS)
    assert frame["margin"].tolist() == found.margin.tolist()
    assert set(frame["status"]) == {Status.CROSSED.name}


def test_statuses_survive_the_file(tmp_path: Path) -> None:
    class Flat(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return torch.tensor([2.0, 0.0]) + 0.0 * images.flatten(1).sum(1, keepdim=True)

    stuck = measure_margins(Flat(), net_images(3), [0, 1, 0])
    again = read_margins(stuck.save(tmp_path / "m.parquet"))
    assert (again.status == Status.ZERO_GRADIENT).all()
    assert again.margin.isnan().all()


def test_no_flipped_bit_changes_a_value_unnoticed(found: Margins, tmp_path: Path) -> None:
    path = found.save(tmp_path / "m.parquet")
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        try:
            again = read_margins(path)
        except PumaError:
            refused += 1
        else:
            assert same(again, found), place
    assert refused > 50


@pytest.mark.parametrize(
    ("footer", "sentence"),
    [
        ("{", "must be JSON"),
        ("[1]", "must be a JSON object, got list"),
        ("[" * 200_000, "must be JSON"),
        ("{}", "not a margins file"),
        ('{"format": ["puma-margins-1"]}', "not a margins file"),
        ('{"format": "puma-margins-1"}', "does not tell method and norm"),
        ('{"format": "puma-margins-1", "method": 3, "norm": "linf"}', "does not tell method and norm"),
        ('{"format": "puma-margins-1", "method": "deepfool", "norm": "l3"}', "does not tell method and norm"),
    ],
)
def test_a_damaged_footer_is_one_sentence(found: Margins, tmp_path: Path, footer: str, sentence: str) -> None:
    table = pq.read_table(found.save(tmp_path / "m.parquet"))
    pq.write_table(table.replace_schema_metadata({"puma": footer}), tmp_path / "bad.parquet")
    with pytest.raises(PumaError, match=sentence):
        read_margins(tmp_path / "bad.parquet")


def test_damaged_columns_are_one_sentence(found: Margins, tmp_path: Path) -> None:
    path = found.save(tmp_path / "m.parquet")
    table = pq.read_table(path)
    changes = {
        "more than once": table.set_column(0, "sample_id", pa.array([3] * 40)),
        "status must be 0..6": table.set_column(2, "status", pa.array([9] * 40, pa.int8())),
        "columns are not those that its footer tells": table.drop_columns(["margin"]),
        "margin must be float": table.set_column(1, "margin", pa.array(["a"] * 40)),
        "values of rival are missing": table.set_column(5, "rival", pa.array([None] * 40, pa.int32())),
    }
    for sentence, changed in changes.items():
        pq.write_table(changed, path)
        with pytest.raises(PumaError, match=sentence):
            read_margins(path)


def test_margins_that_do_not_tell_how_they_were_measured_are_not_saved(found: Margins, tmp_path: Path) -> None:
    columns = {name: getattr(found, name) for name in COLUMNS}
    with pytest.raises(PumaError, match="made_from must tell method and norm"):
        Margins(**columns).save(tmp_path / "m.parquet")
    assert not (tmp_path / "m.parquet").exists()
