import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import MakePool
from puma.errors import PumaError
from puma.planning import Plan
from puma.pools import Pool
from puma.report.gallery import COLUMNS, PER_SHEET, draw_sheets, list_columns, select_samples
from puma.report.rows import ReportRow, SeedFiles
from puma.report.samples import SampleTable, join_samples
from report.results import margin_of, write_margins, write_plan


def decoded(uri: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


@pytest.mark.parametrize("channels", [1, 3])
def test_tiles_are_the_pixels_of_the_pool(make_pool: MakePool, channels: int) -> None:
    pool = make_pool(count=PER_SHEET + 40, shape=(6, 5, channels))
    positions = np.random.default_rng(0).permutation(len(pool))
    drawn = draw_sheets(pool, positions)
    assert len(drawn) == 2
    pixels = pool.batch(positions).images.permute(0, 2, 3, 1).numpy()
    for index, image in enumerate(pixels):
        sheet = decoded(drawn[index // PER_SHEET].uri)
        y, x = 6 * (index % PER_SHEET // COLUMNS), 5 * (index % COLUMNS)
        tile = sheet[y : y + 6, x : x + 5]
        assert np.array_equal(tile.reshape(image.shape), image)


def test_large_pictures_are_scaled_down(make_pool: MakePool) -> None:
    pool = make_pool(count=4, shape=(80, 160, 3))
    (sheet,) = draw_sheets(pool, np.arange(4))
    assert sheet.uri.startswith("data:image/jpeg")
    assert decoded(sheet.uri).shape == (32, 64 * COLUMNS, 3)


def test_columns_belong_together(make_pool: MakePool) -> None:
    pool = make_pool(count=80)
    margin = margin_of(80)
    margin[:2] = [np.inf, np.nan]
    folder = pool.stores[0].path.parent
    files = write_margins(folder / "m.parquet", pool, margin), write_plan(folder / "p.parquet", pool)
    samples = join_samples(ReportRow("r", ()), SeedFiles(0, None, (pool.stores[0].path,), files[1], files[0]))
    choice = select_samples(margin, 40, eps=samples.eps, thresholds=samples.thresholds)
    shown = list_columns(samples, choice)
    truth = margin_of(80)
    keep = np.argsort(np.argsort(truth)) < 64  # the sixteen highest are pruned
    for place, sample in enumerate(shown["id"]):
        assert shown["margin"][place] == (float(f"{margin[sample]:.7g}") if np.isfinite(margin[sample]) else None)
        assert shown["label"][place] == pool.labels[sample]
        assert shown["kept"][place] == keep[sample]
        assert shown["strength"][place] == pytest.approx(truth[sample].clip(-0.1, 0.1), abs=1e-6)
        assert (shown["prediction"][place] == shown["label"][place]) == (not margin[sample] < 0)
    assert shown["generated"] == [0] * 40


def planned(pool: Pool, keep: np.ndarray, **said: str) -> SampleTable:
    """Samples under a plan that keeps these and says this about its rule."""
    folder = pool.stores[0].path.parent
    margins = write_margins(folder / "m.parquet", pool)
    made_from = {f"pruning.{name}": value for name, value in said.items() if name != "score"}
    ids, count = torch.from_numpy(pool.sample_id.copy()), len(pool)
    kept, strength = torch.from_numpy(keep), torch.full((count,), 0.1)
    score = {"score": said.get("score", "margin")}
    plan = Plan(ids, kept, strength, pool.fingerprint, {**made_from, **score}).save(folder / "p.parquet")
    return join_samples(ReportRow("r", ()), SeedFiles(0, None, (), plan, margins))


def test_thresholds_are_those_of_the_rule(make_pool: MakePool) -> None:
    pool, margin = make_pool(count=50), margin_of(50)
    ordered, rank = np.sort(margin), np.argsort(np.argsort(margin))
    high, low = rank < 40, rank >= 5
    for keep, said, expected in (
        (high, {"easy": "0.2"}, {"easy": ordered[40]}),
        (high, {"easy": "0.0", "easy_threshold": "0.2"}, {"easy": ordered[40]}),
        (low, {"difficult": "0.1"}, {"difficult": ordered[4]}),
        (low, {"difficult_threshold": "-0.05"}, {"difficult": ordered[4]}),
        (high & low, {"easy": "0.2", "difficult": "0.1"}, {"easy": ordered[40], "difficult": ordered[4]}),
        (high, {"random": "0.2"}, {}),
        (high, {"easy": "0.1", "random": "0.1"}, {}),
        (high, {"easy": "0.2", "score": "cd_clean"}, {}),
        (high, {}, {}),
    ):
        samples = planned(pool, keep, **said)
        assert samples.thresholds == expected, said
        told = list_columns(samples, select_samples(margin, 50, eps=0.1, thresholds=samples.thresholds))["groups"]
        by_margin = said.get("score", "margin") == "margin"
        assert ("first to be pruned" in told["highest"][1]) == (
            by_margin and bool({"easy", "easy_threshold"} & {*said})
        )
        assert ("first to be pruned" in told["lowest"][1]) == bool({"difficult", "difficult_threshold"} & {*said})
        assert told.keys() & {"easy", "difficult"} == expected.keys()


def test_the_threshold_is_the_smallest_pruned_margin(make_pool: MakePool) -> None:
    pool = make_pool(count=50)
    folder = pool.stores[0].path.parent
    margins, plan = write_margins(folder / "m.parquet", pool), write_plan(folder / "p.parquet", pool)
    samples = join_samples(ReportRow("r", ()), SeedFiles(0, None, (), plan, margins))
    assert samples.thresholds == {"easy": np.sort(margin_of(50))[40]}
    assert samples.eps == 0.1
    unknown = margin_of(50)
    unknown[np.argsort(unknown)[40:42]] = [-np.inf, np.nan]
    samples = join_samples(
        ReportRow("r", ()), SeedFiles(0, None, (), plan, write_margins(folder / "m.parquet", pool, unknown))
    )
    assert samples.thresholds == {"easy": np.sort(margin_of(50))[42]}
    assert join_samples(ReportRow("r", ()), SeedFiles(0, None, (), None, margins)).thresholds == {}


def test_the_telling_samples_are_always_among_the_chosen() -> None:
    margin = np.random.default_rng(0).permutation(np.linspace(-0.2, 0.6, 10_000)).astype(np.float32)
    choice = select_samples(margin, 160, eps=0.1, thresholds={"easy": 0.4})
    shown = margin[choice.rows]
    assert len(np.unique(choice.rows)) == 160
    assert (np.diff(shown) >= 0).all()
    ordered = np.sort(margin)
    for name, expected in {
        "lowest": ordered[:20],
        "highest": ordered[::-1][:20],
        "zero": ordered[np.argsort(np.abs(ordered), kind="stable")[:20]],
        "eps": ordered[np.argsort(np.abs(ordered - np.float32(0.1)), kind="stable")[:20]],
        "easy": ordered[np.argsort(np.abs(ordered - np.float32(0.4)), kind="stable")[:20]],
    }.items():
        assert sorted(shown[choice.groups[name]]) == sorted(expected), name
    assert shown[choice.groups["lowest"]][0] == ordered[0]  # the most telling comes first
    assert shown[choice.groups["highest"]][0] == ordered[-1]
    assert len(choice.groups["random"]) == 160 - 5 * 20
    again = select_samples(margin, 160, eps=0.1, thresholds={"easy": 0.4})
    assert np.array_equal(again.rows, choice.rows)


def test_with_room_for_all_all_are_chosen() -> None:
    margin = np.linspace(-0.1, 0.3, 40).astype(np.float32)
    choice = select_samples(margin, 40, eps=None, thresholds={})
    assert choice.rows.tolist() == list(range(40))
    assert set(choice.groups) == {"lowest", "zero", "highest", "random"}


def test_right_samples_are_not_called_negative_and_failed_searches_stand_apart() -> None:
    margin = np.array([0.3, np.nan, 0.1, -0.2, np.inf, 0.2, -np.inf, *np.linspace(0.4, 0.5, 33)], dtype=np.float32)
    choice = select_samples(margin, 40, eps=0.1, thresholds={})
    assert choice.rows[choice.groups["lowest"]].tolist() == [3]
    assert choice.rows[choice.groups["failed"]].tolist() == [1, 4, 6]
    assert choice.rows[choice.groups["highest"]][0] == 39
    assert select_samples(np.full(20, np.nan, dtype=np.float32), 20, eps=0.1, thresholds={}).groups.keys() == {
        "failed",
        "random",
    }


def test_too_few() -> None:
    with pytest.raises(PumaError, match="--max-samples must be at least 16, got 3"):
        select_samples(np.zeros(5, dtype=np.float32), 3, eps=None, thresholds={})
