"""Run a notebook and keep what it prints and draws, or turn it into a page: no Jupyter is needed for either.

python docs/notebook.py examples/first_look.ipynb        # runs it in a folder of its own and updates its outputs
"""

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Notebook = dict[str, Any]


def run_notebook(notebook: Notebook, changes: Mapping[str, str] | None = None) -> Notebook:
    """Run all cells in the current folder and return the notebook with their outputs; ``changes`` replace code."""
    import matplotlib as mpl

    mpl.use("agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            code = "".join(cell["source"])
            for old, new in (changes or {}).items():
                code = code.replace(old, new)
            cell = {**cell, "execution_count": count, "outputs": _run_cell(code, names, count)}
        cells.append(cell)
    return {**notebook, "cells": cells}


def _run_cell(code: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run one cell; return what it prints, its pictures, and the value of a last line unless it ends in a semicolon."""
    from matplotlib import pyplot

    tree = ast.parse(code)
    silent = code.rstrip().endswith(";")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) and not silent else None
    title = f"cell {count}"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, title, "exec"), names)
        value = eval(compile(ast.Expression(last.value), title, "eval"), names) if isinstance(last, ast.Expr) else None
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append(
            {"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(keepends=True)}
        )
    for number in pyplot.get_fignums():
        picture = io.BytesIO()
        pyplot.figure(number).savefig(picture, format="png", dpi=100, bbox_inches="tight", metadata={"Software": ""})
        encoded = base64.b64encode(picture.getvalue()).decode()
        outputs.append({"data": {"image/png": encoded}, "metadata": {}, "output_type": "display_data"})
    pyplot.close("all")
    if value is not None:
        shown = {"text/plain": repr(value).splitlines(keepends=True)}
        outputs.append({"data": shown, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return outputs


def to_page(notebook: Notebook, folder: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and the pictures it shows by their path in ``folder``."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            if "text" in output:
                parts.append(_indent_text("".join(output["text"])))
            elif "image/png" in output["data"]:
                place = f"{folder}/{len(pictures) + 1}.png"
                pictures[place] = base64.b64decode(output["data"]["image/png"])
                parts.append(f"![what this draws]({place})")
            else:
                parts.append(_indent_text("".join(output["data"]["text/plain"])))
    return "\n\n".join(parts) + "\n", pictures


def _indent_text(text: str) -> str:
    return textwrap.indent(text.rstrip("\n"), "    ")


def read_notebook(path: Path) -> Notebook:
    """Read a notebook of format 4."""
    notebook: Notebook = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def main(path: Path) -> None:
    """Run a notebook in a folder of its own and write its outputs into it."""
    notebook = read_notebook(path)
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            done = run_notebook(notebook)
        finally:
            os.chdir(before)
    path.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebook", type=Path)
    main(parser.parse_args().notebook)
