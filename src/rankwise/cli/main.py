"""The entry point: find the command, load only what it needs, turn errors into exit codes."""

from __future__ import annotations

import errno
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence

from rankwise import __version__
from rankwise.errors import RankwiseError

WRONG_USE = 2
OUR_FAULT = 3
INTERRUPTED = 130
READER_GONE = 141
"""As a shell says it of a process that a closed pipe has ended."""

# Errors of the machine that no part of rankwise has reported better before.
_OUTSIDE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
}


def guarded(act: Callable[[], object]) -> int:
    """Call a function and return the exit code: what it returns, or what its error means."""
    try:
        code = _do(act)
        sys.stdout.flush()
    except BrokenPipeError:
        code = READER_GONE
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        code = _refuse(f"{place}{error.strerror}")
    leave_streams()
    return code


def _refuse(why: str) -> int:
    print(f"rankwise: {why}", file=sys.stderr)
    return WRONG_USE


def _do(act: Callable[[], object]) -> int:
    try:
        result = act()
    except SystemExit as leaving:
        return _code_of(leaving)
    except RankwiseError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        if isinstance(error, BrokenPipeError) or error.errno in _OUTSIDE:
            raise  # For `guarded`, which also gets what the last flush raises.
        if _current_folder() is None:
            return _refuse(
                "the current folder is no longer there, it was deleted or moved away; "
                "change to another one, as with `cd ~`"
            )
        return _report(error)
    except Exception as error:
        # Typer's own errors know how to show themselves; where their class is, changes.
        if hasattr(error, "show") and hasattr(error, "exit_code"):
            error.show()
            return int(error.exit_code)
        return _report(error)
    return result if isinstance(result, int) else 0


def _current_folder() -> str | None:
    """Return the current folder; None: it was deleted."""
    try:
        return os.getcwd()  # noqa: PTH109 - pathlib takes longer to load than all the rest
    except FileNotFoundError:
        return None


def _code_of(leaving: SystemExit) -> int:
    if isinstance(leaving.code, int):
        return leaving.code
    if leaving.code:
        print(leaving.code, file=sys.stderr)
        return 1
    return 0


def _report(error: Exception) -> int:
    """Report an error of ours, and keep what helps to fix it."""
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    print(f"rankwise: {what}", file=sys.stderr)
    print("This is a fault of rankwise, please report it.", file=sys.stderr)
    try:
        place = _keep(error)
    except OSError:
        import traceback

        traceback.print_exception(error)
    else:
        print(f"Details: {place}", file=sys.stderr)
    return OUR_FAULT


def _keep(error: Exception) -> str:
    import platform
    import shlex
    import tempfile
    import traceback

    # Not in the current folder: it may be full, or not ours to write.
    file, name = tempfile.mkstemp(prefix="rankwise-fault-", suffix=".txt")
    with os.fdopen(file, "w", errors="backslashreplace") as report:
        report.write(
            f"rankwise {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
            f"{shlex.join(sys.argv)}\nin {_current_folder()}\n\n"
        )
        report.write("".join(traceback.format_exception(error)))
    return name


def leave_streams() -> None:
    """Write out what is left; a stream that has lost its reader goes nowhere from now on."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - no user's path
                os.dup2(nowhere.fileno(), stream.fileno())


# No pathlib: it takes longer to load than all the rest.
with open(os.path.join(os.path.dirname(__file__), "commands.txt"), encoding="utf-8") as _file:  # noqa: PTH118, PTH120, PTH123
    _COMMANDS = [line.split(maxsplit=2) for line in _file if not line.startswith("#")]
VERBS = {verb: about.strip() for verb, _, about in _COMMANDS}
"""The commands, with what each does."""
MODULES = {verb: module for verb, module, _ in _COMMANDS}
"""The module of each command, in this folder."""

_USAGE = "Usage: rankwise COMMAND [OPTIONS] [ARGUMENTS]"
_ABOUT = "Run what is written in YAML documents: distributed jobs, on this machine or a cluster."
_EXAMPLES = (
    ("rankwise init MpiJob job.yaml", "a document to start from"),
    ("rankwise run job.yaml", "run it"),
    ("rankwise explain", "why it failed"),
)
_OPTIONS = (
    ("--help", "Show this; with a command, all about it"),
    ("--version", "Show the version"),
    ("--install-completion", "Have this shell complete commands, options and runs"),
)
# The pages that typer sets are as wide: `max_content_width` in `make_app`.
_USUAL, _WIDEST = 80, 100


def help_text() -> str:
    """Return what `rankwise --help` shows."""
    # Written here and not by typer, which takes longer to load than all of this.
    lines = [*_wrapped(_USAGE), "", *_wrapped(_ABOUT), ""]
    parts = {"Commands": VERBS.items(), "Options": _OPTIONS, "For example": _EXAMPLES}
    for title, rows in parts.items():
        lines += [f"{title}:", *_columns(rows), ""]
    return "\n".join([*lines, *_wrapped("rankwise COMMAND --help says more about each.")])


def _start() -> str:
    from rankwise.cli.next_steps import next_steps

    return "\n".join([*_wrapped(_ABOUT), "", *_columns(next_steps())])


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, _width(), initial_indent=indent, subsequent_indent=indent)


def unknown(verb: str) -> str:
    """Say that there is no such command, and which may be meant."""
    from rankwise.wording import hint

    what = "option" if verb.startswith("-") else "command"
    return f"there is no {what} {verb!r}: {hint(verb, VERBS, 'see rankwise --help')}"


def _width() -> int:
    """Return how wide texts may be; shutil takes as long to load as all of this."""
    if (given := os.environ.get("COLUMNS", "")).isdigit():
        width = max(20, int(given))
    else:
        try:
            width = os.get_terminal_size(sys.stdout.fileno()).columns
        except (OSError, ValueError):
            width = _USUAL
    return min(width, _WIDEST)


def _columns(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Set pairs in two columns; in a narrow window, one below the other."""
    rows = list(rows)
    first = max(len(name) for name, _ in rows) + 4
    is_narrow = first + 20 > _width()
    indent = " " * (4 if is_narrow else first)
    lines = []
    for name, text in rows:
        head = f"  {name}"
        wrapped = _wrapped(text, indent)
        if is_narrow:
            lines.append(head)
        else:
            wrapped[0] = head + wrapped[0][len(head) :]
        lines += wrapped
    return lines


