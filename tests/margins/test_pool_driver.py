"""The driver: parts, resume, refusal, ranks."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from conftest import MakePool
from margins.problems import smooth_net
from puma.errors import PumaError
from puma.margins import Margins, Status, margins_file, measure_margins, measure_pool, pool_driver, read_margins
from puma.margins.pool_driver import PartFiles
from puma.pools import Pool, to_unit

COLUMNS = ("sample_id", "margin", "status", "label", "prediction", "rival", "forwards", "backwards")
SHAPE = (8, 8, 3)


def same(one: Margins, two: Margins) -> bool:
    return all(torch.equal(getattr(one, name), getattr(two, name)) for name in COLUMNS)


@pytest.fixture
def pool(make_pool: MakePool) -> Pool:
    return make_pool(count=150, shape=SHAPE, num_classes=5)


def test_the_file_holds_every_sample_with_its_margin(pool: Pool, tmp_path: Path) -> None:
    model = smooth_net()
    out = tmp_path / "m.parquet"
    found = measure_pool(model, pool, out, batch_size=16, part_size=40)
    assert same(found, read_margins(out))
    batch = pool.batch(np.arange(len(pool)))
    direct = measure_margins(model, to_unit(batch.images), batch.labels)
    assert found.sample_id.tolist() == list(range(150))
    assert torch.equal(found.status, direct.status)
    assert torch.equal(found.prediction, direct.prediction)
    assert torch.equal(found.label, torch.from_numpy(pool.labels))
    torch.testing.assert_close(found.margin, direct.margin, rtol=2e-3, atol=1e-6)
    assert found.made_from["pool"] == pool.fingerprint
    assert found.made_from["norm"] == "linf"
    assert set(found.made_from["versions"]) == {"puma", "torch"}
    assert not (tmp_path / "m.parquet.parts").exists()
    assert pq.read_table(out).column_names == list(COLUMNS)


def test_ids_of_a_subset_stay(pool: Pool, tmp_path: Path) -> None:
    keep = np.arange(len(pool)) % 3 == 0
    found = measure_pool(smooth_net(), pool.subset(keep), tmp_path / "m.parquet")
    assert found.sample_id.tolist() == np.flatnonzero(keep).tolist()


def interrupt_after(monkeypatch: pytest.MonkeyPatch, count: int) -> list[Path]:
    """Make the writing of part files stop with an error after ``count`` of them."""
    written: list[Path] = []
    whole = margins_file.write_margins

    def write(path: Path, *rest: object) -> None:
        if len(written) == count:
            raise KeyboardInterrupt
        whole(path, *rest)  # type: ignore[arg-type]
        if path.name.startswith("part-"):
            written.append(path)

    monkeypatch.setattr("puma.margins.pool_driver.write_margins", write)
    return written


def test_resume_measures_only_what_is_missing_and_gives_the_same_bits(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = smooth_net(), tmp_path / "m.parquet"
    undisturbed = measure_pool(model, pool, tmp_path / "u.parquet", batch_size=16, part_size=40)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            measure_pool(model, pool, out, batch_size=16, part_size=40)
    assert not out.exists()
    first = (tmp_path / "m.parquet.parts" / "part-000000.parquet").stat().st_mtime_ns
    with monkeypatch.context() as patch:
        written = interrupt_after(patch, 9)
        monkeypatch.setattr(PartFiles, "clear", lambda self: None)
        measure_pool(model, pool, out, batch_size=16, part_size=40)
    assert [path.name for path in written] == ["part-000002.parquet", "part-000003.parquet"]
    assert (tmp_path / "m.parquet.parts" / "part-000000.parquet").stat().st_mtime_ns == first
    assert same(read_margins(out), undisturbed)


def test_a_finished_file_is_not_measured_again(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, out = smooth_net(), tmp_path / "m.parquet"
    measure_pool(model, pool, out, part_size=64)
    written = interrupt_after(monkeypatch, 0)
    assert same(measure_pool(model, pool, out, part_size=64), read_margins(out))
    assert written == []


def test_another_model_pool_or_setting_is_refused(
    pool: Pool, tmp_path: Path, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = smooth_net(), tmp_path / "m.parquet"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            measure_pool(model, pool, out, part_size=64)
    other_pool = make_pool("other", count=150, shape=SHAPE, num_classes=5, seed=1)
    with pytest.raises(PumaError, match=r"model weights was \w+\.\.\., now .*--no-resume"):
        measure_pool(smooth_net(seed=1), pool, out, part_size=64)
    with pytest.raises(PumaError, match="pool was"):
        measure_pool(model, other_pool, out, part_size=64)
    with pytest.raises(PumaError, match="norm was linf, now l2"):
        measure_pool(model, pool, out, part_size=64, norm="l2")
    with pytest.raises(PumaError, match="method was deepfool, now tight"):
        measure_pool(model, pool, out, part_size=64, method="tight")
    measure_pool(model, pool, out, part_size=64)
    with pytest.raises(PumaError, match="model weights was"):
        measure_pool(smooth_net(seed=1), pool, out, part_size=64)
    measure_pool(smooth_net(seed=1), pool, out, part_size=64, resume=False)


def test_a_truncated_part_is_measured_again(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, out = smooth_net(), tmp_path / "m.parquet"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            measure_pool(model, pool, out, part_size=64)
    part = tmp_path / "m.parquet.parts" / "part-000000.parquet"
    part.write_bytes(part.read_bytes()[:-100])
    found = measure_pool(model, pool, out, part_size=64)
    assert same(found, measure_pool(model, pool, tmp_path / "u.parquet", part_size=64))


def test_no_space_left_keeps_what_was_written(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, out = smooth_net(), tmp_path / "m.parquet"
    with monkeypatch.context() as patch:

        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(pq.ParquetWriter, "write_table", full)
        with pytest.raises(PumaError, match=r"No space left on device; .* run the same command again"):
            measure_pool(model, pool, out, part_size=64)
    assert list((tmp_path / "m.parquet.parts").glob("*part-*")) == []
    assert len(measure_pool(model, pool, out, part_size=64)) == 150


def test_a_second_process_is_refused(pool: Pool, tmp_path: Path) -> None:
    model, out = smooth_net(), tmp_path / "m.parquet"
    task = pool_driver.describe_task(model, pool, "deepfool", "linf", 1, None, 1, None, False, "")
    with PartFiles(out, task).locked(), pytest.raises(PumaError, match="another process is writing"):
        measure_pool(model, pool, out)


def test_bad_pools_and_files(pool: Pool, tmp_path: Path) -> None:
    out = tmp_path / "m.parquet"
    with pytest.raises(PumaError, match="nothing to measure"):
        measure_pool(smooth_net(), pool.subset(np.zeros(150, dtype=bool)), out)
    with pytest.raises(PumaError, match=r"0\.\.2 for this model's 3 classes"):
        measure_pool(smooth_net(classes=3), pool, out)
    with pytest.raises(PumaError, match="part_size must be"):
        measure_pool(smooth_net(), pool, out, part_size=0)
    with pytest.raises(PumaError, match="no margins at"):
        read_margins(tmp_path / "none.parquet")
    (tmp_path / "junk.parquet").write_text("junk")
    with pytest.raises(PumaError, match="damaged or not a parquet file"):
        read_margins(tmp_path / "junk.parquet")


SCRIPT = """
import sys, torch
sys.path[:0] = [{tests!r}]
torch.set_num_threads(1)
from margins.problems import smooth_net
from puma.margins import measure_pool
from puma.pools import Pool
measure_pool(smooth_net(), Pool.open(sys.argv[1]), sys.argv[2], method="tight", batch_size=16, part_size=32)
"""


def command(tmp_path: Path) -> list[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parents[1])))
    return [str(script), str(tmp_path / "pool")]


def environment() -> dict[str, str]:
    root = Path(__file__).parents[2]
    return {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}


def test_kill_9_at_any_moment(pool: Pool, tmp_path: Path) -> None:
    call = [sys.executable, *command(tmp_path), str(tmp_path / "m.parquet")]
    folder = tmp_path / "m.parquet.parts"
    process = subprocess.Popen(call, env=environment())
    while process.poll() is None and len(list(folder.glob("part-*.parquet"))) < 2:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "m.parquet").exists()
    subprocess.run(call, env=environment(), check=True)
    undisturbed = measure_pool(smooth_net(), pool, tmp_path / "u.parquet", method="tight", batch_size=16, part_size=32)
    assert same(read_margins(tmp_path / "m.parquet"), undisturbed)


def test_two_ranks_give_the_same_file(pool: Pool, tmp_path: Path) -> None:
    script, folder = command(tmp_path)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*launch, script, folder, str(tmp_path / "two.parquet")], env=environment(), check=True)
    one = measure_pool(smooth_net(), pool, tmp_path / "one.parquet", method="tight", batch_size=16, part_size=32)
    assert same(read_margins(tmp_path / "two.parquet"), one)


def test_cap_and_status_reach_the_file(pool: Pool, tmp_path: Path) -> None:
    found = measure_pool(smooth_net(), pool, tmp_path / "m.parquet", cap=0.01)
    capped = found.status == Status.CAPPED
    assert capped.any()
    assert torch.equal(found.margin[capped].abs(), torch.full((int(capped.sum()),), 0.01))


def test_margins_are_float32(pool: Pool, tmp_path: Path) -> None:
    found = measure_pool(smooth_net().double(), pool, tmp_path / "m.parquet")
    assert found.margin.dtype == torch.float32


def test_starting_over_removes_margins_and_nothing_else(pool: Pool, tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("years of work")
    with pytest.raises(PumaError):
        measure_pool(smooth_net(), pool, thesis, resume=False)
    assert thesis.read_text() == "years of work"
    out = tmp_path / "m.parquet"
    measure_pool(smooth_net(), pool, out)
    (tmp_path / "m.parquet.parts").mkdir()
    (tmp_path / "m.parquet.parts" / "notes").write_text("mine")
    again = measure_pool(smooth_net(), pool, out, resume=False, norm="l2")
    assert again.made_from["norm"] == "l2"
    assert (tmp_path / "m.parquet.parts" / "notes").exists()


def test_parts_of_another_size_are_refused_and_kept(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "m.parquet"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            measure_pool(smooth_net(), pool, out, part_size=30)
    before = sorted((tmp_path / "m.parquet.parts").glob("part-*"))
    assert before
    with pytest.raises(PumaError, match="was made from something else"):
        measure_pool(smooth_net(), pool, out, part_size=40)
    assert sorted((tmp_path / "m.parquet.parts").glob("part-*")) == before


def test_a_part_copied_over_another_is_measured_again(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = smooth_net(), tmp_path / "m.parquet"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            measure_pool(model, pool, out, part_size=30)
    first, second = (tmp_path / "m.parquet.parts" / f"part-{part:06d}.parquet" for part in (0, 1))
    second.write_bytes(first.read_bytes())
    found = measure_pool(model, pool, out, part_size=30)
    assert found.sample_id.tolist() == list(range(150))
    assert same(found, measure_pool(model, pool, part_size=30))
