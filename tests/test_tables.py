"""Tables: checksums written and verified, whatever the name of the file."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from puma.errors import PumaError
from puma.tables import read_columns, read_head, write_table

COLUMNS: dict[str, pa.DataType] = {"sample_id": pa.int64(), "score": pa.float32()}
SCHEMA = pa.schema(list(COLUMNS.items()))


def make_table(rows: int) -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table({"sample_id": np.arange(rows), "score": rng.normal(size=rows).astype("f4")}, schema=SCHEMA)


@pytest.mark.parametrize("name", [b"a.parquet", b"a:b.parquet", b"\xff.parquet", "ä.parquet".encode()])
def test_a_table_comes_back(tmp_path: Path, name: bytes) -> None:
    path = tmp_path / os.fsdecode(name)
    write_table(path, SCHEMA, [make_table(5), make_table(3)], {"kind": "test"})
    head = read_head(path, "scores")
    assert (head.columns, head.rows, head.footer) == (("sample_id", "score"), 8, {"kind": "test"})
    values = read_columns(path, COLUMNS, "scores")
    assert values["sample_id"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    np.testing.assert_array_equal(values["score"][:5], make_table(5)["score"].to_numpy())


def test_arrow_never_holds_a_python_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that a thread of Arrow frees while the interpreter ends aborts a process whose work is done."""
    given: list[object] = []

    class Reader(pq.ParquetFile):
        def __init__(self, source: Any, **options: Any) -> None:
            given.append(source)
            super().__init__(source, **options)

    class Writer(pq.ParquetWriter):
        def __init__(self, where: Any, *values: Any, **options: Any) -> None:
            given.append(where)
            super().__init__(where, *values, **options)

    monkeypatch.setattr(pq, "ParquetFile", Reader)
    monkeypatch.setattr(pq, "ParquetWriter", Writer)
    path = write_table(tmp_path / "a.parquet", SCHEMA, [make_table(5)], {})
    read_head(path, "scores")
    read_columns(path, COLUMNS, "scores")
    assert [type(file) for file in given] == [pa.OSFile] * 3


def test_every_flipped_bit_in_the_values_is_found(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.parquet", SCHEMA, [make_table(1000)], {})
    whole, bytes_ = read_columns(path, COLUMNS, "scores"), path.read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(200):
        at = int(rng.integers(len(bytes_)))
        path.write_bytes(bytes_[:at] + bytes([bytes_[at] ^ 1 << int(rng.integers(8))]) + bytes_[at + 1 :])
        try:
            found = read_columns(path, COLUMNS, "scores")
        except PumaError:
            continue
        for name, values in found.items():  # a bit that means nothing, such as one in the writer's name
            np.testing.assert_array_equal(values, whole[name])


def test_wrong_columns_types_and_missing_values_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    for table, told in (
        ({"sample_id": [1]}, "lacks score"),
        ({"sample_id": ["1"], "score": [1.0]}, "must be int64, it is string"),
        ({"sample_id": [1.5], "score": [1.0]}, "must be int64, it is double"),
        ({"sample_id": [1, None], "score": [1.0, 2.0]}, "1 values of sample_id are missing"),
    ):
        pq.write_table(pa.table(table), str(path))
        with pytest.raises(PumaError, match=told):
            read_columns(path, COLUMNS, "scores")
    path.write_bytes(b"PAR1")
    with pytest.raises(PumaError, match="damaged or not a parquet file"):
        read_head(path, "scores")


def test_a_small_file_of_a_great_many_equal_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"sample_id": pa.array(np.zeros(20_000_000, dtype=np.int64))}), path)
    assert path.stat().st_size < 100_000
    with pytest.raises(PumaError, match="20,000,000 rows in"):
        read_columns(path, {"sample_id": pa.int64()}, "scores")


def test_room_is_made_for_the_rows_that_come(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.parquet", SCHEMA, [make_table(1_500_000)] * 2, {})
    values = read_columns(path, COLUMNS, "scores")
    assert values["sample_id"].shape == (3_000_000,)
    assert np.array_equal(values["score"][1_500_000:], make_table(1_500_000)["score"].to_numpy())


def test_a_changed_footer_or_column_is_told(tmp_path: Path) -> None:
    """Page checksums cover neither the footer nor which column a page belongs to."""
    kinds: dict[str, pa.DataType] = {"one": pa.int32(), "two": pa.int32(), "name": pa.string()}
    schema = pa.schema(kinds)
    table = pa.table({"one": [1, 2, 3], "two": [4, 5, 6], "name": ["a", "b", "c"]}, schema=schema)
    path = write_table(tmp_path / "t.parquet", schema, [table, table], {"made_from": "eps 0.1"})
    assert read_head(path, "a table").rows == 6
    whole = path.read_bytes()
    with pq.ParquetFile(path) as file:
        sums = (file.metadata.metadata or {})[b"puma-sums"]
    other = schema.with_metadata({b"puma": b'{"made_from": "eps 0.2"}', b"puma-sums": sums})
    pq.write_table(pa.concat_tables([table, table]).cast(other), path)
    with pytest.raises(PumaError, match="its footer has changed since it was written"):
        read_head(path, "a table")
    columns = {"one": pa.int32(), "two": pa.int32()}
    swapped = whole.replace(b"\x03one", b"\x03owt").replace(b"\x03two", b"\x03one").replace(b"\x03owt", b"\x03two")
    path.write_bytes(swapped)
    with pytest.raises(PumaError, match="damaged"):
        read_columns(path, columns, "a table")
    path.write_bytes(whole)
    assert read_columns(path, columns, "a table")["two"].tolist() == [4, 5, 6, 4, 5, 6]
