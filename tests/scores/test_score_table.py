from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from puma.errors import PumaError
from puma.files import Link
from puma.scores.score_table import Scores, open_named_scores, open_scores, save_scores

IDS = np.arange(5)


def table(kind: str = "margin") -> Scores:
    return Scores(kind, IDS, np.linspace(-1, 1, 5, dtype=np.float32), "abc")


def test_round_trip_and_choice_of_column(tmp_path: Path) -> None:
    path = table().save(tmp_path / "deep" / "m.parquet")
    again = open_scores(path)
    assert (again.kind, again.pool_fingerprint) == ("margin", "abc")
    assert np.array_equal(again.score, table().score)
    both = save_scores([table("cd_clean"), table("cd_adversarial")], tmp_path / "cd.parquet")
    assert open_named_scores(f"{both}:cd_adversarial").kind == "cd_adversarial"
    with pytest.raises(PumaError, match=r"has several scores \(cd_clean, cd_adversarial\); name one after a colon"):
        open_named_scores(str(both))
    with pytest.raises(PumaError, match="unknown score"):
        open_named_scores(f"{both}:el2n")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["cd.parquet", "deep"]


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    with pytest.raises(PumaError, match="no scores at"):
        open_scores(path)
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(PumaError, match=r"is damaged or not a parquet file .*expected a table of scores"):
        open_scores(path)
    pq.write_table(pa.table({"sample_id": IDS, "margin": IDS * 0.1}), path)
    with pytest.raises(PumaError, match="does not say which pool it is for"):
        open_scores(path)
    pq.write_table(pa.table({"sample_id": IDS}), path)
    with pytest.raises(PumaError, match="has no score: expected sample_id and one of margin"):
        open_scores(path)
    footer = {b"puma": b'{"pool_fingerprint": "abc"}'}
    columns = {"sample_id": pa.array(IDS), "margin": pa.array([0.1, None, 0.2, 0.3, 0.4])}
    pq.write_table(pa.table(columns).replace_schema_metadata(footer), path)
    with pytest.raises(PumaError, match="1 values of margin are missing"):
        open_scores(path)
    with pytest.raises(PumaError, match="unknown score 'margn'; did you mean 'margin'"):
        table("margn")


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    path = table().save(tmp_path / "m.parquet")
    whole = path.read_bytes()
    for position in range(4, len(whole) - 8):  # between the magic bytes
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
        try:
            found = open_scores(path)
        except PumaError:
            continue
        assert np.array_equal(found.sample_id, IDS)
        assert np.array_equal(found.score, table().score)


def test_links_survive_the_disk_and_old_files_have_none(tmp_path: Path) -> None:
    links = (Link("pool", "pool", "abc", "digits/train"), Link("model", "model", "def"))
    scores = Scores("el2n", IDS, np.zeros(5, dtype=np.float32), "abc", links=links)
    found = open_scores(scores.save(tmp_path / "s.parquet"))
    assert found.links == links
    assert found.file is not None
    assert (found.file.kind, len(found.file.hash)) == ("scores", 64)
    old = pa.table({"sample_id": IDS, "el2n": IDS * 0.1})
    pq.write_table(old.replace_schema_metadata({b"puma": b'{"pool_fingerprint": "abc"}'}), tmp_path / "old.parquet")
    assert open_scores(tmp_path / "old.parquet").links is None
