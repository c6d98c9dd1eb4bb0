"""Pages of the site that are made when it is built: the reference of the commands, and the notebook as a tutorial."""

import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "first_look.ipynb"
_INLINE_CODE = re.compile(r"(?<!</span>)<code>([^<]*)</code>")  # in a block a span comes before it
_FLAG = re.compile(r"(?<![\w-])--?[a-z][\w-]*")


def on_config(config: Any) -> Any:
    """Name the version in the foot of every page, and link the repository where pyproject.toml tells it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.copyright = f"PUMA {project['version']}, {project['license']}"
    config.repo_url = project.get("urls", {}).get("Repository") or config.repo_url
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to those that MkDocs has found."""
    from mkdocs.structure.files import File

    for place, content in make_pages().items():
        if place in files.src_uris:
            files.remove(files.src_uris[place])
        files.append(File.generated(config, place, content=content))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Keep flags in running text whole: browsers break lines after a hyphen."""
    whole = r'<span style="white-space: nowrap">\g<0></span>'
    return _INLINE_CODE.sub(lambda found: f"<code>{_FLAG.sub(whole, found[1])}</code>", html)


def make_pages() -> dict[str, str | bytes]:
    """Return every page that is made, and its pictures, by its place on the site."""
    spec = importlib.util.spec_from_file_location("notebook", ROOT / "docs" / "notebook.py")
    assert spec is not None
    assert spec.loader is not None
    notebook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(notebook)
    page, pictures = notebook.to_page(notebook.read_notebook(NOTEBOOK), "images/first-look")
    return {"cli.md": describe_commands(), "first-look.md": page, **pictures}


def describe_commands() -> str:
    """Write the reference of the command line from what the verbs say of themselves."""
    from puma.cli import COMMANDS
    from puma.cli.completion import read_help

    places = {verb: f"#puma-{verb.replace(' ', '-')}" for verb in COMMANDS}
    rows = [f"| [`puma {verb}`]({places[verb]}) | {known.text} |" for verb, known in COMMANDS.items()]
    parts = [
        "# Commands",
        "Made from the code: what `puma COMMAND --help` tells. Numbers may be typed as fractions such as `8/255`, "
        "whole numbers as `1e6`. A flag `--x` that is on or off has a `--no-x`. Exit codes: 0 done, 2 bad input (told "
        "in one sentence), 130 and 143 stopped by a signal, with what is done saved.",
        "\n".join(["| command | what it does |", "|---|---|", *rows]),
    ]
    for verb in COMMANDS:
        told = read_help(verb)
        parts += [f"## puma {verb}", f"```text\n{told.usage}\n```", told.text.replace("``", "`")]
        lines: list[str] = []
        for group in told.groups:
            flags = [flag for flag in group.flags if "--help" not in flag.names]
            if not flags:
                continue
            if group.title not in ("options", "positional arguments"):
                parts += ["\n".join(lines)] * bool(lines)
                parts.append(f"**{group.title.removesuffix(' options')}**: {group.text}")
                lines = []
            lines = lines or ["| argument | what it is |", "|---|---|"]
            for flag in flags:
                names = ", ".join(name for name in flag.names if not _negates(name, flag.names))
                left = f"{names} {flag.metavar}".strip().replace("|", "\\|")
                lines.append(f"| `{left}` | {_escape(flag.text)} |")
        parts += ["\n".join(lines)] * bool(lines)
    return "\n\n".join(parts) + "\n"


def _negates(name: str, names: tuple[str, ...]) -> bool:
    """Tell whether a flag is the --no-x of another."""
    return name.replace("no-", "", 1) in names and name.replace("no-", "", 1) != name


def _escape(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|").replace("<", "&lt;")
