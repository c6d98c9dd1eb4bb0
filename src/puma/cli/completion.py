"""What the verbs' help says, as data; completion scripts for shells are made from it, and the reference of the docs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tyro.conf import Positional

from puma.cli import COMMANDS, load_verb
from puma.cli.flags import make_parser


@dataclass(frozen=True)
class FlagHelp:
    """One flag, or one positional argument, as the help of a verb tells it."""

    names: tuple[str, ...]  # empty for a positional argument
    metavar: str
    text: str

    @property
    def choices(self) -> tuple[str, ...]:
        """The values to choose from, if they are listed."""
        found = re.search(r"\{([^{}]*)\}", self.metavar)
        return tuple(found[1].split(",")) if found else ()


@dataclass(frozen=True)
class FlagGroup:
    """Flags that belong together."""

    title: str
    text: str
    flags: list[FlagHelp]


@dataclass(frozen=True)
class VerbHelp:
    """The help of a verb: how it is called, what it does, its flags."""

    usage: str
    text: str
    groups: list[FlagGroup]


def print_completion(shell: Positional[Literal["bash", "zsh", "fish"]], /) -> None:
    """Print a script that completes verbs, flags and their values.

    Args:
        shell: of which the script is.
    """
    verbs = {verb: [flag for group in read_help(verb).groups for flag in group.flags] for verb in COMMANDS}
    write = {"bash": _write_bash, "zsh": _write_zsh, "fish": _write_fish}[shell]
    print("\n".join(write(verbs)))


def read_help(verb: str) -> VerbHelp:
    """Return the help of a verb."""
    parser = make_parser(load_verb(verb), verb)
    groups = [
        FlagGroup(
            str(group.title),
            (group.description or "").strip(),
            [
                FlagHelp(tuple(action.option_strings), _clean_metavar(action.metavar), _clean_text(action.help))
                for action in group._group_actions
            ],
        )
        for group in parser._action_groups
    ]
    taken = " ".join(flag.metavar for group in groups for flag in group.flags if not flag.names)
    usage = f"puma {verb} {taken} [FLAGS]".replace("  ", " ")
    return VerbHelp(usage, parser.description or "", [group for group in groups if group.flags])


def _clean_metavar(metavar: str | tuple[str, ...] | None) -> str:
    """Say what a value is, without what is said of every optional one."""
    text = metavar if isinstance(metavar, str) else ""
    return text.replace("{None}|", "").replace("{None,", "{").replace("[[PATH [PATH ...]]]", "[PATH ...]")


def _clean_text(text: str | None) -> str:
    return (
        re.sub(r"\s+", " ", text or "").replace("%%", "%").removesuffix(" (default: )").removesuffix(" (default: None)")
    )


Verbs = dict[str, list[FlagHelp]]


def _list_next(verbs: Verbs) -> Iterator[tuple[str, list[str]]]:
    """Yield the beginnings of verbs, longest first, with the words that may follow each."""
    starts = {" ".join(verb.split()[:length]) for verb in verbs for length in range(len(verb.split()))}
    for start in sorted(starts, key=len, reverse=True):
        below = {
            verb.split()[len(start.split())]
            for verb in verbs
            if verb != start and f"{verb} ".startswith(f"{start} ".lstrip())
        }
        yield start, sorted(below)


def _write_cases(verbs: Verbs, choose: str) -> Iterator[str]:
    """Write the cases of a shell function: values after a flag, flags after a verb, words after its beginning.

    ``$cur`` is the word to complete, ``$before`` all words before it with a blank behind each, ``$prev`` the last of
    them. Where nothing is offered the shell completes names of files.
    """
    nexts = dict(_list_next(verbs))
    yield '    case "$before" in'
    for verb in sorted(verbs, key=len, reverse=True):
        yield f'    "{verb} "*)'
        flags = verbs[verb]
        chosen = [(flag.names, flag.choices) for flag in flags if flag.choices and flag.names]
        if chosen:
            yield '        case "$prev" in'
            for names, choices in chosen:
                yield f"        {'|'.join(names)}) {choose.format(' '.join(choices))}; return ;;"
            yield "        esac"
        words = [name for flag in flags for name in flag.names]
        values = [choice for flag in flags if not flag.names for choice in flag.choices]
        yield f'        case "$cur" in -*) {choose.format(" ".join(words))}; return ;; esac'
        if values:
            yield f"        {choose.format(' '.join(values))}; return"
        if verb in nexts:
            yield f'        [ "$before" = "{verb} " ] && {choose.format(" ".join(nexts[verb]))}'
        yield "        ;;"
    for start, words in nexts.items():
        if start not in verbs:
            yield (
                f'    "{start} "*) {choose.format(" ".join(words))}; return ;;'
                if start
                else f"    *) {choose.format(' '.join(words))}; return ;;"
            )
    yield "    esac"


def _write_bash(verbs: Verbs) -> Iterator[str]:
    yield "# completion of puma for bash; made by: puma completion bash"
    yield "_puma() {"
    yield '    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} before="" word'
    yield '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do before="$before$word "; done'
    yield "    COMPREPLY=()"
    yield from _write_cases(verbs, 'COMPREPLY=($(compgen -W "{}" -- "$cur"))')
    yield "}"
    yield "complete -o bashdefault -o default -F _puma puma"


def _write_zsh(verbs: Verbs) -> Iterator[str]:
    yield "#compdef puma"
    yield "# completion of puma for zsh; made by: puma completion zsh"
    yield "_puma() {"
    yield '    local cur="${words[CURRENT]}" prev="${words[CURRENT-1]}" before="${(j: :)words[2,CURRENT-1]} "'
    yield '    [ "$before" = " " ] && before=""'
    yield from _write_cases(verbs, "compadd -- {}")
    yield "    _files"
    yield "}"
    yield 'if [ "$funcstack[1]" = "_puma" ]; then _puma "$@"; else compdef _puma puma; fi'


def _write_fish(verbs: Verbs) -> Iterator[str]:
    yield "# completion of puma for fish; made by: puma completion fish"
    yield "function __puma_after"
    yield '    set -l before (string join -- " " (commandline -opc)[2..])'
    yield '    test "$before" = "$argv"; or string match -q -- "$argv *" "$before"'
    yield "end"
    yield "function __puma_exactly"
    yield '    set -l before (string join -- " " (commandline -opc)[2..])'
    yield '    test "$before" = "$argv"'
    yield "end"
    for start, words in _list_next(verbs):
        alone = "" if start in verbs else " -f"  # no files where a word of a verb must follow
        yield f"complete -c puma -n '__puma_exactly {start}'{alone} -a '{' '.join(words)}'".replace(
            "exactly '", 'exactly ""\''
        )
    for verb, flags in verbs.items():
        for flag in flags:
            text = re.sub(r"[\\'\"`$]", "", flag.text.partition(".")[0])
            values = f" -x -a '{' '.join(flag.choices)}'" if flag.choices else " -r" if flag.metavar else ""
            if flag.choices and not flag.names:
                yield f"complete -c puma -n '__puma_exactly {verb}' -f -a '{' '.join(flag.choices)}'"
            for name in flag.names:
                kind = f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                yield f"complete -c puma -n '__puma_after {verb}' {kind}{values} -d '{text}'"
