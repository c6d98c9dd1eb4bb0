import base64
import hashlib
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from conftest import MakePool, Run
from puma.errors import PumaError
from puma.pools import Pool
from puma.pools.writer import PoolPart, new_folder, write_pool
from puma.report.page import write_report
from report.drawn import Chart
from report.results import margin_of, write_experiment, write_margins, write_plan

EVIL = "</script><img src=x onerror=alert(1)>\"'<!--"


class Elements(HTMLParser):
    """Every element and attribute of a page, its visible text, and the cells of its tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.scripts: dict[str, str] = {}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._inside = tag if tag not in ("script", "style") else f"{tag} {dict(attrs).get('id') or ''}"

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside.startswith(("script", "style")):
            self.scripts[self._inside] = self.scripts.get(self._inside, "") + data
        else:
            self.text.append(data)


@pytest.fixture
def page(make_pool: MakePool, tmp_path: Path) -> Elements:
    make_pool("pool")
    write_experiment(tmp_path / "exp", tmp_path / "pool")
    return Elements(write_report([tmp_path / "exp"], tmp_path / "report.html").read_text())


def test_numbers_are_those_of_the_files(page: Elements) -> None:
    words = " ".join(" ".join(page.text).split())
    assert (
        "TRADES (baseline) 0, 1 80.50 ± 0.71 [74.15, 86.85] 85.00 0 (itself) 50.50 ± 0.71 [44.15, 56.85] 55.00" in words
    )
    assert "PUMA 0, 1 90.50 ± 0.71 [84.15, 96.85] 95.00 +10.00 [+9.00, +11.00] more than noise 50.50" in words
    assert "+0.00 [−1.00, +1.00] within noise" in words
    assert "keeps 40 of 50 and prunes 10 (the easiest 20 % of the pool by margin)" in words
    threshold = np.sort(margin_of(50))[40]
    assert f"Easy samples are pruned from a margin of {255 * threshold:+.2f}/255 {threshold:+.4f} ." in words
    assert "50 samples, 13 with a margin below 0" in words
    assert "All 50 samples of PUMA, seed 0 (of 2) are here." in words


def test_classes_are_counted(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool("pool")
    write_experiment(tmp_path / "exp", tmp_path / "pool")
    words = " ".join(" ".join(Elements(write_report([tmp_path], tmp_path / "r.html").read_text()).text).split())
    margin, pruned = margin_of(50), np.argsort(margin_of(50))[40:]
    for label in range(4):
        mine = np.flatnonzero(pool.labels == label)
        kept = len(mine) - len(np.intersect1d(mine, pruned))
        share = f"{kept / len(mine):.1%} ({kept} of {len(mine)})"
        middle = np.median(margin[mine])
        assert f"class{label} {share} {255 * middle:+.2f}/255 {middle:+.4f} 80.0% 48.0% 88.0% 48.0%" in words


def test_a_page_needs_nothing_and_may_do_nothing(page: Elements, tmp_path: Path) -> None:
    text = (tmp_path / "report.html").read_text()
    for name, value in page.attributes:
        if name in ("src", "href"):
            assert (value or "").startswith(("#", "data:")), (name, value)
        assert not name.startswith("on"), name
        assert name != "style"
    assert not re.search(r"url\((?!data:|#)", text)
    contents = [value or "" for name, value in page.attributes if name == "content"]
    (policy,) = [value for value in contents if "default-src" in value]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for block in re.findall(r"<style>(.*?)</style>|<script>(.*?)</script>", text, re.DOTALL):
        digest = base64.b64encode(hashlib.sha256("".join(block).encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_the_same_files_give_the_same_page(page: Elements, tmp_path: Path) -> None:
    again = write_report([tmp_path / "exp"], tmp_path / "again.html")
    assert again.read_bytes() == (tmp_path / "report.html").read_bytes()


def test_names_cannot_become_markup(tmp_path: Path) -> None:
    count = 40
    images, labels = np.zeros((count, 4, 4, 1), dtype=np.uint8), np.arange(count) % 2
    with new_folder(tmp_path / "pool", force=False) as folder:
        write_pool(folder, PoolPart([(images, labels)], [EVIL, "plain"], count, 0))
    path = write_experiment(tmp_path / "exp", tmp_path / "pool", title=EVIL, notes=[EVIL], provenance={EVIL: EVIL})
    described = json.loads(path.read_text())
    described["rows"][1]["row"] = EVIL
    path.write_text(json.dumps(described))
    text = write_report([path], tmp_path / "r.html").read_text()
    found = Elements(text)
    assert "img" not in found.tags
    assert found.tags.count("script") == 2
    assert "<!--" not in text
    assert json.loads(found.scripts["script gallery-columns"])["classes"] == [EVIL, "plain"]
    assert found.text.count(EVIL) > 5
    assert ("aria-label", EVIL) not in found.attributes


def test_a_pool_that_moved_away_costs_only_the_pictures(make_pool: MakePool, tmp_path: Path) -> None:
    make_pool("pool")
    write_experiment(tmp_path / "exp", tmp_path / "pool")
    other = make_pool("other", seed=5)
    (tmp_path / "pool" / "images.npy").rename(tmp_path / "images.npy")
    text = write_report([tmp_path / "exp"], tmp_path / "r.html").read_text()
    assert "The pool cannot be opened, so there are no pictures and no labels" in text
    assert "data:image" not in text
    shutil.rmtree(tmp_path / "pool")
    shutil.copytree(other.stores[0].path, tmp_path / "pool")
    text = write_report([tmp_path / "exp"], tmp_path / "r.html").read_text()
    assert "is not the one that the margins were measured on" in text


def test_margins_of_several_rows_are_drawn_over_each_other(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool("pool")
    write_margins(tmp_path / "margins-a.parquet", pool)
    assert "Margins of several rows" not in write_report([tmp_path], tmp_path / "r.html").read_text()
    write_margins(tmp_path / "margins-b.parquet", pool, margin_of(50, seed=1) / np.float32(2))
    text = write_report([tmp_path], tmp_path / "r.html").read_text()
    assert "Margins of several rows" in text
    assert "margins-a (50)" in text
    assert "margins-b (50)" in text


def test_only_failed_searches(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool("pool")
    write_margins(tmp_path / "margins.parquet", pool, np.full(50, np.nan, dtype=np.float32))
    text = write_report([tmp_path], tmp_path / "r.html").read_text()
    assert "The search found no boundary for 50 samples" in text


def test_a_plan_for_other_samples_raises(make_pool: MakePool, tmp_path: Path) -> None:
    make_pool("pool")
    path = write_experiment(tmp_path / "exp", tmp_path / "pool")
    write_plan(path.parent / "plan.parquet", make_pool("other", seed=3))
    with pytest.raises(PumaError, match="are of different pools"):
        write_report([path], tmp_path / "r.html")


def test_what_is_not_a_report_is_not_replaced(make_pool: MakePool, tmp_path: Path, puma: Run) -> None:
    write_margins(tmp_path / "margins.parquet", make_pool("pool"))
    out = tmp_path / "mine.html"
    out.write_text("my page")
    command = ["report", str(tmp_path), "--out", str(out)]
    code, _, err = puma(*command)
    assert (code, "is there and is not a report" in err, out.read_text()) == (2, True, "my page")
    assert puma(*command, "--force")[0] == 0
    code, said, _ = puma(*command, "--title", "Again", "--max-samples", "16")
    assert (code, f"report: {out}" in said) == (0, True)
    assert "<h1>Again</h1>" in out.read_text()
    assert "16 of the 50 samples of margins are here" in out.read_text()
    for words, sentence in {
        ("--out", str(tmp_path)): "is a folder",
        ("--out", str(tmp_path / "x.png")): "--out must end in .html, got 'x.png'",
        ("--out", str(tmp_path / "x.html"), "--max-samples", "2"): "--max-samples must be at least 16, got 2",
    }.items():
        code, _, err = puma("report", str(tmp_path), *words)
        assert (code, sentence in err) == (2, True), err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["margins.parquet", "mine.html", "pool"]


def test_open_shows_the_page(make_pool: MakePool, tmp_path: Path, puma: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write_margins(tmp_path / "margins.parquet", make_pool("pool"))
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert puma("report", str(tmp_path), "--out", str(tmp_path / "r.html"), "--open")[0] == 0
    assert opened == [(tmp_path / "r.html").as_uri()]


def test_rows_at_different_radii_are_told_apart(make_pool: MakePool, tmp_path: Path) -> None:
    make_pool("pool")
    path = write_experiment(tmp_path / "exp", tmp_path / "pool")
    words = " ".join(" ".join(Elements(write_report([path], tmp_path / "r.html").read_text()).text).split())
    assert "Robustness is at eps 25.5/255 0.1 (linf). In rows" in words
    metrics = path.parent / "PUMA-0" / "evaluation-test" / "metrics.json"
    metrics.write_text(metrics.read_text().replace('"eps": 0.1', '"eps": 0.2'))
    words = " ".join(" ".join(Elements(write_report([path], tmp_path / "r.html").read_text()).text).split())
    assert "at eps 25.5/255 0.1 (linf) or 51/255 0.2 (linf). Rows at different eps cannot be compared." in words


def test_pools_of_two_origins(make_pool: MakePool, tmp_path: Path) -> None:
    one, two = make_pool("one"), make_pool("two", origin=1, seed=2)
    both: Pool = one + two
    folder = tmp_path / "exp"
    folder.mkdir()
    write_margins(folder / "margins.parquet", both)
    seed = {"seed": 0, "pools": [str(tmp_path / "one"), str(tmp_path / "two")], "margins": "margins.parquet"}
    described = {"format": "puma-experiment-1", "rows": [{"row": "mixed", "paper": None, "seeds": [seed]}]}
    (folder / "experiment.json").write_text(json.dumps(described))
    found = Elements(write_report([folder], tmp_path / "r.html").read_text())
    assert "50 real and 50 generated (50%), 6 x 5 px, 4 classes" in found.text
    assert "training images" in found.text
    shown = json.loads(found.scripts["script gallery-columns"])
    assert [shown["generated"][shown["id"].index(sample)] for sample in (0, 49, 50, 99)] == [0, 0, 1, 1]


def test_published_numbers_stand_beside_the_same_attack(make_pool: MakePool, tmp_path: Path) -> None:
    make_pool("pool")
    path = write_experiment(tmp_path / "exp", tmp_path / "pool")
    words = " ".join(Elements(write_report([path], tmp_path / "r.html").read_text()).text)
    assert words.count("paper, %") == 2
    assert "hollow" in words
    for metrics in path.parent.glob("*/*/metrics.json"):
        metrics.write_text(metrics.read_text().replace('"cw"', '"autoattack"'))
    words = " ".join(Elements(write_report([path], tmp_path / "r.html").read_text()).text)
    assert words.count("paper, %") == 1  # the paper's accuracy; its C&W is not AutoAttack
    assert "hollow" not in words
    assert "Change from the baseline" in words


def test_which_seed_is_shown_is_told(page: Elements) -> None:
    shown = "PUMA, seed 0 (of 2)"
    words = " ".join(" ".join(page.text).split())
    for sentence in (
        f"Shown is {shown}: 50 samples",
        f"Margins of {shown}",
        f"Strengths of {shown}",
        f"kept, {shown}",
        f"median margin, {shown}",
        f"samples of {shown} are here",
    ):
        assert sentence in words, sentence


def test_plans_of_several_seeds_are_told_of_one(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool("pool")
    path = write_experiment(tmp_path / "exp", tmp_path / "pool")
    described = json.loads(path.read_text())
    described["rows"][1]["seeds"][1]["plan"] = str(write_plan(tmp_path / "second.parquet", pool, pruned=0.4))
    path.write_text(json.dumps(described))
    assert "seed 0 (of 2): keeps 40 of 50" in write_report([path], tmp_path / "r.html").read_text()


def test_other_classes_have_a_table_of_their_own(make_pool: MakePool, tmp_path: Path) -> None:
    make_pool("pool")
    paths = [write_experiment(tmp_path / name, tmp_path / "pool", title=name) for name in ("one", "two")]
    text = write_report(paths, tmp_path / "r.html").read_text()
    assert text.count("<caption>The rows by class</caption>") == 1
    for metrics in paths[1].parent.glob("*/*/metrics.json"):
        metrics.write_text(re.sub(r'"class(\d)', r'"kind\1', metrics.read_text()))
    text = write_report(paths, tmp_path / "r.html").read_text()
    tables = re.findall(r"<caption>The rows by class.*?</table>", text)
    assert ["two: PUMA" in found for found in tables] == [False, True]
    assert ["one: PUMA" in found for found in tables] == [True, False]
    assert [">-<" in found for found in tables] == [False, False]


def test_margins_without_a_plan_say_nothing_of_pruning(make_pool: MakePool, tmp_path: Path) -> None:
    write_margins(tmp_path / "margins.parquet", make_pool("pool"))
    found = Elements(write_report([tmp_path], tmp_path / "r.html").read_text())
    words = " ".join(" ".join(found.text).split())
    assert "samples (50)" in words
    assert "kept (" not in words
    assert "kept, margins" not in words
    assert "median margin, margins" in words
    groups = json.loads(found.scripts["script gallery-columns"])["groups"]
    assert groups["highest"][1] == "The easiest samples."
    assert not any("prun" in sentence for _, sentence, _ in groups.values())


def test_a_plan_without_margins_shows_strengths_and_classes(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool("pool")
    write_plan(tmp_path / "plan.parquet", pool)
    found = Elements(write_report([tmp_path], tmp_path / "r.html").read_text())
    words = " ".join(" ".join(found.text).split())
    assert "Strengths of plan" in words
    assert "No margins were found, so this is from the plan alone." in words
    pruned = np.argsort(margin_of(50))[40:]
    for label in range(4):
        mine = np.flatnonzero(pool.labels == label)
        kept = len(mine) - len(np.intersect1d(mine, pruned))
        assert f"class{label} {kept / len(mine):.1%} ({kept} of {len(mine)})" in words
    assert "median margin" not in words
    assert json.loads(found.scripts["script gallery-columns"]) is None


def test_charts_show_the_files(page: Elements, tmp_path: Path) -> None:
    text = (tmp_path / "report.html").read_text()
    threshold = np.sort(margin_of(50))[40]
    margins = Chart(text, "Margins of PUMA, seed 0 (of 2)")
    assert (margins.counted("bar kept"), margins.counted("bar pruned")) == (40, 10)
    right = [margins.x(bar.get("x")) + margins.across[0] * float(bar.get("width", "")) for bar in
             margins.of("rect", "bar kept")]  # fmt: skip
    assert max(right) < threshold + 0.01
    assert min(margins.x(bar.get("x")) for bar in margins.of("rect", "bar pruned")) > threshold - 0.01
    places = [margins.x(margins.of("line", f"marked m{index}")[0].get("x1")) for index in range(3)]
    assert places == pytest.approx([0, 0.1, threshold], abs=1e-3)
    strengths = Chart(text, "Strengths of PUMA, seed 0 (of 2)")
    assert strengths.counted("bar kept") == 40
    full = int((margin_of(50)[margin_of(50) < threshold] > 0.095).sum())  # the last bin, up to eps
    assert strengths.told("rect", "bar kept")[-1] == f"0.0950 to 0.1000 (24.23 to 25.50 of 255): {full} kept"


def test_changes_are_differences_ours_and_the_papers(page: Elements, tmp_path: Path) -> None:
    """Ours: 90.5 against 80.5, and 50.5 twice; the paper's: 95 compare_pair 85, and 55 twice."""
    chart = Chart((tmp_path / "report.html").read_text(), "Change from the baseline")
    ours, paper = chart.told("polygon", "mark")
    assert ours == "PUMA: accuracy +10 [+9, +11], robustness 0 [-1, +1]"
    assert paper == "PUMA, paper: accuracy +10, robustness 0"
    for mark in chart.of("polygon", "mark"):
        corners = [corner.split(",") for corner in (mark.get("points") or "").split()]
        middle = [str(np.mean([float(corner[axis]) for corner in corners])) for axis in (0, 1)]
        assert (chart.x(middle[0]), chart.y(middle[1])) == pytest.approx((10, 0), abs=0.1)


