"""Steps of pipelines that rankwise itself does, and what they share."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from string import Template

from rankwise.errors import InputError, RankwiseError
from rankwise.records import IDENTITY, write_exports

_FAILED = 1


def guarded(act: Callable[[], None]) -> int:
    """Do it, and return the exit code; errors are printed."""
    try:
        act()
    except RankwiseError as error:
        print(f"rankwise: {error}", file=sys.stderr)
        return _FAILED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"rankwise: {where}{error.strerror or error}", file=sys.stderr)
        return _FAILED
    return 0


def expanded(text: str) -> str:
    """Put in variables and `~`, as a shell does; raises InputError for a variable that is not set.

    The name of the variable itself would else become that of a folder.
    """
    if missing := [one for one in Template(text).get_identifiers() if one not in os.environ]:
        raise InputError(f"{text}: the variable {missing[0]} is not set")
    return os.path.expanduser(os.path.expandvars(text))  # noqa: PTH111  # it may be no path


def refuse_secrets(what: str, text: str) -> None:
    """Raise InputError for a text with the value of a secret in it, which would be kept or seen."""
    for name in filter(None, os.environ.get("RANKWISE_SECRETS", "").split(",")):
        # The value itself, not the name: it may have come in by another variable.
        if (value := os.environ.get(name)) and value in text:
            raise InputError(
                f"{what} has the value of the secret {name} in it, where files and lists of "
                "processes would show it: give it as user or password, https://user:$"
                f"{name}@host/..."
            )


def attempt_folder() -> Path | None:
    """Return the folder of the attempt; None: the step was called by hand."""
    given = os.environ.get("RANKWISE_FOLDER")
    return Path(given) if given else None


def leave(variables: dict[str, str | None]) -> None:
    """Leave variables to later stages."""
    folder = attempt_folder()
    # By hand there are no later stages.
    if folder is not None:
        write_exports(folder, variables)


def identity_at(path: Path, what: str, *, is_new: bool) -> str:
    """Return the identity of something in the workspace, noted in a file beside it.

    What was made anew is another one: it lacks what later stages have put into the old one.
    """
    noted = path.read_text() if path.exists() else ""
    if is_new or noted.partition(" ")[0] != what:
        noted = f"{what} {secrets.token_hex(8)}"
        path.write_text(noted)
    return noted


def note_identity(text: str) -> None:
    """Say what has been made."""
    folder = attempt_folder()
    if folder is not None:
        (folder / IDENTITY).write_text(text)
