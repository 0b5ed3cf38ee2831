"""What becomes of errors: a person's mistake is a 2, a fault of ours a 3 to be reported."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

from rankwise.errors import RankwiseError

WRONG_USE = 2
OUR_FAULT = 3
INTERRUPTED = 130
READER_GONE = 141
"""As a shell says it of a process that a closed pipe has ended."""

# The machine's trouble and not ours, if nobody has said it better before.
_OUTSIDE = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
}


def guarded(act: Callable[[], object]) -> int:
    """Do something and give the exit code: what it gives, or what its error means."""
    try:
        code = _do(act)
        sys.stdout.flush()
    except BrokenPipeError:
        code = READER_GONE
    except OSError as error:
        code = _say_os_error(error)
    leave_streams()
    return code


def _do(act: Callable[[], object]) -> int:
    try:
        result = act()
    except SystemExit as leaving:
        return _code_of(leaving)
    except RankwiseError as error:
        print(f"rankwise: {error}", file=sys.stderr)
        return WRONG_USE
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        if isinstance(error, BrokenPipeError) or error.errno in _OUTSIDE:
            raise
        return _report(error)
    except Exception as error:
        # Typer's own errors know how to show themselves; where their class is, changes.
        if hasattr(error, "show") and hasattr(error, "exit_code"):
            error.show()
            return int(error.exit_code)
        return _report(error)
    return result if isinstance(result, int) else 0


def _code_of(leaving: SystemExit) -> int:
    if isinstance(leaving.code, int):
        return leaving.code
    if leaving.code:
        print(leaving.code, file=sys.stderr)
        return 1
    return 0


def _say_os_error(error: OSError) -> int:
    place = f"{error.filename}: " if error.filename else ""
    print(f"rankwise: {place}{error.strerror}", file=sys.stderr)
    return WRONG_USE


def _report(error: Exception) -> int:
    """Say that we have made a mistake, and keep what helps to mend it."""
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    print(f"rankwise: {what}", file=sys.stderr)
    print("This is a fault of rankwise, please report it.", file=sys.stderr)
    try:
        place = _keep(error)
    except OSError:
        import traceback

        traceback.print_exception(error)
    else:
        print(f"All about it is in {place}", file=sys.stderr)
    return OUR_FAULT


def _keep(error: Exception) -> str:
    import platform
    import shlex
    import tempfile
    import traceback
    from pathlib import Path

    from rankwise import __version__

    file, name = tempfile.mkstemp(prefix="rankwise-fault-", suffix=".txt")
    with os.fdopen(file, "w", errors="backslashreplace") as report:
        report.write(
            f"rankwise {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
            f"{shlex.join(sys.argv)}\nin {Path.cwd()}\n\n"
        )
        report.write("".join(traceback.format_exception(error)))
    return name


def leave_streams() -> None:
    """Write out what is left, and from now on nothing to where nobody reads."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - no path of anybody's
                os.dup2(nowhere.fileno(), stream.fileno())
