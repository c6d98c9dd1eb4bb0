"""One self-contained HTML page about runs, margins and plans: no network, no files beside it."""

import base64
import hashlib
import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from puma.drawing import COLOURS, DARK
from puma.errors import PumaError
from puma.report.choice import LEAST, Choice, choose
from puma.report.folders import read_study
from puma.report.gallery import CHOSEN, Sheet, columns, pictures, tile_size
from puma.report.markup import Markup, markup, script_json, tag
from puma.report.overview import overview
from puma.report.results import RowResult, read_results
from puma.report.samples import Samples, shown_samples
from puma.report.sections import measured
from puma.report.study import Study

MAX_SAMPLES = 2000
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
    study = read_study([Path(path) for path in paths])
    results = read_results(study, show=show)
    samples = shown_samples(study)
    text = render(study, results, samples, title=title or study.title, max_samples=max_samples, show=show)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    return out


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


def render(
    study: Study, results: list[RowResult], samples: Samples | None, *, title: str, max_samples: int, show: bool = False
) -> str:
    """Return the page."""
    choice = sheets = None
    sections = {"What was run": overview(study, results), **measured(study, results, samples)}
    gallery: object = None
    if samples is not None and samples.table is not None:
        choice = choose(samples.margin, max_samples, eps=samples.eps, thresholds=samples.thresholds)
        sheets, why = pictures(samples, choice, show=show)
        gallery = {
            **columns(samples, choice),
            "tile": tile_size(samples.pool)[::-1] if samples.pool and sheets else None,
        }
        sections["Gallery"] = _gallery(samples, choice, sheets, why)
    style, script = _palette() + _file("page.css") + _sheet_rules(sheets or []), _file("page.js")
    links = [tag("a", name, href=f"#{_anchor(name)}") for name in sections]
    return Template(_file("page.html")).substitute(
        mark=_MARK,
        policy=f"default-src 'none'; img-src data:; style-src {_hashed(style)}; script-src {_hashed(script)}; "
        f"base-uri 'none'; form-action 'none'",
        title=markup(title),
        links=markup(*links),
        sections=markup(*(tag("section", tag("h2", name), body, id=_anchor(name)) for name, body in sections.items())),
        gallery=script_json(gallery),
        style=style,
        script=script,
    )


def _gallery(samples: Samples, choice: Choice, sheets: list[Sheet], why: str) -> Markup:
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
    return markup(tag("p", " ".join(sentences)), Markup(_file("gallery.html")))


def _palette() -> str:
    pairs = enumerate(zip(COLOURS, DARK, strict=True))
    return f":root {{ {' '.join(f'--s{index}: light-dark({light}, {dark});' for index, (light, dark) in pairs)} }}\n"


def _sheet_rules(sheets: list[Sheet]) -> str:
    return "".join(f".sheet{index}{{background-image:url({sheet.uri})}}\n" for index, sheet in enumerate(sheets))


def _hashed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def _file(name: str) -> str:
    return files("puma.report").joinpath(name).read_text(encoding="utf-8")
