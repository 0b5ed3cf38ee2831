"""The way in: finds the verb, loads no more than it needs, and turns errors into exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence

from rankwise import __version__
from rankwise.cli.typed import ASKED, first_words, verb_typed
from rankwise.cli.verbs import VERBS, help_text, unknown

_COMPLETION_OPTIONS = ("--install-completion", "--show-completion")
_WRONG_USE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says and give the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # What people write may not fit into the terminal's encoding: that is no reason to fail.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if ASKED in os.environ:
        return _complete(arguments)
    if arguments and arguments[0] in _COMPLETION_OPTIONS:
        return _with_typer(arguments, VERBS)
    match arguments:
        case [verb, *_] if verb in VERBS:
            return _with_typer(arguments, [verb])
        case ["help", verb, *_] if verb in VERBS:
            return _with_typer([verb, "--help"], [verb])
        case [] | ["--help" | "-h" | "help", *_]:
            return _say(help_text())
        case ["--version" | "-V", *_]:
            return _say(f"rankwise {__version__}")
    print(f"rankwise: {unknown(arguments[0])}", file=sys.stderr)
    return _WRONG_USE


def _complete(arguments: Sequence[str]) -> int:
    """Tell a shell how the line may go on; no more is loaded than the verb that is in it."""
    if (words := first_words()) is not None:
        return _say("\n".join(words))
    verb = verb_typed()
    return _with_typer(arguments, [verb]) if verb else _with_typer(arguments, [], VERBS)


def _say(text: str) -> int:
    from rankwise.cli.faults import guarded

    return guarded(lambda: print(text))


def _with_typer(
    arguments: Sequence[str], verbs: Iterable[str], others: Mapping[str, str] | None = None
) -> int:
    from rankwise.cli.faults import guarded

    def act() -> object:
        from rankwise.cli.app import make_app

        return make_app(verbs, others)(list(arguments), prog_name="rankwise", standalone_mode=False)

    return guarded(act)


if __name__ == "__main__":
    sys.exit(main())