# The variable that the completion scripts of typer set, made of the name of the program.
ASKED = "_RANKWISE_COMPLETE"
_COMPLETION_OPTIONS = ("--install-completion", "--show-completion")
_OPTION_WORDS = ("--help", "--version", *_COMPLETION_OPTIONS)


def verb_typed(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the verb whose arguments are being typed; None: it is not there yet."""
    words, _ = _words(environment)
    return words[0] if words and words[0] in VERBS else None


def first_words(environment: Mapping[str, str] = os.environ) -> Sequence[str] | None:
    """Return what may be typed where the verb is; None: there is one, or it is not for bash.

    To bash names are enough. Others also show what they are about, each in its own way.
    """
    if environment.get(ASKED) != "complete_bash":
        return None
    words, incomplete = _words(environment)
    if words and words[0] in VERBS:
        return None
    # After a word that is no command, there is nothing that would be right.
    if words not in ([], ["help"]):
        return []
    offered = (*VERBS, *(("help", *_OPTION_WORDS) if not words else ()))
    is_option = incomplete.startswith("-")
    return [
        word
        for word in offered
        if word.startswith(incomplete) and word.startswith("-") is is_option
    ]


def _words(environment: Mapping[str, str]) -> tuple[list[str], str]:
    """Return the words between the program and the cursor, and the one that is not complete."""
    # Bash passes the words and the number of the one at the cursor; zsh and fish pass the line.
    if "COMP_WORDS" in environment:
        words = environment["COMP_WORDS"].split()
        number = environment.get("COMP_CWORD", "")
        at = int(number) if number.isdigit() else len(words)
        return words[1:at], words[at] if at < len(words) else ""
    typed = environment.get("_TYPER_COMPLETE_ARGS", "")
    words = typed.split()[1:]
    if words and not typed[-1].isspace():
        return words[:-1], words[-1]
    return words, ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _open_streams()
    # Names and output of programs may not fit into the terminal's encoding: no reason to fail.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if ASKED in os.environ:
        return _complete(arguments)
    if arguments and arguments[0] in _COMPLETION_OPTIONS:
        return _with_typer(arguments, VERBS)
    match arguments:
        # Only the module of this command is loaded.
        case [verb, *_] if verb in VERBS:
            return _with_typer(arguments, [verb])
        case ["help", verb, *_] if verb in VERBS:
            return _with_typer([verb, "--help"], [verb])
        case []:
            return guarded(lambda: print(_start()))
        case ["--help" | "-h" | "help", *_]:
            return guarded(lambda: print(help_text()))
        case ["--version" | "-V", *_]:
            return guarded(lambda: print(f"rankwise {__version__}"))
    return _refuse(unknown(arguments[0]))


def _open_streams() -> None:
    """Open the streams that we were started without: `>&-`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - stays open


def _complete(arguments: Sequence[str]) -> int:
    """Print how the line may go on; no more is loaded than the command that is in it."""
    if (words := first_words()) is not None:
        return guarded(lambda: print("\n".join(words)))
    verb = verb_typed()
    return _with_typer(arguments, [verb]) if verb else _with_typer(arguments, [], VERBS)


def _with_typer(
    arguments: Sequence[str], verbs: Iterable[str], others: Mapping[str, str] | None = None
) -> int:
    def act() -> object:
        from rankwise.cli.options import make_app

        return make_app(verbs, others)(list(arguments), prog_name="rankwise", standalone_mode=False)

    return guarded(act)


if __name__ == "__main__":
    sys.exit(main())