def test_text_that_is_no_text(make_pool: MakePool, tmp_path: Path, puma: Run) -> None:
    make_pool("pool")
    path = write_experiment(tmp_path / "exp", tmp_path / "pool", title="half \udcff", notes=["note \ud800."])
    out = tmp_path / "r.html"
    assert puma("report", str(path), "--out", str(out))[0] == 0
    assert "<h1>half \\udcff</h1>" in out.read_text()
    assert "note \\ud800." in out.read_text()
    assert puma("report", str(path), "--out", str(out), "--title", "bad \udc80")[0] == 0
    assert "<h1>bad \\udc80</h1>" in out.read_text()


def test_a_folder_whose_name_is_not_utf8(make_pool: MakePool, tmp_path: Path, puma: Run) -> None:
    pool = make_pool("pool")
    (tmp_path / "exp").mkdir()
    write_margins(tmp_path / "exp" / "margins.parquet", pool)
    write_plan(tmp_path / "exp" / "plan.parquet", pool)
    try:
        folder = (tmp_path / "exp").rename(tmp_path / "exp\udcff")
    except (OSError, UnicodeError):
        pytest.skip("needs a file system whose names are bytes")
    code, said, err = puma("report", str(folder), "--out", str(folder / "r.html"))
    assert (code, "damaged" in err) == (0, False), err
    assert "exp\\udcff" in said
    assert "<h1>exp\\udcff</h1>" in (folder / "r.html").read_text()


