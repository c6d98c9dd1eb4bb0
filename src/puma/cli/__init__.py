"""The command line: a table of verbs, each a typed function that tyro turns into flags.

Only the module of the verb that was asked for is imported, so help and errors come at once.
"""

import codecs
import contextvars
import difflib
import importlib
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from puma.errors import Interrupted, PumaError, tell_missing

__all__ = ["COMMANDS", "Verb", "call_verb", "find_verb", "load_verb", "main"]


_SIGNS = {"█": "#", "±": "+-", "×": "x", "≤": "<=", "≥": ">=", "…": "...", "→": "->"}
_PATIENCE = 5.0  # seconds; torchrun looks for processes that have ended ten times a second


class Verb(NamedTuple):
    """A verb's function as ``module:function``, and what it is for.

    ``by_words``: the function is made by calling that place with the words of the command, which decide its defaults.
    """

    place: str
    text: str
    by_words: bool = False


# longer verbs win over their own beginnings
COMMANDS: dict[str, Verb] = {
    "demo": Verb("demo:run_demo", "see the whole method on bundled images, in about three minutes"),
    "data import digits": Verb("data:import_digits", "scikit-learn's 8 px digits: nothing to download"),
    "data import cifar10": Verb("data:import_cifar10", "CIFAR-10 from its official folder or archive"),
    "data import cifar100": Verb("data:import_cifar100", "CIFAR-100 from its official folder or archive"),
    "data import mnist": Verb("data:import_mnist", "MNIST from its four idx files"),
    "data import fashion-mnist": Verb("data:import_fashion_mnist", "Fashion-MNIST from its four idx files"),
    "data import npz": Verb("data:import_npz", "an .npz with image and label, such as generated images"),
    "data import folder": Verb("data:import_folder", "one sub-folder of pictures per class"),
    "data import tar": Verb("shards:import_tars", "tars of pictures, one per class, read where they lie"),
    "data import imagenet21k": Verb(
        "shards:import_imagenet21k", "100 classes of ImageNet-21K, or others of tars that are named by WordNet ids"
    ),
    "data import webdataset": Verb("shards:import_webdataset", "WebDataset shards, read where they lie"),
    "data import parquet": Verb("shards:import_parquet", "Parquet files of pictures, read where they lie"),
    "data subset": Verb("shards:choose_subset", "some samples of a pool as a pool, which is an index into it"),
    "data distort": Verb(
        "data:distort_folder", "extra images made from a pool's own by random affine and elastic distortion"
    ),
    "data filter": Verb("generate:filter_images", "the images of a pool that classifiers or margins speak for"),
    "data superclasses": Verb("data:list_superclasses", "a few large classes out of thousands of WordNet ids"),
    "data show": Verb("data:show_pool", "counts, shapes, class balance and a picture of a pool"),
    "train": Verb("train:make_train_verb", "train a robust model on a pool, or on what a plan keeps of it", True),
    "generate train": Verb("generate:make_generator_verb", "train a generator of images like those of a pool", True),
    "generate sample": Verb("generate:sample_images", "images of a generator, as a pool of origin generated"),
    "generate show": Verb("generate:show_generator", "what a generator was trained on, how far, and a picture"),
    "evaluate": Verb("evaluate:evaluate_model", "accuracy of a model: clean and under attack"),
    "scores cd": Verb("plan:score_by_outcomes", "how often a training run had each sample wrong, or forgot it"),
    "scores dynamics": Verb("plan:score_by_dynamics", "input gradients and uncertainty over the models a run has kept"),
    "scores el2n": Verb("plan:score_by_el2n", "the error of a few briefly trained nets on each sample"),
    "plan": Verb("plan:write_plan", "from scores to a plan: which samples to keep, how strongly to attack each"),
    "plan show": Verb("plan:show_plan", "what a plan does, in words and as a picture"),
    "plan diff": Verb("plan:print_plan_differences", "what differs between two plans"),
    "plan export": Verb(
        "plan:export_plan", "a plan, or what it keeps, for other programs: keys, shards, Parquet, .npz"
    ),
    "margins": Verb("margins:measure_files", "signed distance of every sample to a model's decision boundary"),
    "margins show": Verb("margins:show_margins", "quantiles, shares and a histogram of margins"),
    "margins compare": Verb(
        "margins:compare_margin_files", "how alike margins of the same samples are, and their plans"
    ),
    "margins export": Verb("margins:export_suspects", "the samples with the most doubtful labels, as .csv"),
    "curves": Verb("report:draw_runs", "training curves of several runs in one picture"),
    "report": Verb("report:write_page", "one HTML page: results, margins, plans and a gallery of samples"),
    "trace": Verb("report:print_trace", "what a result was made from, back to pools and models; says what is broken"),
    "iterate": Verb("train:make_iterate_verb", "train, measure margins, plan, train again", True),
    "run": Verb("run:run_experiments", "a table or figure of the paper: train and evaluate every row of it"),
    "perceptron": Verb("perceptron:study_perceptron", "why pruning fails or works: theory and numbers in a minute"),
    "completion": Verb("completion:print_completion", "a script for bash, zsh or fish that completes verbs and flags"),
    "list": Verb("run:list_choices", "what there is to choose from: importers, models, attacks"),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one verb and exit: 0 done, 2 bad input (told in one sentence), 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    prepare_streams()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is half-written is cleaned up
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            call_verb(words)
        sys.stdout.flush()
        leave_torchrun()
    except PumaError as error:
        exit_with(str(error))
    except Interrupted as error:
        print(f"puma: {error}", file=sys.stderr)
        sys.exit(128 + error.signal_number)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        exit_with(f"{error.strerror or error}{place}.")
    except KeyboardInterrupt:
        print(tell_interrupted(words), file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        ending = _find_ending(error)
        if ending is None:
            raise
        if isinstance(ending, SystemExit):
            sys.exit(ending.code)
        print(tell_interrupted(words), file=sys.stderr)
        sys.exit(130)


def tell_interrupted(words: list[str]) -> str:
    """Say that a signal has ended the work, and whether the same command goes on with it."""
    goes_on = find_verb(words) in ("demo", "margins", "evaluate", "scores el2n", "iterate", "run", "perceptron")
    return "puma: interrupted; the same command goes on." if goes_on else "puma: interrupted."


def _find_ending(error: BaseException) -> KeyboardInterrupt | SystemExit | None:
    """Return the signal's exception that a library has turned into an error of its own, as numpy does; else None."""
    cause = error.__cause__
    while cause is not None and not isinstance(cause, KeyboardInterrupt | SystemExit):
        cause = cause.__cause__
    return cause


def prepare_streams() -> None:
    """Make sure that nothing which is printed can fail: closed streams, terminals that lack a sign, odd file names."""
    codecs.register_error("puma", _replace_sign)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started us
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="puma")


def _replace_sign(error: UnicodeError) -> tuple[str, int]:
    """Write bars by what every terminal has, anything else by its number."""
    assert isinstance(error, UnicodeEncodeError)
    wrong = error.object[error.start : error.end]
    told = "".join(_SIGNS.get(sign, sign.encode("ascii", "backslashreplace").decode()) for sign in wrong)
    return told, error.end


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Tell a warning in the way of everything else, without the line of code it comes from."""
    print(f"puma: warning: {' '.join(str(message).split())}", file=sys.stderr)


def leave_torchrun() -> None:
    """End a process that torchrun started, once all is written, without the way out of the interpreter.

    There, threads of the process group may still be within C++ and abort the process: torchrun would take a run that
    has succeeded for a failed one.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1" and "TORCHELASTIC_RUN_ID" in os.environ:
        sys.stderr.flush()
        os._exit(0)


def call_verb(words: list[str]) -> None:
    """Find the verb at the start of ``words`` and call its function with the rest as flags."""
    if words[:1] == ["--version"]:
        print(version_line())
        return
    verb = find_verb(words)
    if verb is None:
        print_verbs(words)
        return
    with tell_missing("cli"):
        from puma.cli.flags import parse_flags

    rest = words[len(verb.split()) :]
    function = load_verb(verb, rest)
    if "torch" in sys.modules:  # puma margins, which imports it later, does this itself
        from puma.models import start_threads

        start_threads()
    contextvars.copy_context().run(parse_flags(function, verb, rest))  # what a verb trusts ends with it


def find_verb(words: list[str]) -> str | None:
    """Return the longest entry of COMMANDS that ``words`` begins with."""
    starts = (" ".join(words[:length]) for length in range(len(words), 0, -1))
    return next((start for start in starts if start in COMMANDS), None)


def load_verb(verb: str, words: Sequence[str] = ()) -> Callable[..., Any]:
    """Import the function behind a verb, for the words that follow it."""
    module, name = COMMANDS[verb].place.split(":")
    function: Callable[..., Any] = getattr(importlib.import_module(f"puma.cli.{module}"), name)
    return function(words) if COMMANDS[verb].by_words else function


def print_verbs(words: list[str]) -> None:
    """Print the verbs below ``words`` (all of them for no words); an unknown verb raises."""
    spoken = [word for word in words if word not in ("-h", "--help")]
    prefix = " ".join(spoken)
    start = f"{prefix} ".lstrip()
    below = {verb: known.text for verb, known in COMMANDS.items() if f"{verb} ".startswith(start)}
    if not below:
        raise _explain_unknown(spoken)
    width = max(map(len, below))
    print(f"usage: puma {prefix or 'COMMAND'} ...    (puma COMMAND --help tells the flags)\n")
    for verb, text in below.items():
        print(f"  puma {verb:<{width}}  {text}")


def _explain_unknown(words: list[str]) -> PumaError:
    """Build the error for words that begin with no verb: each verb is compared with as many words as it has."""

    def likeness(verb: str) -> tuple[float, float]:
        parts = verb.split()
        length = min(len(parts), len(words))
        spoken = " ".join(words[:length])
        return _ratio(spoken, " ".join(parts[:length])), _ratio(spoken, verb)

    nearest = max(COMMANDS, key=likeness)
    near = likeness(nearest)[0] >= 0.6  # two letters of five may be exchanged
    said = " ".join(words[: len(nearest.split()) if near else 1])
    hint = f"did you mean {nearest!r}? " if near else ""
    return PumaError(f"unknown command {said!r}; {hint}known: {', '.join(COMMANDS)}.")


def _ratio(one: str, two: str) -> float:
    return difflib.SequenceMatcher(None, one, two).ratio()


def version_line() -> str:
    """Return the version of PUMA and of what its numbers depend on."""
    import platform
    from importlib.metadata import version

    return f"puma {version('puma-pruning')} (torch {version('torch')}, Python {platform.python_version()})"


def exit_with(sentence: str) -> None:
    """Print the sentence and exit with code 2.

    Of processes that torchrun started all find the same fault as a rule. The first tells it and torchrun ends the
    others; only where the first has no such fault do they come to tell theirs.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0":
        time.sleep(_PATIENCE)
    print(f"puma: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(2)
