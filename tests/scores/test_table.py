from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from puma.errors import PumaError
from puma.scores.table import Scores, open_named, open_scores, save_scores

IDS = np.arange(5)


def table(kind: str = "margin") -> Scores:
    return Scores(kind, IDS, np.linspace(-1, 1, 5, dtype=np.float32), "abc")


def test_round_trip_and_choice_of_column(tmp_path: Path) -> None:
    path = table().save(tmp_path / "deep" / "m.parquet")
    again = open_scores(path)
    assert (again.kind, again.pool_fingerprint) == ("margin", "abc")
    assert np.array_equal(again.score, table().score)
    both = save_scores([table("cd_clean"), table("cd_adversarial")], tmp_path / "cd.parquet")
    assert open_named(f"{both}:cd_adversarial").kind == "cd_adversarial"
    with pytest.raises(PumaError, match=r"has several scores \(cd_clean, cd_adversarial\); name one after a colon"):
        open_named(str(both))
    with pytest.raises(PumaError, match="unknown score"):
        open_named(f"{both}:el2n")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["cd.parquet", "deep"]


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    with pytest.raises(PumaError, match="no scores at"):
        open_scores(path)
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(PumaError, match="is not a whole parquet table"):
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
