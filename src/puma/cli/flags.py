"""How verbs read what people type: numbers such as ``8/255``, and one sentence for what cannot be read."""

import contextlib
import difflib
import functools
import io
import math
import os
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tyro
import tyro.extras
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from puma.errors import PumaError, unknown_name
from puma.progress import format_pixel_step

_REGISTRY = ConstructorRegistry()
_SHAPE = (tyro.conf.OmitSubcommandPrefixes,)
_LARGEST = 1e30  # no quantity here comes near; float32 ends at 3e38
_LARGEST_WHOLE = 2**63 - 1  # of an int64


def parse_number(text: str) -> float:
    """Read a number or a fraction; infinities, NaN and numbers that no float32 holds raise."""
    top, slash, bottom = text.partition("/")
    try:
        number = float(top) / float(bottom) if slash else float(top)
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        raise PumaError(f"expected a number such as 0.03 or 8/255, got {text!r}.") from error
    if not abs(number) <= _LARGEST:
        raise PumaError(f"expected a number of at most {_LARGEST:g}, got {text!r}.")
    return number


def parse_whole_number(text: str) -> int:
    """Read a whole number that an int64 holds, also as 1e6 or 1_000_000."""
    try:
        number = int(text)
    except ValueError:
        try:
            approximate = float(text)
        except ValueError:
            approximate = math.nan
        if not approximate.is_integer():  # infinities and NaN are none
            raise PumaError(f"expected a whole number such as 100, got {text!r}.") from None
        number = int(approximate)
    if abs(number) > _LARGEST_WHOLE:
        raise PumaError(f"expected a whole number of at most {_LARGEST_WHOLE:,}, got {text!r}.")
    return number


