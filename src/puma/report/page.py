"""One self-contained HTML page about runs, margins and plans: no network, no files beside it."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from string import Template

from puma.drawing import COLOURS, DARK
from puma.errors import PumaError
from puma.files import write_text
from puma.report.answer import write_answer
from puma.report.comparison import ComparedPair, compare_files
from puma.report.gallery import (
    CHOSEN,
    LEAST,
    GallerySelection,
    SpriteSheet,
    draw_pictures,
    list_columns,
    select_samples,
    tile_size,
)
from puma.report.row_figures import draw_margins, draw_trade_offs, draw_training
from puma.report.row_tables import compare_in_table, describe_study, list_notes, tabulate_classes
from puma.report.rows import ReportStudy, RowResult, forget_margins, read_results
from puma.report.samples import SampleTable, load_shown_samples
from puma.report.scan import read_study
from puma.report.svg import Markup, embed_json, join_markup, make_tag

MAX_SAMPLES = 2000  # in the gallery: a page that is still mailed and opened at once
_MOST_NOTES = 4  # more stand behind a fold
_MARK = '<meta name="generator" content="puma report">'


def write_report(
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    title: str | None = None,
    max_samples: int = MAX_SAMPLES,
    force: bool = False,
    show: bool = False,
) -> Path:
    """Write a page about runs, folders of results or an experiment.

    Examples:
        >>> pool = puma.Pool.from_tensors(torch.rand(64, 1, 8, 8), torch.arange(64) % 4)
        >>> run = puma.train("small-8px", pool, out="results/run", samples_seen=128, batch_size=64)
        >>> accuracy = run.evaluate(pool, name="test")  # kept within the run, for the report
        >>> print(puma.write_report(["results"], "report.html", title="My nets"))
        report.html

    Args:
        paths: run folders of ``puma train``, folders that hold runs, margins, plans and pools, or experiment.json.
        out: the .html file to write; whole or not at all.
        title: heading of the page.
        max_samples: the gallery shows at most so many samples.
        force: replace a file that is not a report.
        show: show progress.
    """
    out = Path(out)
    check_out(out, force=force)
    if max_samples < LEAST:
        raise PumaError(f"--max-samples must be at least {LEAST}, got {max_samples}.")
    try:
        text = _make_text([Path(path) for path in paths], title, max_samples, show=show)
    finally:
        forget_margins()
    return write_text(out, text.encode(errors="backslashreplace").decode())


def _make_text(paths: list[Path], title: str | None, max_samples: int, *, show: bool) -> str:
    study = read_study(paths)
    results = read_results(study, show=show)
    samples = load_shown_samples(study)
    return render_page(study, results, samples, title=title or study.title, max_samples=max_samples, show=show)


def check_out(out: Path, *, force: bool) -> None:
    """Raise where a report may not be written."""
    if out.is_dir():
        raise PumaError(f"--out must name a file such as report.html, {out} is a folder.")
    if out.suffix not in (".html", ".htm"):
        raise PumaError(f"--out must end in .html, got {out.name!r}.")
    if out.exists() and not force:
        with out.open(encoding="utf-8", errors="replace") as file:
            if _MARK not in file.read(2000):
                raise PumaError(f"{out} is there and is not a report; choose another --out, or give --force.")


@dataclass(frozen=True)
class PageSection:
    """A section: words, figures side by side, and what follows them."""

    before: Markup = field(default_factory=join_markup)
    figures: Sequence[Markup] = ()
    after: Markup = field(default_factory=join_markup)

    def render(self) -> Markup:
        """Return its content."""
        drawn = [make_tag("div", *self.figures, class_="figures")] if self.figures else []
        return join_markup(self.before, *drawn, self.after)


def render_page(
    study: ReportStudy,
    results: list[RowResult],
    samples: SampleTable | None,
    *,
    title: str,
    max_samples: int,
    show: bool = False,
) -> str:
    """Return the page."""
    choice = sheets = None
    pairs = compare_files(study)
    sections = list_sections(study, results, samples, pairs)
    picture = _take_picture(sections)
    sections = {"In short": _open_page(study, results, samples, pairs, picture), **sections}
    gallery: object = None
    if samples is not None and samples.table is not None:
        choice = select_samples(samples.margin, max_samples, eps=samples.eps, thresholds=samples.thresholds)
        sheets, why = draw_pictures(samples, choice, show=show)
        gallery = {
            **list_columns(samples, choice),
            "tile": tile_size(samples.pool)[::-1] if samples.pool and sheets else None,
        }
        sections["Gallery"] = PageSection(_gallery_section(samples, choice, sheets, why))
    style, script = (
        _write_palette() + _read_template("page.css") + _write_sheet_rules(sheets or []),
        _read_template("page.js"),
    )
    links = [make_tag("a", name, href=f"#{_anchor_of(name)}") for name in sections]
    body = [
        make_tag("section", make_tag("h2", name), section.render(), id=_anchor_of(name))
        for name, section in sections.items()
    ]
    return Template(_read_template("page.html")).substitute(
        mark=_MARK,
        policy=f"default-src 'none'; img-src data:; style-src {_hash_source(style)}; "
        f"script-src {_hash_source(script)}; base-uri 'none'; form-action 'none'",
        title=join_markup(title),
        links=join_markup(*links),
        sections=join_markup(*body),
        gallery=embed_json(gallery),
        style=style,
        script=script,
    )


def list_sections(
    study: ReportStudy, results: list[RowResult], samples: SampleTable | None, pairs: Sequence[ComparedPair] = ()
) -> dict[str, PageSection]:
    """Sections by name, in the order of the page; what there are no files for is left out."""
    sections = {"What was run": PageSection(describe_study(study, results))}
    if any(result.evaluations or result.row.paper for result in results):
        drawn = draw_trade_offs(results)
        sections["Accuracy and robustness"] = PageSection(figures=drawn, after=compare_in_table(results))
    legend, curves = draw_training(results)
    if curves:
        sections["Training"] = PageSection(legend, curves)
    for pair in pairs:
        tables = make_tag("div", *(make_tag("div", table) for table in pair.tables), class_="beside")
        sections[pair.title] = PageSection(pair.words, pair.figures, tables)
    if samples is not None:
        name = "Margins and strengths" if samples.table else "Strengths"
        sections[name] = PageSection(*draw_margins(study, samples))
    by_class = tabulate_classes(results, samples)
    if by_class:
        sections["Classes"] = PageSection(by_class)
    return sections


_TELLING = (
    "Accuracy and robustness",
    "Margin files",
    "Two plans",
    "Margins and strengths",
    "Strengths",
    "Training",
)


def _take_picture(sections: dict[str, PageSection]) -> Markup | None:
    """Take the most telling figure out of its section."""
    for name in _TELLING:
        section = sections.get(name)
        if section is not None and section.figures:
            picture, *others = section.figures
            sections[name] = replace(section, figures=others)
            return picture
    return None


def _open_page(
    study: ReportStudy,
    results: list[RowResult],
    samples: SampleTable | None,
    pairs: Sequence[ComparedPair],
    picture: Markup | None,
) -> PageSection:
    """Put together what the page opens with: the answer, a picture, and what a reader should know."""
    answer = make_tag(
        "div", write_answer(results, samples, [pair.sentence for pair in pairs if pair.sentence]), class_="told"
    )
    opening = make_tag("div", answer, *([picture] if picture else []), class_="answer")
    notes = [make_tag("li", note) for note in list_notes(study, results)]
    shown = [make_tag("ul", *notes[:_MOST_NOTES], class_="notes")] if notes else []
    if len(notes) > _MOST_NOTES:
        more = make_tag("ul", *notes[_MOST_NOTES:], class_="notes")
        shown.append(make_tag("details", make_tag("summary", f"{len(notes) - _MOST_NOTES} more notes"), more))
    return PageSection(opening, after=join_markup(*shown))


def _gallery_section(samples: SampleTable, choice: GallerySelection, sheets: list[SpriteSheet], why: str) -> Markup:
    shown, every = len(choice.rows), len(samples)
    if shown == every:
        chosen = f"All {every:,} samples of {samples.name} are here."
    else:
        kinds = [CHOSEN[name] for name in choice.groups if name in CHOSEN]
        chosen = (
            f"{shown:,} of the {every:,} samples of {samples.name} are here: {', '.join(kinds)}; the rest of them are "
            f"drawn at random."
        )
    exact = samples.pool is None or tile_size(samples.pool) == samples.pool.image_shape[:2]
    smaller = [] if exact or not sheets else ["Pictures are scaled down."]
    sentences = [chosen, *samples.notes, *([why] if why else []), *smaller]
    return join_markup(make_tag("p", " ".join(sentences)), Markup(_read_template("gallery.html")))


def _write_palette() -> str:
    pairs = enumerate(zip(COLOURS, DARK, strict=True))
    return f":root {{ {' '.join(f'--s{index}: light-dark({light}, {dark});' for index, (light, dark) in pairs)} }}\n"


def _write_sheet_rules(sheets: list[SpriteSheet]) -> str:
    return "".join(f".sheet{index}{{background-image:url({sheet.uri})}}\n" for index, sheet in enumerate(sheets))


def _hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _anchor_of(name: str) -> str:
    return name.lower().replace(" ", "-")


def _read_template(name: str) -> str:
    return files("puma.report").joinpath("templates", name).read_text(encoding="utf-8")
