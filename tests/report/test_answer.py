import re
from pathlib import Path

import numpy as np

from conftest import MakePool
from puma.margins import compare_margins, read_margins
from puma.planning import Plan
from puma.report import write_report
from report.results import margin_of, write_evaluation, write_experiment, write_margins, write_plan, write_run


def opening(page: Path) -> list[str]:
    """The sentences that a page opens with, as they are read in steps of 1/255."""
    found = re.search(r'<div class="told">(.*?)</div>', page.read_text(), re.DOTALL)
    assert found is not None
    told = re.sub(r'<span class="in1">.*?</span>', "", found[1])
    return [re.sub(r"<[^>]+>", "", words) for words in re.findall(r"<p>(.*?)</p>", told)]


def test_an_experiment_opens_with_what_came_out(make_pool: MakePool, tmp_path: Path) -> None:
    make_pool("pool")
    page = write_report([write_experiment(tmp_path / "exp", tmp_path / "pool")], tmp_path / "r.html")
    values = margin_of(50)
    kept = np.sort(values)[:40]
    weaker, negative = int((np.abs(kept) < 0.1).sum()), int((kept < 0).sum())
    assert opening(page) == [
        "small-8px was trained on 50 real images (6 x 5 px, 4 classes), with seeds 0, 1.",
        f"PUMA prunes 10 of 50 samples (20.0%) and attacks {weaker} of the others less strongly; {negative} of the "
        "others it moves towards their label.",
        "Accuracy went from 80.5 % [74.1, 86.9] to 90.5 % [84.1, 96.9]: +10.0 points, more than chance; "
        "robustness (C&amp;W, eps 25.5/255) went from 50.5 % [44.1, 56.9] to 50.5 % [44.1, 56.9]: +0.0 points, "
        "no more than chance. TRADES is the baseline.",
    ]
    text = page.read_text()
    assert text.index("In short</h2>") < text.index("Accuracy against robustness") < text.index("What was run</h2>")
    assert text.count('aria-label="Accuracy against robustness') == 1  # taken out of its section, not copied
    fold = text[text.index("<details>") : text.index("</details>")]
    assert "Settings that all rows share" in fold
    assert "25.5/255" in fold  # eps among the facts


def test_margins_alone_open_with_wrong_near_and_far(make_pool: MakePool, tmp_path: Path) -> None:
    values = margin_of(50)
    values[7] = np.nan
    write_margins(tmp_path / "margins.parquet", make_pool("pool"), values)
    known = values[~np.isnan(values)]
    wrong, near = int((known < 0).sum()), int(((known >= 0) & (known < 8 / 255)).sum())
    shares = [f"{count} ({count / 49:.1%})" for count in (wrong, near, 49 - wrong - near)]
    first, second, third = opening(write_report([tmp_path], tmp_path / "r.html"))
    assert first == "The margins of 50 samples were measured with deepfool in linf, on model model."
    assert second == (
        f"{shares[0]} are wrong, {shares[1]} are right but near, within eps 8/255, the usual one: no eps is told, and "
        f"{shares[2]} are far; 1 search failed."
    )
    assert "most of them are images that this net finds hard" in third


def test_what_was_not_evaluated_or_has_nothing_to_compare_with_is_told(make_pool: MakePool, tmp_path: Path) -> None:
    make_pool("pool")
    run = write_run(tmp_path / "runs" / "trades", [tmp_path / "pool"])
    *_, plan, outcome = opening(write_report([run], tmp_path / "r.html"))
    assert plan == "trades has no plan: every sample is kept and attacked at full strength."
    assert outcome.startswith("Nothing was evaluated yet")
    write_evaluation(run / "evaluation-test", 80, 50)
    assert opening(write_report([run], tmp_path / "r.html"))[-1] == (
        "Accuracy is 80.0 % [71.1, 86.7]; robustness (C&amp;W, eps 25.5/255) is 50.0 % [40.4, 59.6]. There is no row "
        "to compare it with."
    )