@_REGISTRY.primitive_rule
def _read_float(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    return _read_by(parse_number, "NUMBER", lambda value: f"{value:.6g}") if kind.type is float else None


@_REGISTRY.primitive_rule
def _read_int(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    return _read_by(parse_whole_number, "INT", str) if kind.type is int else None


def _read_by(parse: Callable[[str], float], metavar: str, write: Callable[[Any], str]) -> PrimitiveConstructorSpec[Any]:
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: parse(words[0]),
        is_instance=lambda value: isinstance(value, float | int) and not isinstance(value, bool),
        str_from_instance=lambda value: [write(value)],
    )


def parse_flags(function: Callable[..., None], verb: str, words: Sequence[str]) -> Callable[[], None]:
    """Return the call of ``function`` that ``words`` ask for; what cannot be read raises one sentence.

    Nothing of the function runs here, so that what it prints is never mistaken for a complaint about flags.
    """

    if not {"-h", "--help"}.isdisjoint(words):
        words = ["--help"]  # behind an argument tyro would leave that argument out

    @functools.wraps(function)
    def take_arguments(*values: Any, **named: Any) -> Callable[[], None]:
        if verb not in _WRITES_A_FILE:
            _check_folder_name(named.get("out"))
        return lambda: function(*values, **named)

    def parse() -> Callable[[], None]:
        call: Callable[[], None] = tyro.cli(
            take_arguments, prog=f"puma {verb}", args=list(words), config=_SHAPE, registry=_REGISTRY
        )
        return call

    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return parse()
    except SystemExit as stop:
        if not stop.code:  # help
            raise
    with contextlib.redirect_stderr(io.StringIO()) as complaint, _wide_terminal(), contextlib.suppress(SystemExit):
        parse()
    raise _shorten_complaint(complaint.getvalue(), verb, function)


# the verbs whose --out is a file; each says which it may be
_WRITES_A_FILE = (
    "data superclasses", "scores cd", "scores dynamics", "scores el2n", "plan", "plan export", "margins",
    "margins export", "curves", "report",
)  # fmt: skip


def _check_folder_name(out: Path | None) -> None:
    """Raise where a folder is to be written and a file is named."""
    if out is not None and out.suffix in (*_BEGINNINGS, ".html") and not out.is_dir():
        raise PumaError(f"--out is the name of a folder, got {out.name!r}; give --out {out.with_suffix('')}.")


def make_parser(function: Callable[..., None], verb: str) -> Any:
    """Return the flags of a verb as argparse has them, for those who want to know them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # tyro offers nothing else that lists flags
        return tyro.extras.get_parser(function, prog=f"puma {verb}", config=_SHAPE, registry=_REGISTRY)


@contextlib.contextmanager
def _wide_terminal() -> Iterator[None]:
    """Let tyro break no line, so that its complaints can be read."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "10000"
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


# what other programs call it
_ELSEWHERE: dict[str, dict[str, str]] = {
    "--epochs": {"--samples-seen": ", epochs times images,"},
    "--learning-rate": {"--optimizer.lr": "", "--lr": ""},
    "--output": {"--out": ""},
    "--output-dir": {"--out": ""},
    "--epsilon": {"--eps": "", "--attack.eps": ""},
    "--checkpoint": {"--weights": "", "--init": ""},
    "--gpu": {"--device": " cuda", "--compute.device": " cuda"},
}


def _find_nearest_flag(flag: str, function: Callable[..., None], verb: str) -> str:
    """Return the flag whose last word is that of an unknown one, or that is spelt alike; empty if none is."""
    known = [name for action in make_parser(function, verb)._actions for name in action.option_strings]
    for name, text in _ELSEWHERE.get(flag, {}).items():
        if name in known:
            return f"{name}{text}"
    ends = [name for name in known if name.endswith(f".{flag.lstrip('-')}")]
    return next(iter(ends or difflib.get_close_matches(flag, known, n=1)), "")


def _shorten_complaint(box: str, verb: str, function: Callable[..., None]) -> PumaError:
    """Make one sentence of tyro's box, with the nearest right word where a word is wrong."""
    lines = [line.strip("│|╭╰╮╯─+- ") for line in box.splitlines()[1:]]
    text = "\n".join(lines)
    if found := re.search(r"invalid choice '(.*)' for argument '(.*)'\. Expected one of \((.*)\)", text):
        return unknown_name(f"value of {found[2]}", found[1], re.findall(r"'([^']*)'", found[3]))
    if found := re.search(r"Unrecognized options: (\S+)", text):
        flag = found[1].rstrip(",")
        near = _find_nearest_flag(flag, function, verb)
        hint = f"did you mean {near}? " if near else ""
        return PumaError(f"{verb} has no {flag!r}; {hint}puma {verb} --help tells its flags.")
    if "Missing from" in text:
        block = lines[next(at for at, line in enumerate(lines) if line.startswith("Missing from")) + 1 :]
        missing = [f"{name} ({what.removesuffix(' (required)').rstrip('.')})" for name, what in _pairs(block)]
        return PumaError(f"{verb} needs {' and '.join(missing)}; puma {verb} --help tells its flags.")
    if found := re.search(r"Missing value for argument '(.*?)'", text):
        return PumaError(f"{found[1]} needs a value; puma {verb} --help tells which.")
    if found := re.search(r"Error parsing ([^\s:]+): (.*)", text):
        reasons = re.findall(r"<class '(?!NoneType)[^']*'>: (.*)", text) or [found[2]]
        return PumaError(f"{found[1]}: {reasons[-1]}")
    return PumaError(f"{lines[0].rstrip('.')}; puma {verb} --help tells the flags.")


def _pairs(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Read names and what they are for, line by line, up to the first empty line."""
    for name, what in zip(lines[::2], lines[1::2], strict=False):
        if not name:
            return
        yield (f"--{name}" if re.match(r"[a-z]", name) else name), what


# how files of a kind begin
_BEGINNINGS: dict[str, tuple[bytes, ...]] = {
    ".png": (b"\x89PNG",),
    ".pdf": (b"%PDF",),
    ".svg": (b"<",),
    ".json": (b"{",),
    ".csv": (b"sample_id", b'"sample_id"'),
    ".npy": (b"\x93NUMPY",),
    ".npz": (b"PK",),
    ".parquet": (b"PAR1",),
}
_LONGEST = 64  # bytes; longer than any of them


def check_output(
    flag: str,
    out: Path,
    *suffixes: str,
    inputs: Iterable[Path | None] = (),
    table: Callable[[Path], object] | None = None,
    content: str = "",
    starts: bytes = b"",
    force: bool = True,
) -> None:
    """Raise unless a file may be written to ``out``: nothing is replaced but a file of the same kind, no input ever.

    ``suffixes`` are those that the name may have, ``content`` is that of what is written where the name may have
    another; ``table`` reads tables of the kind that is written and raises on others, ``starts`` is how such a file
    begins where the suffix is that of several kinds. Without ``force`` nothing is replaced at all.
    """
    if suffixes and out.suffix not in suffixes:
        raise PumaError(f"{flag} must end in {' or '.join(suffixes)}, got {out.name!r}.")
    if out.is_dir():
        raise PumaError(f"{flag} {out} is a folder; give the name of a file.")
    if not os.path.lexists(out):
        return
    if any(path is not None and path.exists() and out.exists() and path.samefile(out) for path in inputs):
        raise PumaError(f"{flag} {out} is what is read; choose another name.")
    if not force:
        raise PumaError(f"{out} exists already; choose another name for {flag}, or give --force to replace it.")
    if not _is_of_kind(out, content or out.suffix, table, starts):
        raise PumaError(f"{flag} {out} is a file of another kind; it is not replaced, choose another name.")


def _is_of_kind(out: Path, suffix: str, table: Callable[[Path], object] | None, starts: bytes) -> bool:
    """Tell by its content whether a file is what its name says; an empty one may be anything."""
    if not out.is_file():  # a link to nowhere, a pipe, a device
        return False
    with out.open("rb") as file:
        beginning = file.read(_LONGEST)
    if not beginning:
        return True
    if table is not None:
        try:
            table(out)
        except PumaError:
            return False
        return True
    if starts:
        return beginning.startswith(starts)
    if suffix in _BEGINNINGS:
        return beginning.startswith(_BEGINNINGS[suffix])
    return not any(beginning.startswith(known) for known in _BEGINNINGS.values())


def find_value(flag: str, words: Sequence[str]) -> str | None:
    """Return what follows a flag among the words, also as FLAG=VALUE."""
    for index, word in enumerate(words):
        if word == flag and index + 1 < len(words):
            return words[index + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def name_settings(settings: Mapping[str, Any], group: str = "") -> Iterator[tuple[str, str]]:
    """Yield every setting by its name on the command line, such as ``attack.eps``, and its value in a word."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from name_settings(value, f"{group}{name}.")
        elif isinstance(value, float):
            yield f"{group}{name}", format_pixel_step(value)
        else:
            yield (
                f"{group}{name}",
                {"None": "none", "": "none", "True": "yes", "False": "no"}.get(str(value), str(value)),
            )


def format_settings(settings: Mapping[str, Any]) -> str:
    """Say all settings in a few lines, a paragraph for each group."""
    groups: dict[str, list[str]] = {}
    for name, value in name_settings(settings):
        group, _, last = name.rpartition(".")
        groups.setdefault(group or "settings", []).append(f"{last} {value}")
    wrap = functools.partial(textwrap.wrap, width=79, subsequent_indent=" " * 13)
    return "\n".join(line for group, words in groups.items() for line in wrap(f"{group:<12} {', '.join(words)}"))
