"""The study as a whole, small: files, figures, settings, command line."""

import json
from pathlib import Path

import matplotlib
import pyarrow.parquet as pq
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from puma.cli import main
from puma.errors import PumaError
from puma.perceptron import study_figures as drawing
from puma.perceptron import sweep
from puma.perceptron.study_design import (
    PAPER_FIGURES,
    PerceptronStudy,
    compute_study,
    needed_curves,
    needed_points,
    plan_figures,
)
from puma.perceptron.study_run import run_study
from puma.perceptron.sweep import ResultCache
from puma.perceptron.theory import TheoryCurve

SMALL = PerceptronStudy(
    figures=("eps0.01", "filtered", "gain", "crossover"),
    alphas=(0.5, 2.0),
    keeps=(1.0, 0.1),
    seeds=2,
    dimension=24,
)


@pytest.fixture(autouse=True)
def _simple_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace theory curves, which have tests of their own, by lines."""
    monkeypatch.setattr(sweep, "trace_curve", lambda key: TheoryCurve(key.alphas, tuple(1 / a for a in key.alphas)))
    monkeypatch.setattr(drawing, "crossover_alpha", lambda keep: 2 - keep)


def test_a_study_writes_all_its_files(tmp_path: Path) -> None:
    report = run_study(SMALL, tmp_path, progress=False)
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    drawn = {f"figures/{name}.{kind}" for name in SMALL.figures for kind in ("png", "svg")}
    tables = {"results.parquet", "theory.parquet", "claims.md", "claims.json", "config.json", "points.jsonl"}
    assert names == drawn | tables
    table = pq.read_table(tmp_path / "results.parquet")
    assert table.num_rows == len(needed_points(SMALL)) == len(report.results.outcomes)
    assert {"strategy", "keep", "alpha", "eps", "seed", "error", "angle", "status"} <= set(table.column_names)
    assert json.loads(table.schema.metadata[b"study"])["dimension"] == 24
    assert len(json.loads((tmp_path / "claims.json").read_text())) == len(report.claims)
    svg = (tmp_path / "figures" / "eps0.01.svg").read_text()
    assert "none pruned" in svg
    assert "10 % kept" in svg


def test_a_second_run_writes_the_same_bytes(tmp_path: Path) -> None:
    study = PerceptronStudy(figures=("eps0.01", "theory"), alphas=(1.0, 2.0), keeps=(0.5,), seeds=2, dimension=16)
    for name in ("one", "two"):
        run_study(study, tmp_path / name, progress=False)
    for kind in ("results.parquet", "claims.md", "figures/eps0.01.svg", "figures/theory.png"):
        assert (tmp_path / "one" / kind).read_bytes() == (tmp_path / "two" / kind).read_bytes()


def test_legends_stay_inside_and_below_the_panels(tmp_path: Path) -> None:
    study = PerceptronStudy(figures=("eps0", "gain", "probe"), alphas=(0.5, 1.0), seeds=1, dimension=16)
    results = compute_study(study, ResultCache(tmp_path / "points.jsonl"), progress=False)
    for figure in plan_figures(study):
        with matplotlib.rc_context(drawing.STYLE):
            canvas = drawing.draw_panels(figure, results)
            FigureCanvasAgg(canvas)
            canvas.draw_without_rendering()
        (legend,) = canvas.legends
        box = legend.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= canvas.bbox.x1
        for axis in canvas.axes:
            extent = axis.get_tightbbox()
            assert extent is not None
            assert box.y1 <= extent.y0


def test_the_papers_figures_at_full_size_have_their_points() -> None:
    study = PerceptronStudy(figures=PAPER_FIGURES)
    assert len(needed_points(study)) == 11 * 13 * 10 * 4
    assert len(needed_curves(study)) == 13 * 4


def test_several_students_get_a_figure_each() -> None:
    study = PerceptronStudy(figures=("eps0", "theory"), students=("logistic", "gd"))
    assert [figure.name for figure in plan_figures(study)] == ["eps0-logistic", "eps0-gd", "theory"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"figures": ("eps1",)}, "unknown figure 'eps1'"),
        ({"students": ("svm",)}, "unknown student 'svm'"),
        ({"teacher": "sparse"}, "unknown teacher 'sparse'"),
        ({"alphas": ()}, "at least one of --alphas"),
        ({"alphas": (-1.0,)}, "got -1.0"),
        ({"keeps": (1.5,)}, "got 1.5"),
        ({"seeds": 0}, "at least one seed, got 0"),
        ({"ridge": 0.0}, "ridge must be within 1e-12 and 1e3, got 0.0"),
        ({"dimension": 1}, "at least 2, got 1"),
    ],
)
def test_bad_settings_are_told_in_a_sentence(settings: dict[str, object], words: str) -> None:
    with pytest.raises(PumaError) as caught:
        PerceptronStudy(**settings)  # type: ignore[arg-type]
    assert words in str(caught.value)
    assert str(caught.value).endswith(".")


def test_the_command_runs_and_extends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["perceptron", "--out", str(tmp_path), "--figures", "eps0", "--keeps", "0.5", "--seeds", "2"]
    words += ["--dimension", "16", "--jobs", "1", "--alphas"]
    main([*words, "1.0", "2.0", "--dry-run"])
    assert "12 students to train and 3 theory curves" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    main([*words, "1.0", "2.0"])
    main([*words, "1.0", "2.0", "4.0"])
    printed = capsys.readouterr()
    assert "results.parquet" in printed.out
    assert pq.read_table(tmp_path / "results.parquet").num_rows == 18


def test_the_command_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, sentence in (
        (["--keeps", "0"], "kept fraction must be in (0, 1], got 0.0"),
        (["--rate", "-1"], "learning rate must be positive, got -1.0"),
        (["--jobs", "0", "--figures", "eps0"], "number of jobs must be at least 1, got 0"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["perceptron", "--out", str(tmp_path), *words])
        assert stopped.value.code == 2
        assert sentence in capsys.readouterr().err


def test_a_failed_check_fails_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--figures", "eps0", "--keeps", "0.5", "--seeds", "1", "--dimension", "16", "--alphas", "4"]
    with pytest.raises(SystemExit) as stopped:
        main(["perceptron", "--out", str(tmp_path), "--jobs", "1", "--check", *words])
    assert stopped.value.code == 2
    assert "checks failed" in capsys.readouterr().err