def test_what_is_no_regular_file_is_not_read(make_pool: MakePool, tmp_path: Path) -> None:
    make_pool("pool")
    path = write_experiment(tmp_path / "exp", tmp_path / "pool")
    described = json.loads(path.read_text())
    described["rows"][0]["seeds"][0]["evaluation"] = "/dev/zero"
    path.write_text(json.dumps(described))
    with pytest.raises(PumaError, match="/dev/zero is not a regular file"):
        write_report([path], tmp_path / "r.html")
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(1 << 30)  # a file of holes
    described["rows"][0]["seeds"][0]["evaluation"] = str(large)
    path.write_text(json.dumps(described))
    with pytest.raises(PumaError, match=r"large.json has 1,073,741,824 bytes, more than the counts"):
        write_report([path], tmp_path / "r.html")


def test_each_experiment_has_a_heading(make_pool: MakePool, tmp_path: Path) -> None:
    make_pool("pool")
    names = ("one", "two", "three")
    paths = [write_experiment(tmp_path / name, tmp_path / "pool", title=name, preset=name) for name in names]
    text = write_report(paths, tmp_path / "r.html").read_text()
    assert "<h1>one and 2 more</h1>" in text
    for name in names:
        assert f"<h3>{name}</h3><dl><div><dt>preset</dt><dd>{name}</dd></div></dl>" in text
        assert text.count(f'<th scope="rowgroup" colspan="4" class="heading">{name}</th>') == 1
    assert text.count("<dt>commit</dt>") == 1  # what all share is told once
    assert text.count('<th scope="row">PUMA</th>') == 6
    assert text.count("50 real, 6 x 5 px, 4 classes") == 1  # the images too


def test_images_that_differ_are_told_of_each_row(make_pool: MakePool, tmp_path: Path) -> None:
    write_margins(tmp_path / "margins-a.parquet", make_pool("a"))
    write_margins(tmp_path / "margins-b.parquet", make_pool("b", count=40, seed=2), margin_of(40))
    text = write_report([tmp_path], tmp_path / "r.html").read_text()
    assert '<td class="words">40 real, 6 x 5 px, 4 classes</td>' in text
    assert '<td class="words">50 real, 6 x 5 px, 4 classes</td>' in text