def test_labels_and_predictions_that_are_confused_are_counted(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool("pool")
    path = write_margins(tmp_path / "margins.parquet", pool)
    for given in (path, tmp_path):  # without the pool the labels of the margins tell, by number
        text = write_report([given], tmp_path / "r.html").read_text()
        wrong = margin_of(50) < 0
        for label in range(4):
            mine = (pool.labels == label) & wrong
            name, other = (
                f"class{number}" if given is tmp_path else f"{number}" for number in (label, (label + 1) % 4)
            )
            share = mine.sum() / (pool.labels == label).sum()
            cells = f'<th scope="row">{name} → {other}</th><td class="number">{mine.sum()}</td>'
            assert f'{cells}<td class="number">{share:.1%}</td>' in text


def test_real_and_generated_samples_are_told_apart(make_pool: MakePool, tmp_path: Path) -> None:
    both = make_pool("real") + make_pool("generated", origin=1, seed=1)
    values = margin_of(100)
    margins = write_margins(tmp_path / "margins.parquet", both, values)
    write_plan(tmp_path / "plan.parquet", both, values, margins=margins)
    page = write_report([tmp_path], tmp_path / "r.html")
    assert opening(page)[0].startswith("The margins of 100 samples (50% of them generated) were measured")
    kept = np.ones(100, dtype=bool)
    kept[np.argsort(values)[80:]] = False
    cells = [f"generated</th><td class=\"number\">50</td><td class=\"number\">50.0%</td><td class=\"number\">"
             f"{kept[50:].mean():.1%}</td><td class=\"number\">{(values[50:] < 0).mean():.1%}</td>"]  # fmt: skip
    assert cells[0] in page.read_text()
    assert "data:image/png" in page.read_text()  # mixed pools have their pictures


def test_two_margin_files_are_compared(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool("pool")
    one, two = margin_of(50), margin_of(50, seed=1)
    files = [write_margins(tmp_path / f"{name}.parquet", pool, values) for name, values in (("a", one), ("b", two))]
    text = write_report(files, tmp_path / "r.html").read_text()
    (pair,) = compare_margins({"a": read_margins(files[0]), "b": read_margins(files[1])})
    told = (f"{pair.rank_correlation:.3f}", f"{pair.sign_agreement:.1%}", f"{pair.plan_agreement:.1%}")
    cells = "".join(f'<td class="number">{value}</td>' for value in ("50", *told))
    assert f'<th scope="row">a : b</th>{cells}' in text
    assert "Margins against margins" in text
    assert opening(tmp_path / "r.html")[-1].startswith(
        f"a and b put {pair.sign_agreement:.1%} of the samples on the same"
    )
    assert "<h1>a, b</h1>" in text
    other = write_margins(tmp_path / "c.parquet", make_pool("other", seed=4))
    text = write_report([files[0], other], tmp_path / "r.html").read_text()
    assert "a and c are of different pools or norms, so they are not compared." in text
    text = write_report([*files, other], tmp_path / "r.html").read_text()
    assert "1 of another pool or norm are left out." in text


def test_margins_that_are_equal_have_no_table_of_differences(make_pool: MakePool, tmp_path: Path) -> None:
    long = "a-long-name-of-a-file-of-margins-that-does-not-fit-below-a-picture"
    pool = make_pool("pool")
    values = np.tile(margin_of(50), (2, 1))
    values[1, 3] += 0.5
    for two, tables in ((values[0], 0), (values[1], 1)):
        files = [
            write_margins(tmp_path / "a.parquet", pool, values[0]),
            write_margins(tmp_path / f"{long}.parquet", pool, two),
        ]
        text = write_report(files, tmp_path / "r.html").read_text()
        assert text.count("<caption>Where they differ the most") == tables
        assert f">{long[:39]}…" in text
    rows = text[text.index("<caption>Where they differ the most") :].partition("</table>")[0]
    assert rows.count("<tr>") == 2  # the header, and the one sample


def test_a_baseline_of_that_name_is_called_so_once(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool("pool")
    for name, right in (("baseline", 80), ("other-name-that-is-far-too-long-to-stand-above-a-column", 90)):
        plan = None if name == "baseline" else write_plan(tmp_path / "plan.parquet", pool)
        run = write_run(tmp_path / name, [tmp_path / "pool"], plan=plan)
        write_evaluation(run / "evaluation-test", right, 50, classes=pool.class_names)
    text = write_report([tmp_path], tmp_path / "r.html").read_text()
    assert "to baseline, points" in text
    assert "baseline is the baseline" not in text
    assert "(baseline)" not in text


def test_two_plans_are_compared(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool("pool")
    files = [write_plan(tmp_path / "a.parquet", pool), write_plan(tmp_path / "b.parquet", pool, pruned=0.4)]
    weak = Plan.open(files[1])
    Plan(weak.sample_id, weak.keep, weak.strength / 2, weak.pool_fingerprint, weak.made_from).save(files[1])
    text = write_report(files, tmp_path / "r.html").read_text()
    assert "a and b decide alike about 80.0% of 50 samples; of the 30 that both keep, 30 are" in text
    assert 'a: kept</th><td class="number">30</td><td class="number">10</td>' in text
    assert 'a: pruned</th><td class="number">0</td><td class="number">10</td>' in text
    assert 'pruning.easy</th><td class="number">0.2</td><td class="number">0.4</td>' in text
    assert "Strengths against strengths" in text
