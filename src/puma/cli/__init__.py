"""The command line: a table of verbs, each a typed function that tyro turns into flags.

Only the module of the verb that was asked for is imported, so help and errors come at once.
"""

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from puma.errors import PumaError, unknown_name

# verb -> (function, what it is for); longer verbs win over their own beginnings
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("puma.cli.demo:demo", "see the whole method on bundled images, in about three minutes"),
    "data import digits": ("puma.cli.data:digits", "scikit-learn's 8 px digits: nothing to download"),
    "data import cifar10": ("puma.cli.data:cifar10", "CIFAR-10 from its official folder or archive"),
    "data import cifar100": ("puma.cli.data:cifar100", "CIFAR-100 from its official folder or archive"),
    "data import mnist": ("puma.cli.data:mnist", "MNIST from its four idx files"),
    "data import fashion-mnist": ("puma.cli.data:fashion_mnist", "Fashion-MNIST from its four idx files"),
    "data import npz": ("puma.cli.data:npz", "an .npz with image and label, such as generated images"),
    "data import folder": ("puma.cli.data:folder", "one sub-folder of pictures per class"),
    "data distort": (
        "puma.cli.data:distort",
        "extra images made from a pool's own by random affine and elastic distortion",
    ),
    "data show": ("puma.cli.data:show", "counts, shapes, class balance and a picture of a pool"),
    "train": ("puma.cli.train:train", "train a robust model on a pool, or on what a plan keeps of it"),
    "evaluate": ("puma.cli.evaluate:evaluate", "accuracy of a model: clean and under attack"),
    "scores cd": ("puma.cli.scores:cd", "how often a training run had each sample wrong, or forgot it"),
    "scores el2n": ("puma.cli.scores:el2n", "the error of a few briefly trained nets on each sample"),
    "plan": ("puma.cli.plan:plan", "from scores to a plan: which samples to keep, how strongly to attack each"),
    "plan show": ("puma.cli.plan:show", "what a plan does, in words and as a picture"),
    "plan diff": ("puma.cli.plan:diff", "what differs between two plans"),
    "plan export": ("puma.cli.plan:export", "a plan as .csv, or the kept rows as .npy"),
    "margins": ("puma.cli.margins:margins", "signed distance of every sample to a model's decision boundary"),
    "margins show": ("puma.cli.margins:show", "quantiles, shares and a histogram of margins"),
    "curves": ("puma.cli.curves:curves", "training curves of several runs in one picture"),
    "report": ("puma.cli.report:report", "one HTML page: results, margins, plans and a gallery of samples"),
    "iterate": ("puma.cli.iterate:iterate", "train, measure margins, plan, train again"),
    "run": ("puma.cli.run:run", "a table or figure of the paper: train and evaluate every row of it"),
    "perceptron": (
        "puma.cli.perceptron:perceptron",
        "why pruning fails or works: theory and numbers in a minute",
    ),
    "list": ("puma.cli.listing:listing", "what there is to choose from: importers, models, attacks"),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one verb and exit: 0 done, 2 bad input (told in one sentence), 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is half-written is cleaned up
    try:
        call_verb(words)
        sys.stdout.flush()
        leave_torchrun()
    except PumaError as error:
        fail(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        fail(f"{error.strerror or error}{place}.")
    except KeyboardInterrupt:
        print("puma: interrupted.", file=sys.stderr)
        sys.exit(130)


def leave_torchrun() -> None:
    """End a process that torchrun started, once all is written, without the way out of the interpreter.

    There, threads of the process group may still be within C++ and abort the process: torchrun would take a run that
    has succeeded for a failed one.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "TORCHELASTIC_RUN_ID" in os.environ:
        sys.stderr.flush()
        os._exit(0)


def call_verb(words: list[str]) -> None:
    """Find the verb at the start of ``words`` and call its function with the rest as flags."""
    if words[:1] == ["--version"]:
        print(version_line())
        return
    verb = longest_verb(words)
    if verb is None:
        print_verbs(words)
        return
    import tyro

    from puma.cli.number import REGISTRY

    rest = words[len(verb.split()) :]
    shape = (tyro.conf.OmitSubcommandPrefixes,)
    tyro.cli(load(verb, rest), prog=f"puma {verb}", args=rest, config=shape, registry=REGISTRY)


def longest_verb(words: list[str]) -> str | None:
    """Return the longest entry of COMMANDS that ``words`` begins with."""
    starts = (" ".join(words[:length]) for length in range(len(words), 0, -1))
    return next((start for start in starts if start in COMMANDS), None)


def load(verb: str, words: Sequence[str] = ()) -> Callable[..., Any]:
    """Import the function behind a verb; where the words decide its defaults, the module's ``NAME_for`` makes it."""
    module_name, name = COMMANDS[verb][0].split(":")
    module = importlib.import_module(module_name)
    make = getattr(module, f"{name}_for", None)
    function: Callable[..., Any] = getattr(module, name) if make is None else make(words)
    return function


def print_verbs(words: list[str]) -> None:
    """Print the verbs below ``words`` (all of them for no words); an unknown verb raises."""
    spoken = [word for word in words if word not in ("-h", "--help")]
    prefix = " ".join(spoken)
    start = f"{prefix} ".lstrip()
    below = {verb: text for verb, (_, text) in COMMANDS.items() if f"{verb} ".startswith(start)}
    if not below:
        raise unknown_name("command", prefix, list(COMMANDS))
    width = max(map(len, below))
    print(f"usage: puma {prefix or 'COMMAND'} ...    (puma COMMAND --help tells the flags)\n")
    for verb, text in below.items():
        print(f"  puma {verb:<{width}}  {text}")


def version_line() -> str:
    """Return the version of PUMA and of what its numbers depend on."""
    import platform
    from importlib.metadata import version

    return f"puma {version('puma-pruning')} (torch {version('torch')}, Python {platform.python_version()})"


def fail(sentence: str) -> None:
    """Print the sentence and exit with code 2."""
    print(f"puma: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(2)
